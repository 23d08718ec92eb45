// -- the table of runs ----------------------------------------------------------------------------

// So many rows are shown at first.
const ROWS = 200;
const order = { name: "", up: true };
let everyRow = false;
// The identities of runs whose configurations are compared, at most two.
let marked = [];

/** The columns: a name, the value of a row (its runs), and what the page shows of it. */
function columnsOf(runs, byRun) {
  const unit = unitOf(runs);
  const options = differing(runs).filter((name) => !["rule", "attack"].includes(name));
  const column = (name, value, show = (own) => said(value(own))) => ({ name, value, show });
  const result = (own) => {
    const values = own.map(resultFor).filter((one) => one !== null);
    return values.length ? mean(values) : null;
  };
  const seconds = (own) => {
    const values = own.map((run) => run.seconds).filter((one) => one !== null);
    return values.length ? sum(values) : null;
  };
  return [
    column("rule", ([run]) => pipeline(run)),
    column("attack", ([run]) => label(run.attack)),
    ...options.map((name) => column(name.replaceAll("_", " "), ([run]) => valueOf(run, name))),
    byRun ? column("seed", ([run]) => run.seed) : column("seeds", (own) => own.length),
    column("status", (own) => distinct(own, (run) => run.ending).sort().join(", ")),
    column(unit ? "accuracy" : "loss", result, overall),
    ...(runs.some((run) => run.success_rate !== null)
      ? [column("success rate", ([run]) => run.success_rate)] : []),
    column("time", seconds, (own) => (seconds(own) === null ? "–" : duration(seconds(own)))),
  ];
}

/** By a column; what has no value goes last. */
function sorted(rows, { value }, up) {
  return rows.toSorted((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return up ? naturally(x, y) : naturally(y, x);
  });
}

function runTable() {
  for (const id of ["rows", "group"]) $(id).addEventListener("change", fillRuns);
  $("every").addEventListener("click", () => {
    everyRow = true;
    fillRuns();
  });
  refreshers.push(fillRuns);
}

function fillRuns() {
  const runs = shown();
  marked = marked.filter(byIdentity);
  const byRun = $("rows").value === "runs";
  const rows = byRun ? runs.map((run) => [run])
    : [...grouped(runs, (run) => JSON.stringify([run.setting, run.text, run.attack])).values()];
  const columns = columnsOf(runs, byRun);
  const results = columns.findIndex(({ name }) => name === "status") - 1;
  offer($("group"), [["", "nothing"], ...columns.slice(0, results).map(({ name }) => [name, name])]);
  const by = columns.find(({ name }) => name === order.name);
  const all = by ? sorted(rows, by, order.up) : rows;
  const seen = everyRow ? all : all.slice(0, ROWS);
  const group = columns.find(({ name }) => name === $("group").value);
  const groups = group ? [...grouped(seen, (row) => group.show(row))] : [["", seen]];
  const bodies = groups.map(([text, some]) => make("tbody", null,
    group ? groupHead(`${group.name} ${text}`, some, columns.length + 1) : null,
    some.map((row) => make("tr", null, make("td", null, marker(row[0])),
      columns.map((column, k) => make(k ? "td" : "th", k ? { class: column.name } : { scope: "row" },
        k ? column.show(row) : runLink(row[0], column.show(row))))))));
  const focused = document.activeElement?.dataset?.column;
  $("table").replaceChildren(runs.length ? make("table", { class: "runs" },
    make("thead", null, make("tr", null, make("th", { scope: "col" }, "compare"),
      columns.map(sortButton))), bodies) : note("No run passes the filters."));
  if (focused) document.querySelector(`[data-column="${CSS.escape(focused)}"]`)?.focus();
  markScroll($("table"));
  $("every").hidden = seen.length === all.length;
  $("every").textContent = `show all ${all.length} rows`;
  fillComparison();
}

const runLink = (run, text) => make("a", { href: `#cell-${run.identity}`, title: run.text,
  "aria-haspopup": "dialog" }, text);

/** How many runs a group has, and the range of their results: they may differ in more than seeds. */
function groupHead(text, rows, width) {
  const runs = rows.flat();
  const values = runs.map(resultFor).filter((value) => value !== null);
  const unit = unitOf(runs);
  const between = values.length
    ? `, ${written(Math.min(...values), unit)} to ${written(Math.max(...values), unit)}${unit}` : "";
  return make("tr", { class: "group" }, make("th", { colspan: width, scope: "rowgroup" },
    `${text}: ${count(runs.length, "run")}${between}`));
}

function sortButton({ name }) {
  const on = order.name === name;
  const button = make("button", { type: "button", "data-column": name }, name,
    make("span", { "aria-hidden": "true" }, on ? (order.up ? " ↑" : " ↓") : ""));
  button.addEventListener("click", () => {
    order.up = on ? !order.up : true;
    order.name = name;
    fillRuns();
  });
  return make("th", { scope: "col", "aria-sort": on ? (order.up ? "ascending" : "descending") : "none" }, button);
}

/** A box that chooses a configuration for the comparison; of three, the first is dropped. */
function marker(run) {
  const box = make("input", { type: "checkbox", "data-identity": run.identity,
    "aria-label": `compare ${pipeline(run)}, ${label(run.attack)}, seed ${run.seed}` });
  box.addEventListener("change", () => {
    const others = marked.filter((one) => !sameConfiguration(byIdentity(one), run));
    marked = box.checked ? [...others, run.identity].slice(-2) : others;
    fillComparison();
  });
  return box;
}

function fillComparison() {
  for (const box of document.querySelectorAll("#table [data-identity]")) {
    const run = byIdentity(box.dataset.identity);
    box.checked = marked.some((one) => sameConfiguration(byIdentity(one), run));
  }
  const two = marked.length === 2;
  $("compare").toggleAttribute("aria-disabled", !two);
  if (two) $("compare").href = `#compare-${marked.join("-")}`;
  else $("compare").removeAttribute("href");
  $("compare").textContent = two ? "compare the two configurations"
    : `choose ${2 - marked.length} ${marked.length ? "more" : "configurations"} to compare`;
}

