// -- one configuration, or two beside each other --------------------------------------------------

// A fragment of the address opens it: #cell-ID, #compare-ID-ID; an ID is the identity of any of its runs.
const FRAGMENT = /^#(?:cell-([0-9a-f]{16})|compare-([0-9a-f]{16})-([0-9a-f]{16}))$/;
const sameConfiguration = (a, b) => a.setting === b.setting && a.text === b.text && a.attack === b.attack;
/** A configuration: the runs that differ in nothing but their seed and in what they record. */
const configurationOf = (run) => report.runs.filter((other) => sameConfiguration(run, other));
const byIdentity = (identity) => report.runs.find((run) => run.identity === identity);
let viewed = null;

/** What a cell shows, as a link to its runs. */
function linked({ runs }, ...children) {
  if (!runs.length) return children;
  const run = report.runs[runs[0]];
  return make("a", { class: "open", href: `#cell-${run.identity}`, "aria-haspopup": "dialog" }, children);
}

function viewer() {
  const dialog = $("viewer");
  dialog.addEventListener("close", () => {
    viewed = null;
    if (FRAGMENT.test(location.hash)) history.replaceState(null, "", location.href.split("#")[0]);
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  $("close").addEventListener("click", () => dialog.close());
  $("link").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      $("copied").textContent = "copied";
    } catch {
      $("copied").textContent = location.href;
    }
  });
  addEventListener("hashchange", openFragment);
  chart($("view-curves"), viewedCurves);
  const standingChart = chart($("view-standing"), () => standing(viewedRun()));
  $("view-metric").addEventListener("change", () => redraw());
  $("view-seed").addEventListener("change", () => {
    fillWeights();
    redraw([standingChart]);
  });
}

/** Open what the address names, or close what is open. */
function openFragment() {
  const dialog = $("viewer");
  const [, one, ...two] = location.hash.match(FRAGMENT) ?? [];
  if (!one && !two[0]) {
    if (dialog.open) dialog.close();
    return;
  }
  viewed = one ? [one] : two;
  $("copied").textContent = "";
  fillViewer();
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  redraw();
}

/** The configurations that are open, each a list of runs. */
const viewedGroups = () => viewed.map(byIdentity).filter((run) => run).map(configurationOf);

function fillViewer() {
  const groups = viewedGroups();
  const missing = groups.length < viewed.length;
  const two = !missing && groups.length === 2;
  $("view-body").hidden = missing;
  $("view-pair").hidden = !two;
  $("view-title").textContent = missing ? "Not in this report"
    : two ? "Two configurations" : inWords(groups[0][0]);
  $("view-about").textContent = missing
    ? "The link names a run that is not among these results: they may have been moved, or not be made yet."
    : two ? "" : `${report.settings[groups[0][0].setting]}; ${resultOf(groups[0])}`;
  if (missing) return;
  offer($("view-metric"), measured(groups.flat()).map((y) => [y, report.metrics[y].title]));
  if (two) $("view-pair").replaceChildren(...comparison(groups));
  const runs = groups.flat();
  offer($("view-seed"), runs.map((run) => [run.identity,
    two ? `${pipeline(run)} · ${label(run.attack)} · seed ${run.seed}` : `seed ${run.seed}`]));
  fillWeights();
}

const viewedRun = () => (viewed ? byIdentity($("view-seed").value) : undefined);

/** The weights, the result and the settings of the chosen run. */
function fillWeights() {
  const run = viewedRun();
  $("view-weights").hidden = !run.weights;
  $("view-none").hidden = Boolean(run.weights);
  if (run.weights) {
    $("view-share").textContent = listened(run);
    $("view-heat").replaceChildren(...heat(run));
    $("view-suspicion").textContent = suspected(run);
    $("view-standing").style.height = `${Math.min(Math.max(run.n * 17, 220), 700) + 60}px`;
  }
  $("view-graph").replaceChildren(...graph(run));
  $("view-run").replaceChildren(...configuration(run));
}

// -- numbers over seeds ---------------------------------------------------------------------------

const deviation = (values) => {
  const middle = mean(values);
  return Math.sqrt(sum(values.map((value) => (value - middle) ** 2)) / (values.length - 1));
};
/** The number by which a run is judged; null unless it is completed. */
const resultFor = (run) => run.accuracy ?? run.loss;
const unitOf = (runs) => (runs.some((run) => run.accuracy !== null) ? " %" : "");
const written = (value, unit) => (unit ? value.toFixed(1) : String(Number(value.toPrecision(3))));

/** Mean and deviation over seeds. */
function overall(runs) {
  const values = runs.map(resultFor).filter((value) => value !== null);
  if (!values.length) return "–";
  const unit = unitOf(runs);
  const spread = values.length > 1 ? ` ± ${written(deviation(values), unit)}` : "";
  return written(mean(values), unit) + spread + unit;
}

