// -- the page -------------------------------------------------------------------------------------

function head() {
  const { runs, headline } = report;
  $("headline").hidden = !headline;
  if (headline) {
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
  $("failures").replaceChildren(...[...grouped(failed, (run) => run.reason)].map(([reason, same]) =>
    make("li", null, `${count(same.length, "run")} failed: ${reason}`)));
  const made = report.surroundings.length ? ` Runs made with ${report.surroundings.join("; ")}.` : "";
  $("made").textContent = `Written on ${report.made} by byzantium ${report.byzantium}.${made}`;
  const links = [["ranking", "ranking"], ["worst", "worst case"], ["artifacts", "the paper"],
    ["curves", "curves"], ["trust", "weights"], ["runs", "runs"]].filter(([id]) =>
    (id !== "artifacts" || report.artifacts.length) && (id !== "ranking" || report.ranking));
  $("contents").replaceChildren(...links.map(([id, text]) => make("a", { href: `#${id}` }, text)));
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
scrolling($("contents"));
scrolling($("table"));
ranking();
refreshers.push(worstCase);
artifacts();
explorer();
trust();
runTable();
viewer();
resizing();
printing();
refresh();
openFragment();
if (report.live) follow();
root.dataset.ready = "";
