// -- tables and figures of the paper --------------------------------------------------------------

function artifacts() {
  artifactRefreshers = [];
  const head = [make("h2", null, "The paper’s tables and figures"),
    note(`A cell agrees if our mean over seeds is ${report.criterion}.`)];
  $("artifacts").replaceChildren(...(report.artifacts.length ? head : []),
    ...report.artifacts.map(artifactSection));
  forget();
}

function artifactSection(artifact, place) {
  const section = make("section", { class: "artifact", id: `artifact${place}` },
    make("h3", null, artifact.title));
  const { cheaper } = artifact;
  if (cheaper.length) {
    section.append(make("p", { class: "badge" }, `cheaper version: ${cheaper.join(", ")}`));
  }
  const facts = [["fixed", artifact.fixed], ["varies", artifact.varies], ["note", artifact.notes],
    ["made by", commandOf(artifact.command)]];
  section.append(make("dl", null, facts.filter(([, text]) => text).map(([name, text]) =>
    [make("dt", null, name), make("dd", null, text)])));
  for (const sentence of sentences(artifact)) section.append(make("p", null, sentence));

  const drawing = { curves, bars, points }[artifact.picture.kind];
  const begun = artifact.cells.some((cell) =>
    cell.runs.length || cell.value !== null || cell.theirs?.length);
  if (drawing && begun) section.append(...panels(artifact, drawing));
  const box = boxed(artifact.title);
  if (drawing) {
    const what = drawing === bars ? "the attackers’ share of the weight" : "the numbers";
    section.append(make("details", { class: "fold" }, make("summary", null, what), box));
  } else {
    section.append(box);
  }
  const nothing = note("Nothing of this passes the filters.");
  section.append(nothing);
  artifactRefreshers.push(() => {
    const left = artifact.cells.filter(passes);
    nothing.hidden = left.length > 0;
    box.replaceChildren(...(left.length ? [table(artifact, left)] : []));
  });
  return section;
}

function sentences(artifact) {
  const [same, pairs] = artifact.order;
  const done = artifact.cells.filter((cell) => cell.missing < cell.jobs);
  const said = [];
  if (done.length < artifact.cells.length) {
    said.push(`${done.length} of ${count(artifact.cells.length, "cell")} done.`);
  }
  if (!artifact.published) {
    return [...said, "Nothing was published in numbers for this; the numbers are ours alone."];
  }
  if (artifact.comparable) {
    const looked = done.filter((cell) => cell.published);
    const agree = looked.filter((cell) => cell.verdict === "agrees").length;
    const all = count(looked.length, "cell");
    const seeds = distinct(looked, (cell) => cell.seeds).sort(naturally);
    if (looked.length) {
      said.push(`${agree} of ${all} agree with what was published: the mean over our ` +
        `${seeds.length > 1 ? `${seeds[0]} to ${seeds.at(-1)} seeds` : count(seeds[0], "seed")} is ` +
        `${report.criterion}.`);
    }
  } else {
    said.push("No verdict: the accuracies of a cheaper version are not comparable with the published ones.");
  }
  if (pairs) said.push(`${same} of ${count(pairs, "pair")} of rules ${pairs === 1 ? "is" : "are"} in the published order.`);
  return [said.join(" ")];
}

/** Whether a metric is drawn from 0 to 100. */
const percent = (y) => report.metrics[y]?.scale === "percent";

