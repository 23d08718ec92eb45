// -- learning curves ------------------------------------------------------------------------------

/** A rule and what stands before it, as short as it can be said. */
const pipeline = (run) => [run.mixing, run.rule].filter((part) => part).map(label).join(" >> ");

function explorer() {
  const own = chart($("explorer"), explored, { displayModeBar: true, modeBarButtons: [
    ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  for (const id of ["setting", "quantity", "logarithmic"]) {
    $(id).addEventListener("change", () => redraw([own]));
  }
  refreshers.push(() => {
    // By their texts: the numbers of settings change while runs come in.
    const left = bySize(shown()).map(([setting]) => report.settings[setting]);
    offer($("setting"), left.map((text) => [text, text]));
    offer($("quantity"), measured(report.runs).map((y) => [y, report.metrics[y].title]));
  });
}

/** The metrics that some of these runs recorded. */
const measured = (runs) => Object.keys(report.metrics).filter((y) => runs.some((run) => run.series[y]));

/** Give a menu its options, values with texts; what was chosen stays so if it is there still. */
function offer(select, options) {
  const before = select.value;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
  if (options.some(([value]) => String(value) === before)) select.value = before;
}

/** Over seeds, by round: the mean, and the standard deviation where there are several. */
function overSeeds(runs, y) {
  const found = new Map();
  for (const { series } of runs) {
    series.round.forEach((at, k) => {
      const value = series[y]?.[k] ?? null;
      if (value !== null) found.set(at, [...(found.get(at) ?? []), value]);
    });
  }
  const x = [...found.keys()].sort(naturally);
  const means = x.map((at) => mean(found.get(at)));
  const spread = x.map((at, k) => {
    const values = found.get(at);
    const squares = values.reduce((sum, value) => sum + (value - means[k]) ** 2, 0);
    return values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0;
  });
  return { x, means, spread };
}

/** The runs of one setting: a panel for each attack, all with the same axes. */
function explored() {
  const y = $("quantity").value;
  const setting = report.settings.indexOf($("setting").value);
  const type = $("logarithmic").checked ? "log" : "linear";
  const mixings = distinct(report.runs, (run) => run.mixing).sort(naturally);
  const runs = shown().filter((run) => run.setting === setting && run.series[y]);
  const attacks = distinct(runs, (run) => run.attack);
  const axis = (attack) => (attack === attacks[0] ? "" : attacks.indexOf(attack) + 1);
  const named = new Set();
  const lines = [...grouped(runs, (run) => `${run.text} ${run.attack}`).values()];
  const data = lines.flatMap((same) => {
    const [run] = same;
    const { x, means, spread } = overSeeds(same, y);
    const first = !named.has(pipeline(run));
    named.add(pipeline(run));
    const [r, g, b] = channels(ruleColor(run.kind));
    const both = { type: "scatter", legendgroup: pipeline(run),
      xaxis: `x${axis(run.attack)}`, yaxis: `y${axis(run.attack)}` };
    const band = { ...both, x: [...x, ...x.toReversed()], fill: "toself", mode: "none", hoverinfo: "skip",
      y: [...means.map((m, k) => m + spread[k]), ...means.map((m, k) => m - spread[k]).toReversed()],
      fillcolor: `rgba(${r},${g},${b},0.18)`, showlegend: false, name: "band" };
    const line = { ...both, mode: x.length > 1 ? "lines" : "markers", x, y: means, opacity: 0.9,
      line: { color: css([r, g, b]), width: 1.8, dash: turn(palette.dashes, mixings.indexOf(run.mixing)) },
      // All lines of a rule have one entry in the legend.
      name: plain(pipeline(run)), showlegend: first,
      meta: [run.text, `${run.attack}, ${count(same.length, "seed")}`].map(plain),
      hovertemplate: "<b>%{meta[0]}</b><br>%{meta[1]}<br>round %{x}: %{y:.4~g}<extra></extra>" };
    return spread.some((value) => value > 0) ? [band, line] : [line];
  });
  const wide = $("explorer").clientWidth >= 600;
  const rows = Math.ceil(attacks.length / (wide ? 3 : 1)) || 1;
  const columns = Math.ceil(attacks.length / rows) || 1;
  const height = rows > 1 ? 250 * rows : 380;
  $("explorer").style.height = `${height + 170}px`;
  const layout = {
    // On a phone dragging scrolls.
    dragmode: wide ? "zoom" : false,
    showlegend: true, uirevision: JSON.stringify([$("setting").value, y, type]),
    margin: { l: 56, r: 10, t: 56, b: 40 },
    legend: { orientation: "h", y: -52 / height, yanchor: "top",
      font: { color: color("--ink"), size: 12 } },
    grid: { rows, columns, pattern: "independent", xgap: 0.12, ygap: 0.3 },
    annotations: attacks.map((attack) => ({ text: plain(label(attack)), showarrow: false,
      xref: `x${axis(attack)} domain`, yref: `y${axis(attack)} domain`,
      x: 0, y: 1, yanchor: "bottom", font: { color: color("--ink"), size: 12 } })),
  };
  attacks.forEach((attack, k) => {
    const title = k % columns ? {} : { title: { text: plain(report.metrics[y].title) } };
    const closer = y === "accuracy" ? report.zoom[setting] : null; // the range of accuracies
    const span = percent(y) && type === "linear" ? range(closer) : {};
    layout[`xaxis${axis(attack)}`] = { rangemode: "tozero", matches: k ? "x" : undefined,
      title: { text: "round", standoff: 4 } };
    layout[`yaxis${axis(attack)}`] = { type, ...title, ...span, matches: k ? "y" : undefined };
  });
  return { data, layout };
}

