"""What is said of an artifact in numbers: the rows that Markdown and the terminal both show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from byzantium.learning import metrics
from byzantium.papers import Compared, Comparison
from byzantium.runs import LARGEST, LAST, Result, Run

NONE = "—"


@dataclass(frozen=True)
class Entry:
    """A text in a table, and its tone: "good", "bad", "faint" or none."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of entries under a head; the first so many columns are labels."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    labels: int


# -- what was measured --------------------------------------------------------------------------


def curves(comparison: Comparison, compared: Compared) -> list[dict[int, float]]:
    """For each seed what the figure shows, by round; as far as it goes, and where it is finite.

    A norm is shown as its ratio to that without momentum, of the same seed.
    """
    y = comparison.artifact.picture.y
    own = [_recorded(result, y) for result in compared.results]
    if y != "norm":
        return own
    labels = {**compared.cell.labels, "momentum": 0.0}
    plain = next((cell for cell in comparison.cells if cell.cell.labels == labels), None)
    if plain is None:
        return [{} for _ in own]
    below = [_recorded(result, y) for result in plain.results]
    return [
        _drawn({at: value / base[at] for at, value in curve.items() if base.get(at)})
        for curve, base in zip(own, below, strict=True)
    ]


def _recorded(result: Result, y: str) -> dict[int, float]:
    return _drawn({line["round"]: line[y] for line in result.metrics if y in line})


def _drawn(curve: dict[int, float]) -> dict[int, float]:
    return {at: value for at, value in curve.items() if abs(value) <= LARGEST}


def measured(comparison: Comparison, compared: Compared) -> list[float]:
    """For each completed seed the number of the cell: of curves the mean of the last five."""
    if comparison.artifact.picture.y in ("accuracy", "error"):
        return compared.values
    pairs = zip(compared.results, curves(comparison, compared), strict=True)
    return [
        fmean(list(curve.values())[-LAST:])
        for result, curve in pairs
        if result.status == "completed" and curve
    ]


def weights(compared: Compared, done: bool = False) -> list[list[float]]:
    """For each seed, of those that are done or of all begun, the mean weight of every worker."""
    return [
        _mean_weights(result)
        for result in compared.results
        if any("weights" in line for line in result.metrics) and (result.done or not done)
    ]


def _mean_weights(result: Result) -> list[float]:
    lines = [line for line in result.metrics if "weights" in line]
    ends = [0, *(line["round"] for line in lines)]
    # The last block is shorter where the number of rounds is no multiple of the others' length.
    lengths = [ends[k + 1] - ends[k] for k in range(len(lines))]
    columns = zip(*(line["weights"] for line in lines), strict=True)
    return [fmean(column, lengths) for column in columns]


def share(weights: Sequence[float], job: Run) -> float:
    """What part of the weight attackers had; none where nobody had any."""
    total = sum(weights)
    return sum(weights[job.n - job.q :]) / total if total else 0.0


def deviation(result: Result) -> float:
    """Of the draws of a demonstration; 0 where it is not known."""
    found = result.metrics[-1].get("deviation", 0.0) if result.metrics else 0.0
    return float(found) if math.isfinite(found) else 0.0


# -- rows ---------------------------------------------------------------------------------------


def table(comparison: Comparison, per_cell: bool = False) -> Table:
    """The compact form; or, of an artifact with published numbers, one row for each cell."""
    kind = comparison.artifact.picture.kind
    if kind == "bars":
        return shares(comparison)
    if kind == "table" or (per_cell and comparison.is_published):
        return cells(comparison, comparison.cells)
    return grid(comparison)


def cells(comparison: Comparison, shown: Sequence[Compared]) -> Table:
    """A row for each cell: labels, published, ours, difference, verdict."""
    names = varying(comparison)
    rows = []
    for compared in shown:
        labels = (Entry(str(compared.cell.labels[name])) for name in names)
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


def grid(comparison: Comparison) -> Table:
    """A column for each attack, or what else the columns are; "ours (published)" in the cells."""
    picture = comparison.artifact.picture
    across = picture.lines[0] if picture.kind == "points" else picture.columns
    names = [name for name in varying(comparison) if name != across]
    if not names:
        names = [name for name in comparison.cells[0].cell.labels if name != across][:1]
    heads = list(dict.fromkeys(compared.cell.labels[across] for compared in comparison.cells))
    rows: dict[tuple[Any, ...], dict[Any, Entry]] = {}
    for compared in comparison.cells:
        labels = compared.cell.labels
        row = rows.setdefault(tuple(labels[name] for name in names), {})
        row[labels[across]] = _brief(comparison, compared)
    listed = tuple(
        (*(Entry(str(label)) for label in labels), *(row.get(head, Entry("")) for head in heads))
        for labels, row in rows.items()
    )
    titles = (head if isinstance(head, str) else f"{across}={head}" for head in heads)
    return Table((*names, *titles), listed, len(names))