function digits(value, y) {
  if (percent(y)) return value.toFixed(2);
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/** Rows by columns; in each place what was published, ours, and the difference. */
function table({ picture, published, comparable, cells: all }, cells) {
  const across = picture.kind === "points" ? picture.lines[0] : picture.columns;
  const columns = distinct(cells, (cell) => cell.labels[across]);
  const down = Object.keys(all[0].labels).filter((name) => name !== across &&
    (name === picture.rows || distinct(all, (cell) => cell.labels[name]).length > 1));
  const rows = grouped(cells, (cell) =>
    down.map((name) => cell.words[name]).join(", "));
  const parts = !published ? ["ours"] : comparable ? ["published", "ours", "difference"] : ["published", "ours"];
  const group = (k) => (k ? "" : "group ");
  const heads = columns.map((value) => make("th",
    { colspan: parts.length, class: "group", scope: "colgroup" },
    cells.find((cell) => cell.labels[across] === value).words[across]));
  const under = columns.map(() => parts.map((part, k) =>
    make("th", { class: group(k), scope: "col" }, part)));
  const head = make("thead", null, make("tr", null, make("th"), heads),
    parts.length > 1 ? make("tr", null, make("th"), under) : null);
  const body = [...rows].map(([text, same]) => make("tr", null,
    make("th", { scope: "row" }, rowName(text)),
    columns.map((value) => {
      const cell = same.find((one) => one.labels[across] === value);
      return parts.map((part, k) => make("td", { class: group(k) + part },
        cell ? place(cell, part, picture.y) : ""));
    })));
  return make("table", { class: "table" }, head, make("tbody", null, body));
}

/** Short, and in small what that is in words. */
function rowName(text) {
  const [name, words] = inShort(text);
  return words ? [name, make("small", null, words)] : name;
}

/** What stands in a place of a table. */
function place(cell, part, y) {
  const { published, value } = cell;
  if (part === "published") {
    return published ? `${published.mean.toFixed(2)} ± ${published.deviation.toFixed(2)}` : "–";
  }
  if (part === "difference") {
    if (cell.difference === null) return "–";
    const sign = cell.difference > 0 ? "+" : "";
    const text = `${sign}${cell.difference.toFixed(2)}`.replace("-", "−");
    const mark = cell.verdict === "agrees" ? "✓ agrees" : "≠ differs";
    return [text, make("small", { class: cell.verdict }, mark),
      make("small", { title: report.criterion }, `±${cell.tolerance.toFixed(1)}, ${count(cell.seeds, "seed")}`)];
  }
  const said = [];
  if (value !== null) {
    const spread = cell.deviation === null ? "" : ` ± ${digits(cell.deviation, y)}`;
    said.push(linked(cell, digits(value, y) + spread));
  } else if (!cell.missing) {
    said.push(make("span", { class: cell.state }, cell.state || "–"));
  }
  if (cell.diverged && value !== null) {
    said.push(make("small", { class: "diverged" }, `${cell.diverged} of ${cell.jobs} diverged`));
  }
  if (cell.missing) {
    const whole = value === null && !cell.diverged;
    const absent = cell.missing - cell.failed;
    const parts = [[cell.failed, "failed"], [absent, "missing"]].filter(([number]) => number);
    const what = whole ? cell.state : parts.map(([number, name]) =>
      `${number} of ${cell.jobs} ${name}`).join(", ");
    said.push(make("details", { class: "missing" }, make("summary", null, what),
      cell.reasons.map((reason) => make("p", { class: "reason" }, reason)), commandOf(cell.command)));
  }
  return said;
}

/** A grid of charts, and a legend that hides lines in all of them. */
function panels(artifact, drawing) {
  const { picture, cells } = artifact;
  const style = lineStyle(artifact);
  const hidden = new Set();
  const own = [];
  const columns = distinct(cells, (cell) => cell.labels[picture.columns]).length;
  const few = columns < 4;
  const grid = make("div", { class: few ? "panels few" : "panels" });
  grid.style.setProperty("--columns", Math.max(columns, 2));
  const caption = (cell) => [picture.rows, picture.columns].filter((name) => name in cell.labels)
    .map((name) => inShort(cell.words[name])[0]).join(" · ");
  for (const [text, inside] of grouped(cells, caption)) {
    const plot = make("div", { class: few ? "plot wide" : "plot", role: "img",
      "aria-label": `${artifact.title}: ${text}` });
    const figure = make("figure", null, make("figcaption", null, text), plot);
    grid.append(figure);
    own.push(chart(plot, () => drawing(artifact, inside.filter(passes), style, hidden)));
    artifactRefreshers.push(() => { figure.hidden = !inside.some(passes); });
  }
  const toggle = (text) => {
    hidden[hidden.has(text) ? "delete" : "add"](text);
    redraw(own);
    return !hidden.has(text);
  };
  return [legend(artifact, style, toggle), note(meaningOf(artifact)), grid];
}

/** A name, and what it is in words, if that is said. */
const inShort = (text) => text.match(/^(.*?) \(([a-z ]+)\)$/)?.slice(1) ?? [text];

function legend({ picture, cells }, style, toggle) {
  const lines = picture.lines.length ? [...grouped(cells, style.text)] : [];
  if (picture.lines.length > 1) lines.sort((a, b) => naturally(a[0], b[0]));
  const entries = lines.map(([text, [{ look: [name, dashes] }]]) =>
    [text, make("i", { class: dashes }), `var(--${name})`]);
  if (cells.some((cell) => cell.theirs?.length)) {
    entries.push(["published", make("i", { class: "thin" }), ""]);
  }
  return make("div", { class: "legend" }, entries.map(([text, mark, shade]) => {
    mark.style.borderColor = shade;
    const button = make("button", { type: "button", "aria-pressed": "true" }, mark, text);
    button.addEventListener("click", () => button.setAttribute("aria-pressed", toggle(text)));
    return button;
  }));
}

function meaningOf({ picture, cells }) {
  if (picture.kind === "bars") return `${picture.title}; attackers are hatched`;
  if (picture.kind === "points") return picture.title;
  const published = cells.some((cell) => cell.theirs?.length);
  return `${picture.title}, over rounds${published ? "; thin: published, a line for each seed" : ""}`;
}

/** Lines look as in the figure of the artifact: each cell says how. */
function lineStyle({ picture }) {
  return {
    text: (cell) => picture.lines.map((name) => cell.words[name]).join(", "),
    line: (cell) => ({ color: color(`--${cell.look[0]}`), dash: cell.look[1] }),
  };
}

/** The range of an axis in percent: all of it, or where the lines differ. */
const range = (zoom) => (zoom ? { range: zoom, nticks: 5 } : { range: [0, 102], dtick: 25 });

function curves({ picture, zoom }, cells, style, hidden) {
  const visible = cells.filter((cell) => !hidden.has(style.text(cell)));
  const line = ([x, y], cell, who, more) => ({
    type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y, name: who,
    meta: [plain(`${style.text(cell)}, ${who}`)],
    hovertemplate: "%{meta[0]}<br>round %{x}: %{y:.4~g}<extra></extra>",
    ...more,
  });
  const theirs = visible.flatMap((cell) => cell.theirs.map((curve) => line(curve, cell, "published",
    { opacity: 0.5, line: { ...style.line(cell), width: 0.8 } })));
  const ours = visible.map((cell) => line(cell.ours, cell, "ours", {
    line: { ...style.line(cell), width: 2 },
  }));
  // A cross at the end is where one diverged.
  for (const [k, { diverged, ours: [x] }] of visible.entries()) {
    const size = x.map((at) => (at === x.at(-1) ? 8 : 0));
    if (diverged) Object.assign(ours[k], { mode: "lines+markers", marker: { symbol: "x", size } });
  }
  const closer = zoom[cells[0]?.words[picture.rows]];
  return {
    data: [...(hidden.has("published") ? [] : theirs), ...ours],
    layout: {
      margin: { l: 46, r: 6, t: 6, b: 36 },
      xaxis: { nticks: 4, rangemode: "tozero", title: { text: "round", standoff: 2 } },
      yaxis: { title: { text: plain(picture.title), standoff: 2 },
        ...(percent(picture.y) ? range(closer) : { rangemode: "tozero", nticks: 5 }) },
    },
  };
}

function bars(artifact, cells) {
  const top = Math.max(...artifact.cells.flatMap((cell) => cell.weights ?? []));
  const data = cells.filter((cell) => cell.weights).map(({ weights, honest }) => {
    const each = (of) => weights.map((_, k) => of(k >= honest));
    return {
      type: "bar", x: weights.map((_, k) => k), y: weights,
      text: each((bad) => (bad ? "attacker" : "honest")), textposition: "none",
      marker: {
        color: each((bad) => color(`--${bad ? palette.attacker : palette.honest}`)),
        pattern: { shape: each((bad) => (bad ? "/" : "")), solidity: 0.4 },
      },
      hovertemplate: "worker %{x}, %{text}: %{y:.3f}<extra></extra>",
    };
  });
  const layout = {
    bargap: 0.25,
    margin: { l: 46, r: 6, t: 6, b: 40 },
    xaxis: { title: { text: "worker" }, showgrid: false, dtick: 5 },
    yaxis: { range: [0, 1.05 * top], nticks: 5, title: { text: plain(artifact.picture.title), standoff: 2 } },
  };
  return { data, layout };
}

function points({ picture }, cells, style, hidden) {
  const found = cells.filter((cell) => cell.value !== null && !hidden.has(style.text(cell)));
  const data = [...grouped(found, style.text)].map(([text, own]) => ({
    type: "scatter", mode: "lines+markers", name: text, meta: [plain(text)],
    x: own.map((cell) => cell.labels[picture.x]), y: own.map((cell) => cell.value),
    line: { ...style.line(own[0]), width: 2 },
    hovertemplate: "%{meta[0]}<br>%{x}: %{y:.4~g}<extra></extra>",
  }));
  const over = cells[0]?.labels[picture.columns] ?? "";
  const log = over === "dimension" ? { type: "log", dtick: 1 } : {};
  const positive = found.every((cell) => cell.value > 0);
  const layout = {
    margin: { l: 54, r: 10, t: 6, b: 40 },
    xaxis: { title: { text: plain(over) }, ...log },
    yaxis: { rangemode: "tozero", title: { text: plain(picture.title), standoff: 2 }, ...(positive ? log : {}) },
  };
  return { data, layout };
}

