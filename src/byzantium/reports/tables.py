"""What is said of an artifact in numbers: the rows that Markdown and the terminal both show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from byzantium.learning import metrics
from byzantium.papers import MeasuredCell, ResultTable, worst
from byzantium.reports import measured, palette
from byzantium.reports.escaping import as_code, in_markdown
from byzantium.runs import Result, Run

# What rules are judged by.
JUDGED = ("accuracy", "loss")
NONE = "—"
TEST = "(Welch's t test, 95 %)"
# Parameters of these are left out where they tell nothing apart; those of all else are the point.
SHORTENED = ("rule", "attack")


@dataclass(frozen=True)
class Entry:
    """A text in a table, and its tone: "good", "best", "bad", "faint", "code" or none."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of entries under a head; the first so many columns are labels."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    labels: int


# -- rows ---------------------------------------------------------------------------------------


def table(comparison: ResultTable, per_cell: bool = False) -> Table:
    """The compact form; or, of an artifact with published numbers, one row for each cell."""
    kind = comparison.artifact.picture.kind
    if kind == "bars":
        return shares(comparison)
    if kind == "table" or (per_cell and comparison.is_published):
        return cells(comparison, comparison.cells)
    return grid(comparison)


def cells(comparison: ResultTable, shown: Sequence[MeasuredCell]) -> Table:
    """A row for each cell: labels, published, ours, difference, verdict."""
    names = varying(comparison)
    rows = []
    for compared in shown:
        labels = _labels(comparison, compared, names)
        cell = compared.published
        published = f"{cell.mean:.2f} ± {cell.deviation:.2f}" if cell else NONE
        gap = compared.difference
        difference = NONE if gap is None or not comparison.comparable else f"{gap:+.2f}"
        rows.append(
            (
                *labels,
                Entry(published),
                _ours(compared),
                Entry(difference),
                verdict(comparison, compared),
            )
        )
    return Table((*names, "published", "ours", "difference", "verdict"), tuple(rows), len(names))


def grid(comparison: ResultTable) -> Table:
    """A column for each attack, or what else the columns are; "ours (published)" in the cells.

    Over several attacks the worst of them goes first. Where nothing was published the best of each
    column is marked, and all that the seeds cannot tell from it.
    """
    names, across = axes(comparison)
    called = namer(comparison)
    heads = list(dict.fromkeys(compared.cell.labels[across] for compared in comparison.cells))
    rows: dict[tuple[Any, ...], dict[Any, MeasuredCell]] = {}
    for compared in comparison.cells:
        labels = compared.cell.labels
        rows.setdefault(tuple(labels[name] for name in names), {})[labels[across]] = compared
    columns = [[row.get(head) for row in rows.values()] for head in heads]
    titles = [called(across, head) for head in heads]
    if judged(comparison):
        titles.insert(0, "worst")
        columns.insert(0, [worst(list(row.values())) for row in rows.values()])
    shown = [_column(comparison, column) for column in columns]
    if judged(comparison):
        pairs = zip(shown[0], rows.values(), strict=True)
        shown[0] = [_worst_entry(entry, list(row.values()), len(heads)) for entry, row in pairs]
    listed = tuple(
        (*(Entry(label(called, name, v)) for name, v in zip(names, labels, strict=True)), *entries)
        for labels, entries in zip(rows, zip(*shown, strict=True), strict=True)
    )
    return Table((*names, *titles), listed, len(names))


def axes(comparison: ResultTable) -> tuple[list[str], str]:
    """The labels that make the rows of a grid, and the one that makes its columns."""
    picture = comparison.artifact.picture
    across = picture.lines[0] if picture.kind == "points" else picture.columns
    names = [name for name in varying(comparison) if name != across]
    return names or [name for name in comparison.cells[0].cell.labels if name != across][:1], across


def judged(comparison: ResultTable) -> bool:
    """Whether there is a worst case: several attacks side by side, and a number to judge by."""
    _, across = axes(comparison)
    attacks = {compared.cell.labels[across] for compared in comparison.cells}
    return across == "attack" and comparison.artifact.picture.y in JUDGED and len(attacks) > 1


def namer(comparison: ResultTable) -> Callable[[str, Any], str]:
    """What labels and their values are called, each as short as it can be among the others."""
    values: dict[str, set[str]] = {}
    for compared in comparison.cells:
        for name, value in compared.cell.labels.items():
            if isinstance(value, str) and value not in palette.BY_NAME:
                values.setdefault(name, set()).add(value)
    names = {name: palette.shortened(texts) for name, texts in values.items() if name in SHORTENED}
    return lambda name, value: names.get(name, {}).get(value) or palette.short(name, value)


def label(called: Callable[[str, Any], str], name: str, value: Any) -> str:
    """In a row, under its name."""
    return called(name, value) if isinstance(value, str) else str(value)


