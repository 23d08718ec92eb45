// -- the data, and small tools --------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
const report = JSON.parse(await unpacked($("data").textContent));
const labels = new Map(Object.entries(report.labels));

/** The text in what was compressed and written in base64. */
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const label = (text) => labels.get(text) ?? text;

/** An element. Texts among the children become text; nothing is ever read as HTML. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const note = (text) => make("p", { class: "faint" }, text);

/** Text as plotly shows it: it reads a few tags, of which a text has none. */
const plain = (text) =>
  String(text).replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);

/** A command, broken between words only; a click selects all of it. */
const commandOf = (text) => make("code", { class: "command" },
  text.split(" ").flatMap((word, k) => [k ? " " : "", make("span", null, word)]));

function grouped(items, key) {
  const groups = new Map();
  for (const item of items) {
    const name = key(item);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(item);
  }
  return groups;
}

const distinct = (items, key) => [...grouped(items, key).keys()];
const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
const naturally = (a, b) =>
  typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

// -- colors --------------------------------------------------------------------------------------

const { palette } = report;
const VIRIDIS = palette.scale;
for (const [name, [light, dark]] of Object.entries(palette.colors)) {
  root.style.setProperty(`--${name}`, `light-dark(${light}, ${dark})`);
}
// The rules of the paper have the same color in every report and figure; others take what is left.
const otherRules = distinct([...report.runs, ...report.artifacts.flatMap((one) => one.cells)]
  .filter((item) => item.kind && !palette.rules[item.kind]), (item) => item.kind).sort(naturally);
const turn = (names, k) => names[k % names.length];
const probe = document.body.appendChild(make("i", { hidden: "" }));

/** The red, green and blue of a color of the style sheet, in the present theme. */
function channels(name) {
  probe.style.color = name.startsWith("--") ? `var(${name})` : name;
  return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
}
const css = (rgb) => `rgb(${rgb.map(Math.round).join(",")})`;
const color = (name) => css(channels(name));
const between = (a, b, share) => a.map((value, k) => value + (b[k] - value) * share);
const ruleColor = (kind) =>
  `--${palette.rules[kind] ?? turn(palette.other_rules, otherRules.indexOf(kind))}`;
function viridis(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  const k = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return between(channels(VIRIDIS[k]), channels(VIRIDIS[k + 1]), at - k);
}

/** Black or white, whichever is easier to read on a color. */
function readable(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#000" : "#fff";
}

// -- charts: drawn when they come into view -------------------------------------------------------

const charts = [];
const waiting = [];
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.find((one) => one.element === entry.target);
    chart.visible = entry.isIntersecting;
    request(chart);
  }
}, { rootMargin: "250px" });

function chart(element, build, options = {}) {
  const made = { element, build, options, visible: false, stale: true };
  charts.push(made);
  watcher.observe(element);
  return made;
}

function request(chart) {
  if (!chart.visible || !chart.stale || waiting.includes(chart)) return;
  waiting.push(chart);
  if (waiting.length === 1) requestAnimationFrame(drawNext);
}

/** One chart a frame, so that scrolling stays smooth. */
function drawNext() {
  const next = waiting[0];
  if (next.visible && next.stale) draw(next);
  waiting.shift();
  if (waiting.length) requestAnimationFrame(drawNext);
}

function draw(chart) {
  chart.stale = false;
  const { data, layout } = chart.build();
  if (!data.some((trace) => trace.x.length)) {
    Object.assign(layout, { annotations: [{ text: "no results yet", showarrow: false, xref: "paper",
      yref: "paper", x: 0.5, y: 0.5 }], xaxis: { visible: false }, yaxis: { visible: false } });
  }
  const grid = { gridcolor: color("--line"), zeroline: false, linecolor: color("--line"),
    automargin: false };
  const axes = Object.keys({ xaxis: {}, yaxis: {}, ...layout }).filter((name) => /^[xy]axis/.test(name));
  Plotly.react(chart.element, data, {
    margin: { l: 38, r: 6, t: 6, b: 26 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: color("--faint") },
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), align: "left",
      font: { color: color("--ink"), size: 12 }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--faint"), activecolor: color("--accent") },
    hovermode: "closest",
    showlegend: false,
    dragmode: false,
    // Said, because plotly finds a new size later than it is printed.
    width: chart.element.clientWidth,
    height: chart.element.clientHeight,
    ...layout,
    ...Object.fromEntries(axes.map((name) => [name, { ...grid, ...layout[name] }])),
  }, { displayModeBar: false, displaylogo: false, ...chart.options });
}