/** The result of a configuration in words. */
function resultOf(runs) {
  const parts = [...grouped(runs, (run) => run.status)].map(([name, some]) => `${some.length} ${name}`);
  const what = runs.some((run) => run.accuracy !== null) ? "test accuracy" : "test loss";
  const result = runs.some((run) => resultFor(run) !== null) ? `${what} ${overall(runs)}; ` : "";
  return `${result}${count(runs.length, "seed")}: ${parts.join(", ")}`;
}

/** A line for each seed of one configuration; of two, the mean over seeds of each. */
function viewedCurves() {
  if (!viewed || $("view-body").hidden) return { data: [], layout: {} };
  const y = $("view-metric").value;
  const groups = viewedGroups();
  const two = groups.length === 2;
  const lines = two ? groups.map((runs) => {
    const { x, means } = overSeeds(runs, y);
    return { x, y: means, run: runs[0], name: `${pipeline(runs[0])} · ${label(runs[0].attack)}` };
  }) : groups[0].map((run) => ({ x: run.series.round, y: run.series[y] ?? [], run, name: `seed ${run.seed}` }));
  const data = lines.map(({ x, y: values, run, name }, k) => ({
    type: "scatter", mode: x.length > 1 ? "lines" : "markers", x, y: values, name: plain(name),
    // Two configurations may have the same rule.
    line: { color: color(two && k ? `--${palette.attacker}` : ruleColor(run.kind)), width: 1.8,
      dash: turn(palette.dashes, k) },
    hovertemplate: `${plain(name)}<br>round %{x}: %{y:.4~g}<extra></extra>`,
  }));
  const span = percent(y) ? range(null) : {};
  return { data, layout: {
    showlegend: true, legend: { orientation: "h", y: -0.25, yanchor: "top", font: { color: color("--ink"), size: 12 } },
    margin: { l: 56, r: 10, t: 10, b: 40 },
    xaxis: { rangemode: "tozero", title: { text: "round", standoff: 4 } },
    yaxis: { title: { text: plain(report.metrics[y]?.title ?? "") }, ...span },
  } };
}

// -- two configurations ---------------------------------------------------------------------------

const valueOf = (run, name) => run.changed[name] ?? report.defaults[name];
const said = (value) => (Array.isArray(value) ? value.join(", ") : String(value ?? "–"));
const optionNames = (runs) =>
  distinct([...Object.keys(report.defaults), ...runs.flatMap((run) => Object.keys(run.changed))], (name) => name);
/** Options in which runs differ, apart from what differs within a configuration. */
const differing = (runs) => optionNames(runs).filter((name) => !["seed", "record", "evaluate_every"].includes(name) &&
  distinct(runs, (run) => said(valueOf(run, name))).length > 1);

/** A table of what differs: options, results, and the results of seeds that both have. */
function comparison([a, b]) {
  const unit = unitOf([...a, ...b]);
  const row = (name, one, other, last = "") => make("tr", null, make("th", { scope: "row" }, name),
    [one, other, last].map((text) => make("td", null, text)));
  const signed = (value) => `${value > 0 ? "+" : ""}${written(value, unit)}`.replace("-", "−");
  const finished = (runs) => runs.filter((run) => resultFor(run) !== null);
  const [mine, theirs] = [finished(a), finished(b)];
  const gap = mine.length && theirs.length ? mean(theirs.map(resultFor)) - mean(mine.map(resultFor)) : null;
  const pairs = mine.flatMap((run) => theirs.filter((other) => other.seed === run.seed).map((other) => [run, other]));
  const options = differing([a[0], b[0]]).map((name) =>
    row(name.replaceAll("_", " "), said(valueOf(a[0], name)), said(valueOf(b[0], name))));
  const results = [
    row(unit ? "accuracy" : "loss", overall(a), overall(b), gap === null ? "" : signed(gap)),
    row("seeds", resultOf(a).split("; ").at(-1), resultOf(b).split("; ").at(-1)),
    ...pairs.map(([one, other]) => row(`seed ${one.seed}`, written(resultFor(one), unit),
      written(resultFor(other), unit), signed(resultFor(other) - resultFor(one)))),
  ];
  const heads = ["", "first", "second", "difference"].map((text) => make("th", { scope: "col" }, text));
  const enough = pairs.length > 1 ? [] : [note("One seed cannot show whether two numbers differ by more than chance.")];
  return [boxed("two configurations", make("table", { class: "pair" },
    make("thead", null, make("tr", null, heads)), make("tbody", null, options),
    make("tbody", { class: "results" }, results))), ...enough];
}

