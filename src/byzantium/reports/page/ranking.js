// -- the ranking of the benchmark -----------------------------------------------------------------

function ranking() {
  const { ranking: made } = report;
  $("ranking").hidden = !made;
  if (!made) return;
  $("ranking-about").textContent = `Every pipeline meets the same ${made.attacks} attacks (suite ${made.suite}), and counts by the one that hurts it most. A table has its mean test accuracy over the seeds in percent, ± their standard deviation, and that attack, and is sorted by the mean of these accuracies. Marked *: a pipeline of yours; of the others the numbers are recorded.`;
  $("ranking-tables").replaceChildren(...made.tables.flatMap(rankingTable));
  $("ranking-heat").replaceChildren(...rankingHeat(made.heat));
  $("ranking-price").style.setProperty("--columns", made.price.length);
  $("ranking-price").replaceChildren(...made.price.map(rankingPanel));
  $("ranking-sentences").replaceChildren(...made.sentences.map(([rule, sentence]) =>
    make("li", null, make("code", null, rule), ` ${sentence}`)));
}

function rankingTable({ title, head, rows }) {
  const body = rows.map(([[rule], ...entries]) => make("tr", null, make("th", { scope: "row" }, rule),
    entries.map(([text, tone]) => make("td", null, tone === "best" ? make("strong", null, text) : text))));
  const named = make("table", { class: "table", "aria-label": title },
    make("thead", null, make("tr", null, head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", null, body));
  return [make("p", { class: "title" }, title), boxed(title, named)];
}

function rankingHeat({ title, columns, rows }) {
  const body = rows.map(([rule, values]) => make("tr", null, make("th", { scope: "row" }, rule),
    values.map((value) => {
      const cell = make("td", { class: value === null ? "none" : null }, value === null ? "–" : value.toFixed(0));
      if (value === null) return cell;
      const background = viridis(value / 100);
      cell.style.background = css(background);
      cell.style.color = readable(background);
      return cell;
    })));
  const named = make("table", { class: "matrix narrow", "aria-label": title },
    make("thead", null, make("tr", null, make("th"), columns.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", null, body));
  return [make("p", { class: "setting" }, title), boxed(title, named)];
}

function rankingPanel({ title, points }) {
  const plot = make("div", { class: "plot wide", role: "img", "aria-label": `price of robustness, ${title}` });
  chart(plot, () => ({
    data: [false, true].map((best) => {
      const own = points.filter((point) => point[3] === best);
      return {
        type: "scatter", mode: "markers", x: own.map(([, x]) => x), y: own.map(([, , y]) => y),
        text: own.map(([name]) => plain(name)),
        marker: best ? { size: 11, symbol: "circle-open", color: color("--accent"), line: { width: 2 } }
          : { size: 6, color: color("--faint") },
        hovertemplate: "%{text}<br>nobody attacks: %{x:.1f}<br>worst attack: %{y:.1f}<extra></extra>",
      };
    }),
    layout: {
      margin: { l: 46, r: 6, t: 6, b: 40 },
      xaxis: { title: { text: "accuracy, nobody attacks (%)", standoff: 2 }, nticks: 5 },
      yaxis: { title: { text: "accuracy, worst attack (%)", standoff: 2 }, range: [-2, 102], dtick: 25 },
    },
  }));
  return make("figure", null, make("figcaption", null, title), plot);
}