function redraw(some = charts) {
  for (const chart of some) {
    chart.stale = true;
    request(chart);
  }
}

// -- filters --------------------------------------------------------------------------------------

const FACETS = [["data", "Data"], ["model", "Model"], ["partition", "Partition"],
  ["momentum", "Momentum"], ["rule", "Rule"], ["mixing", "Before the rule"], ["attack", "Attack"]];
const ALONE = "nothing";
const chosen = new Map(FACETS.map(([name]) => [name, new Set()]));
const refreshers = [];

/** Whether the filters leave a run or a cell; where nothing is chosen, everything is. */
const passes = (item) => FACETS.every(([name]) =>
  !chosen.get(name).size || item[name] === undefined || chosen.get(name).has(item[name]));
const shown = () => report.runs.filter(passes);

/** Settings and their runs, the setting with the most runs first. */
const bySize = (runs) => [...grouped(runs, (run) => run.setting)].sort((a, b) =>
  b[1].length - a[1].length || a[0] - b[0]);

function filters() {
  const same = [];
  for (const [name, title] of FACETS) {
    const values = distinct(report.runs, (run) => run[name]);
    if (typeof values[0] === "number") values.sort(naturally);
    if (values.length < 2) {
      if (values[0]) same.push(`${title.toLowerCase()} ${label(values[0])}`);
      continue;
    }
    const chips = values.map((value) => {
      const box = make("input", { type: "checkbox", name, value });
      box.addEventListener("change", () => {
        chosen.get(name)[box.checked ? "add" : "delete"](value);
        refresh();
      });
      return make("label", { class: "chip", title: value }, box,
        make("span", null, value === "" ? ALONE : label(value)));
    });
    $("filters").append(make("fieldset", null, make("legend", null, title), chips));
  }
  $("filter").hidden = !$("filters").childElementCount;
  $("filter").addEventListener("click", () => {
    $("filters").hidden = !$("filters").hidden;
    $("filter").setAttribute("aria-expanded", String(!$("filters").hidden));
  });
  if (same.length) $("filters").append(note(`The same in all runs: ${same.join(", ")}.`));
  $("clear").addEventListener("click", () => {
    for (const set of chosen.values()) set.clear();
    for (const box of document.querySelectorAll("#filters input")) box.checked = false;
    refresh();
  });
}

function refresh() {
  $("count").textContent = `${shown().length} of ${report.runs.length} runs shown`;
  $("clear").hidden = [...chosen.values()].every((set) => !set.size);
  for (const each of refreshers) each();
  redraw();
}

// -- the worst case -------------------------------------------------------------------------------

// So many tables are open; of the others only their settings are seen.
const OPEN = 2;

function worstCase() {
  const left = report.tables.map((table) => [table, table.cells.filter((cell) =>
    passes(cell) && (cell.value !== null || cell.diverged))]).filter(([, cells]) => cells.length);
  const made = left.map(([table, cells], k) => matrix(table, cells, k < OPEN));
  $("matrices").replaceChildren(...(made.length ? made : [note("No finished run passes the filters.")]));
  const one = left.length && left.every(([, cells]) => cells.every((cell) => cell.seeds === 1));
  $("chance").textContent = one ? "One seed cannot show whether two numbers differ by more than chance." : "";
}

/** The worst mean over seeds, where more or less is better; that one diverged is worse than anything. */
function worstOf(cells, less) {
  const goodness = (cell) => (cell.diverged ? -Infinity : less ? -cell.value : cell.value);
  return cells.reduce((worst, cell) => (goodness(cell) < goodness(worst) ? cell : worst));
}

