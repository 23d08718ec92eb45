"""Tables of results as tables of texts, which Markdown, LaTeX and the terminal show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from byzantium.learning import metrics
from byzantium.reports import measurements
from byzantium.runs import Result
from byzantium.tables import ALIKE, MeasuredCell, ResultTable, terms, tied, worst

NONE = "—"
TEST = "(Welch's t test, 95 %)"
BOLD = (
    f"Bold: the best of each column, and all within {100 * ALIKE:.0f} % of its value that these "
    f"seeds do not show to be worse {TEST}."
)
# Labels whose values are shown without parameters where these do not differ.
SHORTENED = ("rule", "attack")


@dataclass(frozen=True)
class Entry:
    """A text in a table, and its tone: "good", "best", "bad", "faint", "code" or none."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class TextTable:
    """Rows of entries under a head; the first `labels` columns are labels."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    labels: int


# -- rows ---------------------------------------------------------------------------------------


def text_table(table: ResultTable, per_cell: bool = False) -> TextTable:
    """A table in its compact form; or, if numbers were published, with one row for each cell."""
    kind = table.artifact.picture.kind
    if kind == "bars":
        return shares(table)
    if kind == "table" or (per_cell and table.is_published):
        return cells(table, table.cells)
    return grid(table)


def cells(table: ResultTable, shown: Sequence[MeasuredCell]) -> TextTable:
    """A row for each cell: labels, published, ours, difference, verdict."""
    rows = []
    for cell in shown:
        paper, gap = cell.published, cell.difference
        published = f"{paper.mean:.2f} ± {paper.deviation:.2f}" if paper else NONE
        difference = NONE if gap is None or not table.comparable else f"{gap:+.2f}"
        numbers = Entry(published), _ours(cell), Entry(difference), verdict(table, cell)
        rows.append((*labels(table, cell), *numbers))
    return with_labels(table, ("published", "ours", "difference", "verdict"), rows)


def grid(table: ResultTable) -> TextTable:
    """A table with a column for each attack or other setting; its cells are "ours (published)".

    If there are several attacks, the first column is the worst of them. If nothing was published,
    the best cell of each column is marked, with all that are tied with it.
    """
    names, across = axes(table)
    name_of = namer(table)
    heads = list(dict.fromkeys(cell.labels[across] for cell in table.cells))
    rows: dict[tuple[Any, ...], dict[Any, MeasuredCell]] = {}
    for cell in table.cells:
        key = tuple(cell.labels[name] for name in names)
        rows.setdefault(key, {})[cell.labels[across]] = cell
    columns = [[row.get(head) for row in rows.values()] for head in heads]
    titles = [name_of(across, head) for head in heads]
    if has_worst_case(table):
        titles.insert(0, "worst")
        columns.insert(0, [worst(list(row.values())) for row in rows.values()])
    shown = [_column(table, column) for column in columns]
    if has_worst_case(table):
        pairs = zip(shown[0], rows.values(), strict=True)
        shown[0] = [_worst_entry(entry, list(row.values()), len(heads)) for entry, row in pairs]
    listed = tuple(
        (*(Entry(label(name_of, name, v)) for name, v in zip(names, key, strict=True)), *entries)
        for key, entries in zip(rows, zip(*shown, strict=True), strict=True)
    )
    return TextTable((*names, *titles), listed, len(names))


def axes(table: ResultTable) -> tuple[list[str], str]:
    """The labels that make the rows of a grid, and the one that makes its columns."""
    picture = table.artifact.picture
    across = picture.lines[0] if picture.kind == "points" else picture.columns
    names = [name for name in varying(table) if name != across]
    return names or [name for name in table.cells[0].labels if name != across][:1], across


def has_worst_case(table: ResultTable) -> bool:
    """Whether a table has a worst case: several attacks, and a metric by which rules are judged."""
    _, across = axes(table)
    attacks = {cell.labels[across] for cell in table.cells}
    judged = metrics.better(table.artifact.picture.y)
    return across == "attack" and bool(judged) and len(attacks) > 1


def namer(table: ResultTable) -> Callable[[str, Any], str]:
    """A function that names the values of labels, each as briefly as they still differ."""
    values: dict[str, set[str]] = {}
    for cell in table.cells:
        for name, value in cell.labels.items():
            if isinstance(value, str) and value not in terms.BY_LABEL:
                values.setdefault(name, set()).add(value)
    names = {
        name: terms.distinct_names(texts) for name, texts in values.items() if name in SHORTENED
    }
    return lambda name, value: names.get(name, {}).get(value) or terms.short_name(name, value)


def label(name_of: Callable[[str, Any], str], name: str, value: Any) -> str:
    """The value of a label under a head with its name."""
    return name_of(name, value) if isinstance(value, str) else str(value)


def best(column: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """The best cell of a column, then those that are tied with it."""
    there = sorted((c for c in column if c.values), key=lambda c: -c.goodness)
    if not there or len(there[0].values) < 2:
        return there[:1]
    return [c for c in there if tied(there[0].values, c.values)]


def _column(table: ResultTable, column: Sequence[MeasuredCell | None]) -> list[Entry]:
    """The entries of a column; the best are marked, if nothing was published for them."""
    there = [cell for cell in column if cell is not None and cell.values]
    judges = bool(metrics.better(table.artifact.picture.y))
    several = usual_seeds(table) > 1 and not table.is_published
    marked = best(there) if judges and several else []
    entries = [Entry("") if one is None else _brief(table, one) for one in column]
    if len(marked) == len(there):  # no cell is better than another
        return entries
    return [
        Entry(entry.text, "best") if one in marked else entry
        for entry, one in zip(entries, column, strict=True)
    ]


def _worst_entry(entry: Entry, row: Sequence[MeasuredCell], attacks: int) -> Entry:
    """The worst cell of a row beside the worst published one, with the number of attacks."""
    numbers = [cell.published.mean for cell in row if cell.published]
    text = entry.text.partition(" (")[0]
    if len(numbers) == attacks:
        text += f" ({_number(min(numbers))})"
    there = sum(bool(cell.values or cell.diverged) for cell in row)
    if 0 < there < attacks:
        text += f", of {there} attack{'s' * (there > 1)}"
    return Entry(text or NONE, entry.tone if not numbers else "")


def shares(table: ResultTable) -> TextTable:
    """How a rule weights workers: the share of attackers, the largest share, how many count."""
    rows = []
    for cell in table.cells:
        own = labels(table, cell)
        weights = measurements.weights(cell, done=True)
        if not weights:
            rows.append((*own, *[Entry(state(cell) or NONE, "faint")] * 3, _seeds(cell)))
            continue
        facets = cell.jobs[0].facets()
        n, attackers = facets["n"], facets["q"]
        mean = measurements.means(weights)
        total, squares = sum(mean), sum(weight**2 for weight in mean)
        largest = max(range(len(mean)), key=mean.__getitem__)
        who = f"worker {largest}" + ", an attacker" * (largest >= n - attackers)
        texts = (
            f"{measurements.share(mean, attackers):.3f}",
            f"{mean[largest] / total if total else 0.0:.3f} ({who})",
            f"{total**2 / squares if squares else 0.0:.1f} of {n}",
        )
        rows.append((*own, *map(Entry, texts), _seeds(cell)))
    head = ("share on attackers", "largest share", "effective workers", "seeds")
    return with_labels(table, head, rows)


def labels(table: ResultTable, cell: MeasuredCell) -> list[Entry]:
    """The labels by which a cell differs from others, as the first columns of a row."""
    name_of = namer(table)
    return [Entry(label(name_of, name, cell.labels[name])) for name in varying(table)]


def with_labels(
    table: ResultTable, head: Sequence[str], rows: Sequence[tuple[Entry, ...]]
) -> TextTable:
    """A table whose rows begin with `labels`; `head` is that of what follows these."""
    names = varying(table)
    return TextTable((*names, *head), tuple(rows), len(names))


def varying(table: ResultTable) -> list[str]:
    """The labels by which the cells differ; the first label if there is a single cell."""
    all_labels = [cell.labels for cell in table.cells]
    names = list(all_labels[0])
    return [n for n in names if len({labels[n] for labels in all_labels}) > 1] or names[:1]


def state(cell: MeasuredCell) -> str:
    """Why a cell has no number: "diverged", "failed", "unfinished" or "missing"; else empty."""
    if cell.values:
        return ""
    begun = any(result.status in ("unfinished", "running") for result in cell.results)
    states = {"diverged": cell.diverged, "failed": cell.failed, "unfinished": begun}
    return next((name for name, so in (states | {"missing": cell.missing}).items() if so), "")


def verdict(table: ResultTable, cell: MeasuredCell) -> Entry:
    """The verdict on a cell; none in a cheaper version, whose accuracies are not comparable."""
    if not table.comparable or not cell.verdict:
        return Entry(NONE, "faint")
    tones = {"agrees": "good", "missing": "faint"}
    return Entry(cell.verdict, tones.get(cell.verdict, "bad"))


def _number(value: float, y: str = "accuracy", digits: int = 3) -> str:
    """A number with one decimal if it is in percent, else with a number of digits."""
    if metrics.scale(y) == "percent":
        return f"{value:.1f}"
    if abs(value) < 1e-12:  # rounding, where the result is exact
        return "0"
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def other_seeds(cell: MeasuredCell) -> str:
    """How many seeds of a cell have no number, and why."""
    counts = {"diverged": cell.diverged, "failed": cell.failed}
    counts["missing"] = cell.missing - cell.failed
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _ours(cell: MeasuredCell) -> Entry:
    if cell.value is None:
        return Entry(state(cell), "faint")
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.2f}"
    return Entry(f"{cell.value:.2f}{spread} ({_seeds(cell, ' seed').text})")


def _seeds(cell: MeasuredCell, unit: str = "") -> Entry:
    """How many seeds of a cell have a number, and why the others have none."""
    count = len(cell.values)
    plural = "s" * (count != 1) if unit else ""
    return Entry(", ".join(filter(None, [f"{count}{unit}{plural}", other_seeds(cell)])))


def _brief(table: ResultTable, cell: MeasuredCell) -> Entry:
    y = table.artifact.picture.y
    values = measurements.numbers(table, cell)
    published = f" ({_number(cell.published.mean)})" if cell.published else ""
    if not values:
        tone = "bad" if published and cell.verdict == "collapsed" else "faint"
        return Entry((state(cell) or NONE) + published, tone)
    text = _number(fmean(values), y)
    if len(values) > 1:
        text += f" ± {_number(stdev(values), y, 2)}"
    if other_seeds(cell):
        text += f", {other_seeds(cell)}"
    elif not table.is_published and len(values) != usual_seeds(table):
        text += f", {_seeds(cell, ' seed').text}"
    return Entry(text + published, verdict(table, cell).tone if published else "")


def usual_seeds(table: ResultTable) -> int:
    """The most common number of seeds of a cell."""
    counts = Counter(len(cell.values) for cell in table.cells if cell.values)
    return counts.most_common(1)[0][0] if counts else 0


# -- sentences ----------------------------------------------------------------------------------


def outcome(table: ResultTable) -> str:
    """How many cells agree, how many pairs of rules are in the published order, what is missing."""
    parts = []
    if table.is_published and table.comparable:
        looked_at = [c for c in table.cells if c.published and c.verdict != "missing"]
        agree = sum(cell.verdict == "agrees" for cell in looked_at)
        seeds = sorted({len(c.results) - c.missing for c in looked_at}) or [0]
        many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        plural = "s" * (seeds[-1] != 1)
        parts.append(f"{agree} of {len(looked_at)} cells agree ({many} seed{plural})")
    if table.is_published:
        same, pairs = table.order()
        order = f"{same} of {pairs} pairs of rules are in the published order"
        parts.append(order if pairs else "there are no two rules whose order could be compared")
    total = len(table.cells)
    absent = sum(cell.verdict == "missing" for cell in table.cells)
    fewer = sum(bool(cell.missing) for cell in table.cells) - absent
    if absent:
        parts.append(f"{absent} of {total} cells missing")
    if fewer:
        parts.append(f"{fewer} of {total} cells with fewer seeds than asked for")
    if failed := sum(cell.failed for cell in table.cells):
        parts.append(f"{failed} run{'s' * (failed > 1)} failed")
    if table.complete:
        parts.append(f"all {total} cells done")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def meaning(table: ResultTable) -> str:
    """The meaning of the numbers of a grid: the metric, the seeds, and what is bold."""
    title, seeds = table.artifact.picture.title, usual_seeds(table)
    title = title[0].upper() + title[1:]
    if not seeds:
        return f"{title}; no run is finished."
    if seeds == 1:
        return f"{title}; one seed, which cannot show whether two cells differ."
    text = f"{title}; mean ± standard deviation over {seeds} seeds."
    rows = grid(table).rows
    if len(rows) == 1:
        return text
    if not any(entry.tone == "best" for row in rows for entry in row):
        return f"{text} They show no difference between the cells of a column {TEST}."
    return f"{text} {BOLD}"


def results(tables: Sequence[ResultTable]) -> list[Result]:
    """The results of tables, each once; two artifacts may have the same runs."""
    found = (result for c in tables for cell in c.cells for result in cell.results)
    return list({result.folder: result for result in found}.values())


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(42), duration(750), duration(9000)
    ('42 s', '12 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