def best(column: Sequence[MeasuredCell]) -> list[MeasuredCell]:
    """The best of some cells first, then what its seeds cannot tell from it."""
    there = sorted((c for c in column if c.values), key=lambda c: -c.goodness)
    if not there or len(there[0].values) < 2:
        return there[:1]
    return [c for c in there if not there[0].differs(c)]


def _column(comparison: ResultTable, column: Sequence[MeasuredCell | None]) -> list[Entry]:
    """The best of those that nobody published, with what cannot be told from it, are marked."""
    there = [compared for compared in column if compared is not None and compared.values]
    judges = comparison.artifact.picture.y in JUDGED
    several = usual(comparison) > 1 and not comparison.is_published
    marked = best(there) if judges and several else []
    entries = [Entry("") if one is None else _brief(comparison, one) for one in column]
    if len(marked) == len(there):  # nothing can be told from anything
        return entries
    return [
        Entry(entry.text, "best") if one in marked else entry
        for entry, one in zip(entries, column, strict=True)
    ]


def _worst_entry(entry: Entry, row: Sequence[MeasuredCell], attacks: int) -> Entry:
    """The worst of a row, beside the worst published; of how many attacks, if not of all."""
    numbers = [compared.published.mean for compared in row if compared.published]
    text = entry.text.partition(" (")[0]
    if len(numbers) == attacks:
        text += f" ({_number(min(numbers))})"
    there = sum(bool(compared.values or compared.diverged) for compared in row)
    if 0 < there < attacks:
        text += f", of {there} attack{'s' * (there > 1)}"
    return Entry(text or NONE, entry.tone if not numbers else "")


def shares(comparison: ResultTable) -> Table:
    """How evenly a rule listened, and how much of it was to attackers."""
    names = varying(comparison)
    rows = []
    for compared in comparison.cells:
        labels = _labels(comparison, compared, names)
        found = measured.weights(compared, done=True)
        if not found:
            rows.append((*labels, *[Entry(state(compared) or NONE, "faint")] * 3, _seeds(compared)))
            continue
        job = compared.cell.jobs[0]
        assert isinstance(job, Run)
        mean = [fmean(column) for column in zip(*found, strict=True)]
        total, squares = sum(mean), sum(weight**2 for weight in mean)
        largest = max(range(len(mean)), key=mean.__getitem__)
        who = f"worker {largest}" + ", an attacker" * (largest >= job.n - job.attacker_count)
        effective = total**2 / squares if squares else 0.0
        rows.append(
            (
                *labels,
                Entry(f"{measured.share(mean, job):.3f}"),
                Entry(f"{mean[largest] / total if total else 0.0:.3f} ({who})"),
                Entry(f"{effective:.1f} of {job.n}"),
                _seeds(compared),
            )
        )
    head = (*names, "share on attackers", "largest share", "effective workers", "seeds")
    return Table(head, tuple(rows), len(names))


def _labels(comparison: ResultTable, compared: MeasuredCell, names: Sequence[str]) -> list[Entry]:
    called, labels = namer(comparison), compared.cell.labels
    return [Entry(label(called, name, labels[name])) for name in names]


def varying(comparison: ResultTable) -> list[str]:
    """The labels that tell the cells apart; the first where there is a single cell."""
    all_labels = [compared.cell.labels for compared in comparison.cells]
    names = list(all_labels[0])
    return [n for n in names if len({labels[n] for labels in all_labels}) > 1] or names[:1]


def state(compared: MeasuredCell) -> str:
    """Why a cell has no number: "diverged", "failed", "unfinished" or "missing"; else empty."""
    statuses = [result.status for result in compared.results]
    if compared.values:
        return ""
    if compared.diverged:
        return "diverged"
    if compared.failed:
        return "failed"
    begun = any(status in ("unfinished", "running") for status in statuses)
    return "unfinished" if begun else "missing"


def verdict(comparison: ResultTable, compared: MeasuredCell) -> Entry:
    """A cheaper version has none: its accuracies are not those of the paper's setting."""
    if not comparison.comparable or not compared.verdict:
        return Entry(NONE, "faint")
    tones = {"agrees": "good", "missing": "faint"}
    return Entry(compared.verdict, tones.get(compared.verdict, "bad"))