/** Rules in the order of the paper, each with its rows: what stands before it, and its cells. */
function matrix(table, cells, open) {
  const columns = distinct(cells, (cell) => cell.column);
  const judged = table.judged && columns.length > 1;
  const byRule = table.rows.length === 1 && table.rows[0] === "rule";
  const heads = columns.map((text) => {
    const { notation } = cells.find((cell) => cell.column === text);
    return make("th", { scope: "col", title: notation }, twoLines(text, notation));
  });
  const head = make("tr", null, byRule ? make("th", { class: "beside-rows" }) : null, make("th"),
    judged ? [make("th", { scope: "col", class: "worst" }, "worst"), make("th")] : null, heads);
  const groups = grouped(cells, (cell) => (byRule ? cell.rule : cell.row));
  // The rule stands beside its rows, or on a phone above them; the style sheet shows one of both.
  const bodies = [...groups].map(([rule, own]) => {
    const rows = [...grouped(own, (cell) => (byRule ? cell.mixing : cell.row))];
    const { kind } = own[0];
    const beside = () => make("th", { class: "beside-rows", rowspan: rows.length, title: rule },
      dot(kind), twoLines(label(rule), rule));
    const above = make("th", { colspan: columns.length + 3, title: rule }, dot(kind), label(rule));
    return make("tbody", null, byRule ? make("tr", { class: "above-rows" }, above) : null,
      rows.map(([row, same], k) => make("tr", null, byRule && !k ? beside() : null,
        make("th", { scope: "row", class: "mixing", title: same[0].text },
          byRule ? label(row) || "alone" : row),
        judged ? [numberCell(table, worstOf(same, table.less), same.length, columns.length),
          make("td", { class: "gap" })] : null,
        columns.map((column) => numberCell(table, same.find((cell) => cell.column === column) ?? null)))));
  });
  const named = make("table", { class: "matrix", "aria-label": table.fixed },
    make("thead", null, head), bodies);
  const seeds = distinct(cells, (cell) => cell.seeds);
  const { title } = report.metrics[table.measure];
  const what = table.measure === "accuracy" ? "" : `${title}${table.less ? ", less is better" : ""}; `;
  const said = `${what}${table.fixed}; ${seeds.length === 1 ? count(seeds[0], "seed") :
    `${Math.min(...seeds)} to ${Math.max(...seeds)} seeds`}`;
  const box = make("div", { class: "box" }, named);
  const notes = table.notes ? [note(table.notes)] : [];
  return open ? make("div", null, make("p", { class: "setting" }, said), notes, box)
    : make("details", { class: "fold" }, make("summary", null, said), notes, box);
}

/** The paper’s name, and under it the parameters where they must be said, else our name if it is another. */
function twoLines(text, notation) {
  const [, name, parameters] = text.match(/^(\w+)\((.*)\)$/s) ?? [null, text, ""];
  const [ours] = notation.split("(");
  if (parameters) return [name, make("small", null, parameters)];
  return [name, ours && ours !== name ? make("small", { class: "ours" }, ours) : null];
}

function dot(kind) {
  const element = make("i", { class: "dot" });
  element.style.background = `var(${ruleColor(kind)})`;
  return element;
}

/** A cell over seeds; of the worst case, of how many attacks, if not of all there are. */
function numberCell({ measure }, found, of, all) {
  const kind = of === undefined ? "" : "worst";
  if (found === null) return make("td", { class: "none" }, "–");
  const part = of < all ? make("small", null, `of ${count(of, "attack")}`) : null;
  if (found.diverged) {
    const several = found.seeds > 1 && !part;
    const seeds = several ? make("small", null, `${found.diverged} of ${found.seeds}`) : null;
    return make("td", { class: `${kind} diverged` }, "diverged", part, seeds);
  }
  const written = (value, digits) =>
    (percent(measure) ? value.toFixed(1) : String(Number(value.toPrecision(digits))));
  const spread = found.deviation === null ? null : make("small", null, `± ${written(found.deviation, 2)}`);
  const title = kind ? `${found.column}, ${count(found.seeds, "seed")}` : count(found.seeds, "seed");
  const cell = make("td", { class: kind, title }, written(found.value, 3), spread, part);
  if (!percent(measure)) return cell; // it has no scale
  const background = viridis(found.value / 100);
  cell.style.background = css(background);
  cell.style.color = readable(background);
  return cell;
}

