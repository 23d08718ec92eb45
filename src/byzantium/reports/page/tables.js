// -- the worst case -------------------------------------------------------------------------------

// So many tables are open; of the others only their settings are seen.
const OPEN = 2;

function worstCase() {
  const left = report.tables.map((table) => [table, table.cells.filter((cell) =>
    passes(cell) && (cell.value !== null || cell.diverged))]).filter(([, cells]) => cells.length);
  const opened = new Set([...document.querySelectorAll("#matrices details[open]")].map((one) => one.dataset.of));
  const made = left.map(([table, cells], k) => matrix(table, cells, k < OPEN));
  for (const one of made) if (opened.has(one.dataset.of)) one.open = true;
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
  const side = table.rows.map((name) => name.replaceAll("_", " ")).join(", ");
  const head = make("tr", null, byRule ? make("th", { class: "beside-rows", scope: "col" }, side) : null,
    make("th", { scope: "col", class: "mixing" }, byRule ? make("span", { class: "above-only" }, side) : side),
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
  const box = boxed(table.title, named);
  const notes = table.notes ? [note(table.notes)] : [];
  const titled = [make("h3", { class: "title" }, table.title), make("p", { class: "setting" }, said)];
  return open ? make("div", null, titled, notes, box)
    : make("details", { class: "fold", "data-of": said }, make("summary", null, `${table.title}; ${said}`), notes, box);
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
    return make("td", { class: `${kind} diverged` }, linked(found, "diverged", part, seeds));
  }
  const written = (value, digits) =>
    (percent(measure) ? value.toFixed(1) : String(Number(value.toPrecision(digits))));
  const spread = found.deviation === null ? null : make("small", null, `± ${written(found.deviation, 2)}`);
  const title = kind ? `${found.column}, ${count(found.seeds, "seed")}` : count(found.seeds, "seed");
  const cell = make("td", { class: kind, title }, linked(found, written(found.value, 3), spread, part));
  if (!percent(measure)) return cell; // it has no scale
  const background = viridis(found.value / 100);
  cell.style.background = css(background);
  cell.style.color = readable(background);
  return cell;
}

