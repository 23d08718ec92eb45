// -- how much each worker counted -----------------------------------------------------------------

function trust() {
  const select = $("choice");
  const chosenRun = () => byIdentity(select.value);
  const own = [chart($("standing"), () => standing(chosenRun()))];
  $("caution").textContent = report.caution;
  const about = () => {
    const run = chosenRun();
    for (const id of ["about", "share", "does", "suspicion", "caution"]) $(id).hidden = !run;
    document.querySelector("#trust .beside").hidden = !run;
    document.querySelector("#trust details").hidden = !run;
    if (run) {
      $("about").textContent = inWords(run);
      $("share").textContent = listened(run);
      $("does").textContent = report.rules[run.kind] ? `${label(run.rule)}: ${report.rules[run.kind]}` : "";
      $("suspicion").textContent = suspected(run);
      $("heat").replaceChildren(...heat(run));
      $("graph").replaceChildren(...graph(run));
      $("standing").style.height = `${Math.min(Math.max(run.n * 17, 220), 700) + 60}px`;
    }
    $("run").replaceChildren(...(run ? configuration(run) :
      [note("No run that recorded weights passes the filters.")]));
    redraw(own);
  };
  select.addEventListener("change", about);
  refreshers.push(() => {
    const before = select.value;
    const left = report.runs.filter((run) => run.weights && passes(run));
    select.replaceChildren(...[...grouped(left, (run) => run.setting)].map(([setting, some]) =>
      make("optgroup", { label: report.settings[setting] }, some.map((run) =>
        make("option", { value: run.identity },
          `${pipeline(run)} · ${label(run.attack)} · seed ${run.seed}`)))));
    // The run in which attackers counted most shows most.
    const most = left.reduce((best, run) =>
      (best === null || (run.trust.share ?? -1) > (best.trust.share ?? -1) ? run : best), null);
    const wanted = left.find((run) => run.identity === before) ?? most;
    if (wanted) select.value = wanted.identity;
    about();
  });
}

/** A configuration in words: its rule, what stands before it, and its attack. */
function inWords(run) {
  const words = (text) => report.words[label(text)] ?? label(text);
  const rule = [run.mixing && label(run.mixing), words(run.rule)].filter((part) => part).join(" >> ");
  return run.attack ? `${rule} under ${words(run.attack)}` : rule;
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** How much the attackers counted, in words, and what that means. */
function listened({ trust: { weight, share, even }, graph, n, q }) {
  const all = sum(weight);
  if (!all) return "No worker counted.";
  const effective = all ** 2 / sum(weight.map((one) => one ** 2));
  const uneven = effective > n - 0.05 ? `All ${n} workers counted alike.`
    : `Weights so uneven amount to ${effective.toFixed(1)} workers with equal weights, out of ${n}.`;
  if (share === null) return `${q ? "" : "Nobody attacked. "}${uneven}`;
  const equal = graph ? "in plain gossip" : "with equal weights";
  const means = share > 1.5 * even ? "The rule gave them more than an equal share, and followed them."
    : share < 0.5 * even ? "The rule mostly left them out."
    : graph && share < 0.9 * even ? "The rule gave them less, but more than half of it."
    : "The rule did not distinguish them from honest workers.";
  return `The ${count(q, "attacker")} had ${(100 * share).toFixed(1)} % of the weight; ${equal}, ` +
    `they would have ${(100 * even).toFixed(graph ? 1 : 0)} %. ${means} ${uneven}`;
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
    xaxis: { title: { text: `mean weight; 1 is ${run.graph ? "that in plain gossip" : "an equal share"}` },
      rangemode: "tozero" },
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