def _number(value: float, y: str = "accuracy", digits: int = 3) -> str:
    """What is in percent has one decimal, all else so many digits."""
    if metrics.scale(y) == "percent":
        return f"{value:.1f}"
    if abs(value) < 1e-12:  # rounding, where the result is exact
        return "0"
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def others(compared: MeasuredCell) -> str:
    """What became of the seeds that do not count in the number of a cell."""
    counts = {
        "diverged": compared.diverged,
        "failed": compared.failed,
        "missing": compared.missing - compared.failed,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _ours(compared: MeasuredCell) -> Entry:
    if compared.value is None:
        return Entry(state(compared), "faint")
    spread = "" if compared.deviation is None else f" ± {compared.deviation:.2f}"
    return Entry(f"{compared.value:.2f}{spread} ({_seeds(compared, ' seed').text})")


def _seeds(compared: MeasuredCell, unit: str = "") -> Entry:
    """How many count in a number, and what became of the others."""
    count = len(compared.values)
    plural = "s" * (count != 1) if unit else ""
    return Entry(", ".join(filter(None, [f"{count}{unit}{plural}", others(compared)])))


def _brief(comparison: ResultTable, compared: MeasuredCell) -> Entry:
    y = comparison.artifact.picture.y
    values = measured.numbers(comparison, compared)
    published = f" ({_number(compared.published.mean)})" if compared.published else ""
    if not values:
        tone = "bad" if published and compared.verdict == "collapsed" else "faint"
        return Entry((state(compared) or NONE) + published, tone)
    text = _number(fmean(values), y)
    if len(values) > 1:
        text += f" ± {_number(stdev(values), y, 2)}"
    if others(compared):
        text += f", {others(compared)}"
    elif not comparison.is_published and len(values) != usual(comparison):
        text += f", {_seeds(compared, ' seed').text}"
    return Entry(text + published, verdict(comparison, compared).tone if published else "")


def usual(comparison: ResultTable) -> int:
    """How many seeds most cells have."""
    counts = Counter(len(compared.values) for compared in comparison.cells if compared.values)
    return counts.most_common(1)[0][0] if counts else 0


# -- sentences ----------------------------------------------------------------------------------


def outcome(comparison: ResultTable) -> str:
    """How many cells agree, how many pairs of rules are in the published order, what is missing."""
    said = []
    if comparison.is_published and comparison.comparable:
        looked_at = [c for c in comparison.cells if c.published and c.verdict != "missing"]
        agree = sum(compared.verdict == "agrees" for compared in looked_at)
        seeds = sorted({len(compared.values) for compared in looked_at}) or [0]
        many = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        plural = "s" * (seeds[-1] != 1)
        said.append(f"{agree} of {len(looked_at)} cells agree ({many} seed{plural})")
    if comparison.is_published:
        same, pairs = comparison.order()
        order = f"{same} of {pairs} pairs of rules are in the published order"
        said.append(order if pairs else "there are no two rules whose order could be compared")
    total = len(comparison.cells)
    absent = sum(compared.verdict == "missing" for compared in comparison.cells)
    fewer = sum(bool(compared.missing) for compared in comparison.cells) - absent
    if absent:
        said.append(f"{absent} of {total} cells missing")
    if fewer:
        said.append(f"{fewer} of {total} cells with fewer seeds than asked for")
    if failed := sum(compared.failed for compared in comparison.cells):
        said.append(f"{failed} run{'s' * (failed > 1)} failed")
    if comparison.complete:
        said.append(f"all {total} cells done")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def meaning(comparison: ResultTable) -> str:
    """What a number of a grid is, over how many seeds, and what they can show."""
    title, seeds = comparison.artifact.picture.title, usual(comparison)
    title = title[0].upper() + title[1:]
    if not seeds:
        return f"{title}; no run is finished."
    if seeds == 1:
        return f"{title}; one seed, which cannot show whether two cells differ."
    said = f"{title}; mean ± standard deviation over {seeds} seeds."
    marked = any(entry.tone == "best" for row in grid(comparison).rows for entry in row)
    if len(grid(comparison).rows) == 1:
        return said
    if not marked:
        return f"{said} They show no difference between the cells of a column {TEST}."
    return (
        f"{said} Bold: the best of each column, and all that these seeds do not show to be worse "
        f"{TEST}."
    )


def advice(comparison: ResultTable) -> str:
    """For each column of a grid what is best in it, as Markdown; one seed gives no advice."""
    if usual(comparison) < 2:
        return "One seed cannot show which is best."
    (name, *_), across = axes(comparison)
    called, columns = namer(comparison), dict[Any, list[MeasuredCell]]()
    for compared in comparison.cells:
        columns.setdefault(compared.cell.labels[across], []).append(compared)
    said = []
    for head, column in columns.items():
        if not (found := best(column)):
            continue
        first, *same = found
        text = f"{in_markdown(called(across, head))}: {_named(called, name, first)}"
        text += f" ({first.value:.1f})"
        others = ", ".join(_named(called, name, one) for one in same)
        said.append(text + (f" or {others}" if others else ""))
    return "; ".join(said) + "."


def _named(called: Callable[[str, Any], str], name: str, compared: MeasuredCell) -> str:
    return as_code(called(name, compared.cell.labels[name]))


def results(comparisons: Sequence[ResultTable]) -> list[Result]:
    """Every result once; two artifacts may be made from the same runs."""
    found = (result for c in comparisons for compared in c.cells for result in compared.results)
    return list({result.folder: result for result in found}.values())


def duration(seconds: float) -> str:
    """A time in words.

    - `seconds`: the time.

    >>> duration(42), duration(750), duration(9000)
    ('42 s', '12 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
