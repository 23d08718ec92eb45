"""Replays in Markdown: repeated runs, each beside the released one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from byzantium.papers import CAUSES, IMAGES, Replay, artifact, compare, published, replays
from byzantium.reports import text_tables
from byzantium.reports.escaping import folded
from byzantium.reports.formats import how_many, markdown_table
from byzantium.reports.text_tables import NONE, Entry, TextTable
from byzantium.runs import Store
from byzantium.tables import POINTS, MeasuredCell, ResultTable, Version

# The training losses of a repeated run are as logged within this, relatively.
LOGGED = 1e-5
WHAT = """\
## The released runs, repeated

The authors released their code and their logs. From these the random numbers of their runs can be
computed again: the initial model, the order of the samples, the dropout masks and the buckets. A
run with the same settings and numbers should repeat the released run of its seed.
"""
WHY = """\
The released runs were computed on a GPU, these on a CPU, which adds numbers in another order and so
rounds differently. Training amplifies such differences, most of all under attack: from some round
on, no repetition on another device can be equal to the last digit.
"""
CHANGED = """\
Repetitions from a changed initial model were made with `scripts/perturbed_run.py`.
"""
#: How the table of repeated runs is read.
LEGEND = """\
Equal: at how many evaluations in a row, from the first, the test accuracy (of 9,984 images) is the
published one to the last digit. Losses: the largest relative difference of the logged training
losses before that ends. Published, ours: the mean accuracy of the last five evaluations, with this
seed, and in brackets by how much ours is higher; for an unfinished run, the round it has reached.
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
    yield WHAT
    yield (
        f"**{len(cells)} of the {len(published.keys())} published cells were repeated with the "
        f"random numbers of the released runs, in {how_many(len(found))}.**\n"
    )
    yield "".join(f"- {line}\n" for line in _agreement(found))
    yield WHY
    yield from _exceptions(found)


def _agreement(found: Sequence[Replay]) -> Iterator[str]:
    """How far repeated runs agree with the released ones, a sentence or two for each stage."""
    logged = [_first_losses(replay) for replay in found if replay.loss_differences]
    if logged:
        yield (
            f"**First losses.** In {sum(gap <= LOGGED for gap in logged)} of "
            f"{how_many(len(logged))} the training losses of the first three logged rounds differ "
            f"from the logs by at most {small(LOGGED)}, relatively."
        )
    with_curve = [replay for replay in found if replay.differences]
    if not with_curve:
        return
    yield (
        f"**First accuracy.** In {sum(replay.equal > 0 for replay in with_curve)} of "
        f"{how_many(len(with_curve))} the test accuracy of the first evaluation equals the "
        f"published one to the last digit: the same number of {IMAGES:,} images is classified "
        "correctly."
    )
    whole = [replay.equal for replay in with_curve if replay.final is not None]
    if not whole:
        return
    yield (
        f"**Later accuracies.** {how_many(len(whole))} reached the end. Of their "
        f"{published.EVALUATIONS} evaluations the first {median(whole):g} equal the published ones "
        f"to the last digit in the median, the first {max(whole)} in the best run."
    )
    final = [bool(replay.agrees) for replay in found if replay.agrees is not None]
    yield (
        f"**Final accuracies.** In {sum(final)} of these {len(final)} the mean of the last five "
        "evaluations agrees ([what this means](#how-it-was-made)) with that of the released run of "
        "the same seed."
    )


def _first_losses(replay: Replay) -> float:
    """The largest relative difference at the first three logged rounds."""
    return max([gap for _, gap in sorted(replay.loss_differences.items())][:3])


def small(number: float, digits: int = 0) -> str:
    """A small number with an exponent of as few digits as it needs.

    >>> small(1e-5), small(0.00032, 1)
    ('1e-5', '3.2e-4')
    """
    return f"{number:.{digits}e}".replace("e-0", "e-")


def _exceptions(found: Sequence[Replay]) -> Iterator[str]:
    """A line for each run whose beginning or end differs, with the cause."""
    lines = []
    for replay in found:
        what = []
        if replay.loss_differences and (gap := _first_losses(replay)) > LOGGED:
            what.append(f"the first losses differ by up to {small(gap, 1)}")
        if replay.differences and not replay.equal:
            gap = next(iter(replay.differences.values()))
            images = round(gap / 100 * IMAGES)
            plural = "s" * (abs(images) != 1)
            what.append(f"the first accuracy differs by {images:+d} image{plural}")
        if replay.agrees is False and replay.final is not None:
            theirs, ours = replay.final
            what.append(f"it ends at {ours:.2f}, published {theirs:.2f}")
        if what:
            name = replay.cell.cell.name
            cause = CAUSES.get((name, replay.seed)) or f"not shown{_growth(replay)}"
            which = f"`{replay.artifact} {name}`, seed {replay.seed}"
            lines.append(f"- {which}: {'; '.join(what)}. Cause: {cause}.\n")
    if lines:
        summary = f"Where they differ, and why ({how_many(len(lines))})"
        yield folded(summary, f"{CHANGED}\n{''.join(lines)}")


def _growth(replay: Replay) -> str:
    """How far the losses move apart, as a part of a sentence; empty if none were logged."""
    gaps = replay.loss_differences
    if not gaps:
        return ""
    first, most = min(gaps), max(gaps, key=gaps.__getitem__)
    return (
        f"; the relative difference of the losses grows from {small(gaps[first])} in round {first} "
        f"to {small(gaps[most])} in round {most}"
    )


def text_table(table: ResultTable) -> TextTable:
    """The repeated runs of an artifact, a row for each that evaluated at least once."""
    rows = []
    for replay in replays(table):
        equal = f"{replay.equal} of {len(replay.differences)}" if replay.curve else NONE
        losses = NONE if (gap := replay.loss_difference) is None else small(gap)
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
    yield from _bucketing(pairs)


def _bucketing(pairs: Sequence[tuple[MeasuredCell, MeasuredCell]]) -> Iterator[str]:
    """Whether bucketing helps with either kind of masks, from pairs of cells: fresh, shared."""
    ends = {
        (*(one.labels[key] for key in ("aggregator", "attack", "momentum")), one.labels["s"]): (
            other.value or 0.0,
            one.value or 0.0,
        )
        for one, other in pairs
    }
    gains = [
        (shared - ends[(*setting, 1)][0], fresh - ends[(*setting, 1)][1])
        for (*setting, s), (shared, fresh) in ends.items()
        if s == 2 and (*setting, 1) in ends
    ]
    if gains:
        higher = [sum(gain > POINTS for gain in kind) for kind in zip(*gains, strict=True)]
        yield (
            f"Does bucketing help? Of {len(gains)} settings that were run with s = 1 and s = 2 and "
            f"with both kinds of masks, s = 2 ends more than {POINTS} points higher than s = 1 in "
            f"{higher[0]} with shared masks and in {higher[1]} with fresh ones.\n"
        )


def _apart(one: MeasuredCell, other: MeasuredCell) -> bool:
    """Whether two cells end differently; two that collapsed end alike."""
    if one.collapsed or other.collapsed or one.value is None or other.value is None:
        return bool(one.collapsed) != bool(other.collapsed)
    return abs(one.value - other.value) > one.tolerance