// -- tables and figures of the paper --------------------------------------------------------------

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
  const box = make("div", { class: "box" });
  if (drawing) {
    const what = drawing === bars ? "the attackers’ share of the weight" : "the numbers";
    section.append(make("details", { class: "fold" }, make("summary", null, what), box));
  } else {
    section.append(box);
  }
  const nothing = note("Nothing of this passes the filters.");
  section.append(nothing);
  refreshers.push(() => {
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
    said.push(digits(value, y) + spread);
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
    refreshers.push(() => { figure.hidden = !inside.some(passes); });
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

// -- learning curves ------------------------------------------------------------------------------

/** A rule and what stands before it, as short as it can be said. */
const pipeline = (run) => [run.mixing, run.rule].filter((part) => part).map(label).join(" >> ");

function explorer() {
  const names = Object.keys(report.metrics).filter((y) => report.runs.some((run) => run.series[y]));
  $("quantity").append(...names.map((y) => make("option", { value: y }, report.metrics[y].title)));
  const own = chart($("explorer"), explored, { displayModeBar: true, modeBarButtons: [
    ["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] });
  for (const id of ["setting", "quantity", "logarithmic"]) {
    $(id).addEventListener("change", () => redraw([own]));
  }
  refreshers.push(() => {
    const before = $("setting").value;
    const left = bySize(shown()).map(([setting]) => String(setting));
    $("setting").replaceChildren(...left.map((setting) =>
      make("option", { value: setting }, report.settings[setting])));
    if (left.includes(before)) $("setting").value = before;
  });
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
  const [setting, y] = [$("setting").value, $("quantity").value];
  const type = $("logarithmic").checked ? "log" : "linear";
  const mixings = distinct(report.runs, (run) => run.mixing).sort(naturally);
  const runs = shown().filter((run) => String(run.setting) === setting && run.series[y]);
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
    showlegend: true, uirevision: [setting, y, type].join(),
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

// -- who was listened to --------------------------------------------------------------------------

function trust() {
  const select = $("choice");
  const able = report.runs.map((run, number) => ({ run, number })).filter(({ run }) => run.weights);
  const chosenRun = () => report.runs[select.value];
  const own = [chart($("standing"), () => standing(chosenRun()))];
  $("caution").textContent = report.caution;
  const about = () => {
    const run = chosenRun();
    for (const id of ["about", "share", "does", "suspicion", "caution"]) $(id).hidden = !run;
    document.querySelector("#trust .beside").hidden = !run;
    document.querySelector("#trust details").hidden = !run;
    if (run) {
      const words = (text) => report.words[label(text)] ?? label(text);
      const rule = [run.mixing && label(run.mixing), words(run.rule)].filter((part) => part).join(" >> ");
      $("about").textContent = run.attack ? `${rule} under ${words(run.attack)}` : rule;
      $("share").textContent = listened(run);
      $("does").textContent = report.rules[run.kind] ? `${label(run.rule)}: ${report.rules[run.kind]}` : "";
      $("suspicion").textContent = suspected(run);
      $("heat").replaceChildren(...heat(run));
      $("standing").style.height = `${Math.min(Math.max(run.n * 17, 220), 700) + 60}px`;
    }
    $("run").replaceChildren(...(run ? configuration(run) :
      [note("No run that recorded weights passes the filters.")]));
    redraw(own);
  };
  select.addEventListener("change", about);
  refreshers.push(() => {
    const before = select.value;
    const left = able.filter(({ run }) => passes(run));
    select.replaceChildren(...[...grouped(left, ({ run }) => run.setting)].map(([setting, some]) =>
      make("optgroup", { label: report.settings[setting] }, some.map(({ run, number }) =>
        make("option", { value: number },
          `${pipeline(run)} · ${label(run.attack)} · seed ${run.seed}`)))));
    // The run in which attackers were listened to most tells most.
    const most = left.reduce((best, one) =>
      (best === null || (one.run.trust.share ?? -1) > (best.run.trust.share ?? -1) ? one : best), null);
    const wanted = left.find(({ number }) => String(number) === before) ?? most;
    if (wanted) select.value = wanted.number;
    about();
  });
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** Whom the rule listened to, in words, and what that means. */
function listened({ trust: { weight, share }, n, q }) {
  const all = sum(weight);
  if (!all) return "No worker counted.";
  const effective = all ** 2 / sum(weight.map((one) => one ** 2));
  const uneven = effective > n - 0.05 ? `All ${n} workers counted alike.`
    : `Weights so uneven amount to ${effective.toFixed(1)} workers with equal weights, out of ${n}.`;
  if (share === null) return `${q ? "" : "Nobody attacked. "}${uneven}`;
  const even = q / n;
  const means = share > 1.5 * even ? "The rule trusted them most, and followed them."
    : share < 0.5 * even ? "The rule mostly left them out."
    : "The rule could not tell them from honest workers.";
  return `The ${count(q, "attacker")} had ${(100 * share).toFixed(1)} % of the weight; with equal weights, ` +
    `they would have ${(100 * even).toFixed(0)} %. ${means} ${uneven}`;
}

/** Who went unheard, and whether those were the attackers, which a simulation knows. */
function suspected({ trust: { unheard, enough }, n, q, attack }) {
  if (!enough) return "The weights of so few evaluations do not show who went unheard.";
  if (!unheard.length) return "No worker clearly went unheard: none had a mean weight below half of an equal share by more than chance.";
  const bad = unheard.filter((worker) => worker >= n - q).length;
  const who = `Clearly unheard, with a mean weight below half of an equal share by more than chance: ${unheard.join(", ")}.`;
  if (!attack) return who;
  return `${who} Of these ${unheard.length}, ${bad} ${bad === 1 ? "is an attacker" : "are attackers"} and ` +
    `${unheard.length - bad} honest.`;
}

/** Each worker’s mean weight in equal shares, and its spread over the rounds. */
function standing(run) {
  if (!run) return { data: [], layout: {} };
  const { trust: { weight, spread }, n, q } = run;
  const workers = weight.map((_, k) => k);
  const each = (of) => workers.map((k) => of(k >= n - q));
  const data = [{
    type: "bar", orientation: "h", y: workers, x: weight,
    error_x: { type: "data", array: spread, thickness: 1, width: 2, color: color("--faint") },
    marker: { color: each((bad) => color(`--${bad ? palette.attacker : palette.honest}`)),
      pattern: { shape: each((bad) => (bad ? "/" : "")), solidity: 0.4 } },
    text: each((bad) => (bad ? "attacker" : "worker")), textposition: "none",
    hovertemplate: "%{text} %{y}: %{x:.3~g} of an equal share<extra></extra>",
  }];
  const line = { type: "line", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1,
    line: { color: color("--faint"), width: 1, dash: "dot" } };
  const layout = {
    bargap: 0.2, margin: { l: 48, r: 10, t: 8, b: 42 }, shapes: [line],
    xaxis: { title: { text: "mean weight; 1 is an equal share" }, rangemode: "tozero" },
    yaxis: { title: { text: "worker" }, autorange: "reversed", showgrid: false },
  };
  return { data, layout };
}

/** A row for each worker, a column for each stretch of rounds; the brighter, the more it counted. */
function heat({ weights, n, q }) {
  // Where all count alike that is the middle of the scale.
  const top = Math.max(2 / n, ...weights.rows.flat());
  const every = Math.ceil(weights.round.length / 6);
  const rows = weights.rows[0].map((_, worker) => {
    const bad = worker >= n - q;
    const who = bad ? `attacker ${worker}` : String(worker);
    return make("tr", { class: bad ? "bad" : null }, make("th", { scope: "row" }, who),
      weights.rows.map((row, k) => {
        const cell = make("td", { title: `${bad ? "attacker" : "worker"} ${worker}, until round ` +
          `${weights.round[k]}: ${row[worker].toPrecision(3)}` });
        cell.style.background = css(viridis(row[worker] / top));
        return cell;
      }));
  });
  const last = weights.round.length - 1;
  const rounds = weights.round.map((at, k) => make("th", { scope: "col" },
    make("span", null, k === last || (k % every === 0 && k + every / 2 <= last) ? at : "")));
  const scale = make("div", { class: "scale" }, "0", make("i"), `${top.toPrecision(2)} of the weight`);
  scale.querySelector("i").style.background = `linear-gradient(to right, ${VIRIDIS.join(",")})`;
  return [make("table", { class: "heat" }, make("tbody", null, rows),
    make("tfoot", null, make("tr", null, make("th", null, "until round"), rounds))), scale];
}

function configuration(run) {
  const { changed } = run;
  const byDefault = Object.entries(report.defaults).filter(([name]) => !(name in changed));
  const said = (value) => (Array.isArray(value) ? value.join(", ") : String(value ?? "–"));
  const rows = (entries, kind) => entries.map(([name, value]) => make("tr", { class: kind },
    make("th", { scope: "row" }, name.replaceAll("_", " ")), make("td", null, said(value))));
  const results = [
    ["status", run.ending],
    ...(run.reason ? [["reason", run.reason]] : []),
    ["accuracy", run.accuracy === null ? null : `${run.accuracy.toFixed(2)} %`],
    ...(run.success_rate === null ? [] : [["success rate", `${run.success_rate.toFixed(2)} %`]]),
    ["took", run.seconds === null ? null : duration(run.seconds)],
    ...Object.entries(run.promises),
  ];
  return [
    make("p", null, commandOf(run.command)),
    make("table", null, rows(results, "result"),
      rows(Object.entries(changed), "changed")),
    run.command ? make("details", { class: "fold" }, make("summary", null, "settings that have their default"),
      make("table", null, rows(byDefault, "default"))) : null,
  ].filter((part) => part !== null);
}

// -- the page -------------------------------------------------------------------------------------

function head() {
  const { runs, headline } = report;
  if (headline) {
    $("headline").hidden = false;
    $("sentence").textContent = headline.sentence;
    $("on").textContent = headline.setting;
    document.querySelector(".numbers").hidden = headline.low === null;
    for (const id of ["low", "high"]) $(id).textContent = `${(headline[id] ?? 0).toFixed(0)} %`;
  }
  const how = grouped(runs, (run) => run.status);
  const counts = [...how.keys()].sort().map((name) => `${how.get(name).length} ${name}`).join(", ");
  const seconds = runs.reduce((sum, run) => sum + (run.seconds ?? 0), 0);
  $("facts").textContent = runs.length
    ? `${count(runs.length, "run")}: ${counts}; ${duration(seconds)} of computing.` : "No runs yet.";
  const failed = runs.filter((run) => run.status === "failed");
  $("failures").append(...[...grouped(failed, (run) => run.reason)].map(([reason, same]) =>
    make("li", null, `${count(same.length, "run")} failed: ${reason}`)));
  const made = report.surroundings.length ? ` Runs made with ${report.surroundings.join("; ")}.` : "";
  $("made").textContent = `Written on ${report.made} by byzantium ${report.byzantium}.${made}`;
  const links = [["worst", "worst case"], ["artifacts", "the paper"], ["curves", "curves"],
    ["trust", "trust"]].filter(([id]) => id !== "artifacts" || report.artifacts.length);
  $("contents").append(...links.map(([id, text]) => make("a", { href: `#${id}` }, text)));
  const scale = document.querySelector(".scale i");
  scale.style.background = `linear-gradient(to right, ${VIRIDIS.join(",")})`;
  scale.parentElement.hidden = report.tables.length && report.tables.every(({ measure }) => !percent(measure));
}

const isDark = matchMedia("(prefers-color-scheme: dark)");

function themes() {
  $("theme").addEventListener("click", () => {
    const now = root.style.colorScheme || (isDark.matches ? "dark" : "light");
    root.style.colorScheme = now === "dark" ? "light" : "dark";
    redraw();
  });
  isDark.addEventListener("change", () => redraw());
}

/** Charts are as wide as the window lets them be. */
function resizing() {
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) redraw();
    width = innerWidth;
  });
}

/** Paper is light, narrow, and cannot be scrolled: everything is drawn for it, and then again. */
function printing() {
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.style.colorScheme;
    root.style.colorScheme = "light";
    root.classList.add("printing");
    for (const chart of charts) if (chart.element.offsetParent) draw(chart);
  });
  addEventListener("afterprint", () => {
    root.style.colorScheme = before;
    root.classList.remove("printing");
    redraw();
  });
}

head();
themes();
filters();
refreshers.push(worstCase);
if (report.artifacts.length) {
  $("artifacts").append(make("h2", null, "The paper’s tables and figures"),
    note(`A cell agrees if our mean over seeds is ${report.criterion}.`));
}
$("artifacts").append(...report.artifacts.map(artifactSection));
explorer();
trust();
resizing();
printing();
refresh();
root.dataset.ready = "";
