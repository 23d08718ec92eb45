// -- the data, and small tools --------------------------------------------------------------------

const $ = (id) => document.getElementById(id);
const root = document.documentElement;
let report = null;
let labels = new Map();
// Rules that the paper does not have.
let otherRules = [];

/** Take values as the data of the page. */
function adopt(values) {
  report = values;
  labels = new Map(Object.entries(report.labels));
  const cells = report.artifacts.flatMap((one) => one.cells);
  const { rules } = report.palette;
  otherRules = distinct([...report.runs, ...cells].filter(({ kind }) => kind && !rules[kind]),
    ({ kind }) => kind).sort(naturally);
}

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

adopt(JSON.parse(await unpacked($("data").textContent)));
const { palette } = report;
const VIRIDIS = palette.scale;
for (const [name, [light, dark]] of Object.entries(palette.colors)) {
  root.style.setProperty(`--${name}`, `light-dark(${light}, ${dark})`);
}
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
// The rules of the paper have the same color in every report and figure; others take what is left.
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

let charts = [];
const waiting = [];
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = charts.find((one) => one.element === entry.target);
    if (!chart) continue;
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

/** Forget the charts that are no longer on the page. */
function forget() {
  for (const { element } of charts) {
    if (element.isConnected) continue;
    watcher.unobserve(element);
    if (element.data) Plotly.purge(element);
  }
  charts = charts.filter(({ element }) => element.isConnected);
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
let artifactRefreshers = [];

/** Whether the filters leave a run or a cell; where nothing is chosen, everything is. */
const passes = (item) => FACETS.every(([name]) =>
  !chosen.get(name).size || item[name] === undefined || chosen.get(name).has(item[name]));
const shown = () => report.runs.filter(passes);

/** Settings and their runs, the setting with the most runs first. */
const bySize = (runs) => [...grouped(runs, (run) => run.setting)].sort((a, b) =>
  b[1].length - a[1].length || a[0] - b[0]);

/** The filters, made of the values that the runs have. */
function fillFilters() {
  const same = [];
  const sets = [];
  for (const [name, title] of FACETS) {
    const values = distinct(report.runs, (run) => run[name]);
    if (typeof values[0] === "number") values.sort(naturally);
    if (values.length < 2) {
      if (values[0]) same.push(`${title.toLowerCase()} ${label(values[0])}`);
      continue;
    }
    const chips = values.map((value) => {
      const box = make("input", { type: "checkbox", name, value });
      box.checked = chosen.get(name).has(value);
      box.addEventListener("change", () => {
        chosen.get(name)[box.checked ? "add" : "delete"](value);
        refresh();
      });
      return make("label", { class: "chip", title: value }, box,
        make("span", null, value === "" ? ALONE : label(value)));
    });
    sets.push(make("fieldset", null, make("legend", null, title), chips));
  }
  $("filter").hidden = !sets.length;
  if (same.length) sets.push(note(`The same in all runs: ${same.join(", ")}.`));
  $("filters").replaceChildren(...sets);
}

function filters() {
  fillFilters();
  $("filter").addEventListener("click", () => {
    $("filters").hidden = !$("filters").hidden;
    $("filter").setAttribute("aria-expanded", String(!$("filters").hidden));
  });
  $("clear").addEventListener("click", () => {
    for (const set of chosen.values()) set.clear();
    for (const box of document.querySelectorAll("#filters input")) box.checked = false;
    refresh();
  });
}

function refresh() {
  $("count").textContent = `${shown().length} of ${report.runs.length} runs shown`;
  $("clear").hidden = [...chosen.values()].every((set) => !set.size);
  for (const each of [...refreshers, ...artifactRefreshers]) each();
  redraw();
}

// -- boxes that scroll ----------------------------------------------------------------------------

const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => markScroll(target)));

/** Whether an element holds more to the left or right: its edge there fades, and keys scroll it. */
function markScroll(element) {
  const inner = element.scrollWidth - element.clientWidth;
  const more = [element.scrollLeft > 1 ? "left" : "", element.scrollLeft < inner - 1 ? "right" : ""];
  element.dataset.more = more.join(" ").trim();
  if (element.matches("nav")) return; // its links take the focus
  if (inner > 1) element.setAttribute("tabindex", "0");
  else element.removeAttribute("tabindex");
}

function scrolling(element) {
  element.addEventListener("scroll", () => markScroll(element), { passive: true });
  sizes.observe(element);
  return element;
}

/** A table in a box, which scrolls sideways where the table is wider than the page. */
const boxed = (name, ...children) =>
  scrolling(make("div", { class: "box", role: "region", "aria-label": name }, children));