def shares(comparison: Comparison) -> Table:
    """How evenly a rule listened, and how much of it was to attackers."""
    names = varying(comparison)
    rows = []
    for compared in comparison.cells:
        labels = (Entry(str(compared.cell.labels[name])) for name in names)
        found = weights(compared, done=True)
        if not found:
            rows.append((*labels, *[Entry(state(compared) or NONE, "faint")] * 3, _seeds(compared)))
            continue
        job = compared.cell.jobs[0]
        assert isinstance(job, Run)
        mean = [fmean(column) for column in zip(*found, strict=True)]
        total, squares = sum(mean), sum(weight**2 for weight in mean)
        largest = max(range(len(mean)), key=mean.__getitem__)
        who = f"worker {largest}" + ", an attacker" * (largest >= job.n - job.q)
        effective = total**2 / squares if squares else 0.0
        rows.append(
            (
                *labels,
                Entry(f"{share(mean, job):.3f}"),
                Entry(f"{mean[largest] / total if total else 0.0:.3f} ({who})"),
                Entry(f"{effective:.1f} of {job.n}"),
                _seeds(compared),
            )
        )
    head = (*names, "share on attackers", "largest share", "effective workers", "seeds")
    return Table(head, tuple(rows), len(names))


def varying(comparison: Comparison) -> list[str]:
    """The labels that tell the cells apart; the first where there is a single cell."""
    all_labels = [compared.cell.labels for compared in comparison.cells]
    names = list(all_labels[0])
    return [n for n in names if len({labels[n] for labels in all_labels}) > 1] or names[:1]


def state(compared: Compared) -> str:
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


def verdict(comparison: Comparison, compared: Compared) -> Entry:
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


def others(compared: Compared) -> str:
    """What became of the seeds that do not count in the number of a cell."""
    counts = {
        "diverged": compared.diverged,
        "failed": compared.failed,
        "missing": compared.missing - compared.failed,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _ours(compared: Compared) -> Entry:
    if compared.value is None:
        return Entry(state(compared), "faint")
    spread = "" if compared.deviation is None else f" ± {compared.deviation:.2f}"
    return Entry(f"{compared.value:.2f}{spread} ({_seeds(compared, ' seed').text})")


def _seeds(compared: Compared, unit: str = "") -> Entry:
    """How many count in a number, and what became of the others."""
    count = len(compared.values)
    plural = "s" * (count != 1) if unit else ""
    return Entry(", ".join(filter(None, [f"{count}{unit}{plural}", others(compared)])))


def _brief(comparison: Comparison, compared: Compared) -> Entry:
    y = comparison.artifact.picture.y
    values = measured(comparison, compared)
    published = f" ({_number(compared.published.mean)})" if compared.published else ""
    if not values:
        tone = "bad" if published and compared.verdict == "diverged" else "faint"
        return Entry((state(compared) or NONE) + published, tone)
    text = _number(fmean(values), y)
    if len(values) > 1:
        text += f" ± {_number(stdev(values), y, 2)}"
    if others(compared):
        text += f", {others(compared)}"
    return Entry(text + published, verdict(comparison, compared).tone if published else "")


# -- sentences ----------------------------------------------------------------------------------


def outcome(comparison: Comparison) -> str:
    """How many cells agree, how many pairs of rules have the published order, what is missing."""
    said = []
    if comparison.is_published and comparison.comparable:
        looked_at = [c for c in comparison.cells if c.published and c.verdict != "missing"]
        agree = sum(compared.verdict == "agrees" for compared in looked_at)
        said.append(f"{agree} of {len(looked_at)} cells agree")
    if comparison.is_published:
        same, pairs = comparison.order()
        order = f"the order of the rules is kept in {same} of {pairs} pairs"
        said.append(order if pairs else "no two rules whose order could be compared")
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


def results(comparisons: Sequence[Comparison]) -> list[Result]:
    """Every result once; two artifacts may be made from the same runs."""
    found = (result for c in comparisons for compared in c.cells for result in compared.results)
    return list({result.folder: result for result in found}.values())


def duration(seconds: float) -> str:
    """In words.

    >>> duration(42), duration(750), duration(9000)
    ('42 s', '12 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
