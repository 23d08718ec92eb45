"""Replays in Markdown: repeated runs, each beside the released one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from byzantium.papers import CAUSES, Replay, artifact, compare, published, replays
from byzantium.reports import text_tables
from byzantium.reports.escaping import folded
from byzantium.reports.formats import markdown_table
from byzantium.reports.text_tables import NONE, Entry, TextTable
from byzantium.runs import Store
from byzantium.tables import MeasuredCell, ResultTable, Version

# The training losses of a repeated run are as logged within this, relatively.
LOGGED = 1e-5
WHY = """\
Each was computed on a CPU; the released ones were on a GPU, which rounds sums in another order. A
training amplifies such differences, most of all under attack, so from some round on no repetition
on another device can be equal to the digit.
"""
#: How the table of repeated runs is read.
LEGEND = """\
Equal: at how many evaluations in a row, from the first, the test accuracy (of 9,984 images) is the
published one to the digit. Losses: the largest relative difference of the logged training losses
before that ends. Published, ours: the mean accuracy of the last five evaluations, with this seed,
and in brackets by how much ours is higher.
"""
MASKS = """\
## Shared and fresh dropout

In the released runs one set of dropout masks serves all workers and all rounds, because the random
generator was restored around every worker. In ours each worker draws its masks anew in each round,
as dropout is usually defined. {count} cells of the main figure were run with both, seed 0. {ends}
"""


def opening(tables: Sequence[ResultTable]) -> Iterator[str]:
    """How many released runs were repeated, how far they are equal, and why they are not further.

    - `tables`: all artifacts; those in their released version count, with the paper's settings.
    """
    repeated = (c for c in tables if c.artifact.version.released and c.comparable)
    listed = [replay for table in repeated for replay in replays(table)]
    if not listed:
        return
    cells = {id(replay.cell) for replay in listed}
    # Two artifacts may have the same run.
    found = list({replay.result.folder: replay for replay in listed}.values())
    logged = [_first_losses(replay) for replay in found if replay.loss_differences]
    final = [bool(replay.agrees) for replay in found if replay.agrees is not None]
    ends = f"The final accuracies of {sum(final)} of these {len(final)} agree." if final else ""
    yield (
        f"**{len(cells)} of the {len(published.keys())} published cells were repeated with the "
        f"random numbers of the released runs ({len(found)} runs).** The training losses of the "
        f"first three logged rounds are the logged ones to {LOGGED:g} in "
        f"{sum(gap <= LOGGED for gap in logged)} of {len(logged)} runs. {_accuracies(found)} "
        f"{ends}\n"
    )
    yield WHY
    yield from _exceptions(found)


def _first_losses(replay: Replay) -> float:
    """The largest relative difference at the first three logged rounds."""
    return max([gap for _, gap in sorted(replay.loss_differences.items())][:3])


def _accuracies(found: Sequence[Replay]) -> str:
    with_curve = [replay for replay in found if replay.differences]
    if not with_curve:
        return ""
    first = sum(replay.equal > 0 for replay in with_curve)
    text = (
        f"The test accuracy is equal to the digit at the first evaluation in {first} of "
        f"{len(with_curve)}"
    )
    whole = [replay.equal for replay in with_curve if replay.final is not None]
    if whole:
        text += (
            f"; of those that were run to their end ({len(whole)}) at {median(whole):g} "
            f"evaluations in a row in the median, and at up to {max(whole)} of "
            f"{published.EVALUATIONS}"
        )
    return f"{text}."


def _exceptions(found: Sequence[Replay]) -> Iterator[str]:
    """A line for each run whose beginning or end differs, with the cause."""
    lines = []
    for replay in found:
        what = []
        if replay.loss_differences and (gap := _first_losses(replay)) > LOGGED:
            what.append(f"the losses differ by {gap:.1e}")
        if replay.differences and not replay.equal:
            gap = next(iter(replay.differences.values()))
            what.append(f"the first accuracy differs by {gap:+.3f} points")
        if replay.agrees is False and replay.final is not None:
            theirs, ours = replay.final
            what.append(f"it ends at {ours:.2f}, published {theirs:.2f}")
        if what:
            name = replay.cell.cell.name
            cause = CAUSES.get((name, replay.seed)) or f"not shown{_growth(replay)}"
            lines.append(f"- {name}, seed {replay.seed}: {'; '.join(what)}. Cause: {cause}.\n")
    if lines:
        yield folded(f"The exceptions ({len(lines)})", "".join(lines))


def _growth(replay: Replay) -> str:
    """How far the losses move apart, as a part of a sentence; empty if none were logged."""
    gaps = replay.loss_differences
    if not gaps:
        return ""
    first, most = min(gaps), max(gaps, key=gaps.__getitem__)
    return (
        f"; the relative difference of the losses grows from {gaps[first]:.0e} in round {first} "
        f"to {gaps[most]:.0e} in round {most}"
    )


def text_table(table: ResultTable) -> TextTable:
    """The repeated runs of an artifact, a row for each that evaluated at least once."""
    rows = []
    for replay in replays(table):
        equal = f"{replay.equal} of {len(replay.differences)}" if replay.curve else NONE
        losses = NONE if (gap := replay.loss_difference) is None else f"{gap:.0e}"
        own = text_tables.labels(table, replay.cell)
        ends = _ends(replay, table.comparable)
        rows.append((*own, *map(Entry, (str(replay.seed), equal, losses)), *ends))
    head = ("seed", "equal", "losses", "published", "ours", "verdict")
    return text_tables.with_labels(table, head, rows)


def _ends(replay: Replay, comparable: bool) -> tuple[Entry, Entry, Entry]:
    """The final accuracies, released and ours, and whether they agree."""
    value = replay.result.accuracy
    if replay.final is None or not comparable:
        cell = replay.cell.published
        last = max((line["round"] for line in replay.result.metrics), default=0)
        ours = Entry(f"at round {last}", "faint") if value is None else Entry(f"{value:.2f}")
        return Entry(f"{cell.mean:.2f}" if cell else NONE), ours, Entry(NONE)
    theirs, counted = replay.final
    text = "diverged" if value is None else f"{value:.2f}"
    verdict = Entry("agrees", "good") if replay.agrees else Entry("differs", "bad")
    return Entry(f"{theirs:.2f}"), Entry(f"{text} ({counted - theirs:+.2f})"), verdict


def masks(store: Store) -> Iterator[str]:
    """What dropout does to the main figure: the cells that end differently with fresh masks."""
    fresh = compare(artifact("figure-main", Version(seeds=1)), store)
    shared = compare(artifact("figure-main", Version(seeds=1, released=True)), store)
    pairs = [
        (one, other)
        for one, other in zip(fresh.cells, shared.cells, strict=True)
        if one.results[0].done and other.results[0].done
    ]
    if not pairs:
        return
    rows = []
    for one, other in pairs:
        if not _apart(one, other):
            continue
        assert other.published is not None
        values = (Entry("diverged" if c.value is None else f"{c.value:.2f}") for c in (other, one))
        published = Entry(f"{other.published.mean:.2f}")
        rows.append((*text_tables.labels(shared, other), published, *values))
    ends = "All end alike." if not rows else f"{len(rows)} of them end differently:"
    yield MASKS.format(count=len(pairs), ends=ends)
    if rows:
        head = ("published (seed 0)", "ours, shared masks", "ours, fresh masks")
        yield markdown_table(text_tables.with_labels(shared, head, rows))


def _apart(one: MeasuredCell, other: MeasuredCell) -> bool:
    """Whether two cells end differently; two that collapsed end alike."""
    if one.collapsed or other.collapsed or one.value is None or other.value is None:
        return bool(one.collapsed) != bool(other.collapsed)
    return abs(one.value - other.value) > one.tolerance
