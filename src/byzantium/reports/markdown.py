"""REPRODUCTION.md, and tables for the terminal: published, ours, difference, verdict."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from byzantium.core import printable, printable_lines
from byzantium.papers import MAKERS, artifact, published_cells
from byzantium.reports import replays, text_tables
from byzantium.reports.escaping import as_code, folded, in_markdown
from byzantium.reports.formats import how_many, markdown_table, section, surroundings
from byzantium.reports.text_tables import Entry, TextTable
from byzantium.runs import Store
from byzantium.tables import (
    COLLAPSED,
    CRITERION,
    POINTS,
    Artifact,
    MeasuredCell,
    ResultTable,
    terms,
)

if TYPE_CHECKING:
    import rich.table

# More missing cells than this are not listed one by one.
LISTED = 4
TONES = {"good": "green", "best": "bold", "bad": "bold red", "faint": "dim", "code": "", "": ""}
INTRODUCTION = """\
# Reproduction

The tables and figures of S. P. Karimireddy, L. He, M. Jaggi: *Byzantine-Robust Learning on
Heterogeneous Datasets via Bucketing*, ICLR 2022, as this library makes them. All numbers below are
generated from the results of runs; only the causes of differences are written by hand.
"""
NAMES = ", ".join(
    f"{t.short} is `{t.member}`" for t in terms.TERMS if t.member not in ("", t.short)
)
RULE = f"""\
An accuracy is the mean of the last five evaluations of a run, in percent, on the test set. A cell
**agrees** if our mean over seeds is {CRITERION}.
A run has **collapsed** if it diverged or guesses: its accuracy is at most {COLLAPSED:g} %.
A cell of ours that collapsed agrees if a published run of it collapsed, too: when that happens is
chance. A repeated run is compared with the released run of its seed in the same way. The order of
two rules is compared where their published numbers, in the same setting, differ by more than
{POINTS} points and two standard deviations over seeds.
Names are the paper's: {NAMES}.
"""
OWN = """\
# Results

Generated from a folder of results; nothing is written by hand. An accuracy is the mean of the last
five evaluations of a run, in percent, on the test set.
"""
CHEAPER = """\
The accuracies of a cheaper version are not comparable with the published ones, so there is no
verdict; only the order of the rules can be compared.
"""
OTHERS = "Runs that belong to none of the tables and figures above."
# Tables 1 and 3 according to the text of the paper.
IN_TEXT = {"rounds": 4500, "long_tail": 512.0}
AS_IN_TEXT = """\
Those of 4500 rounds with a long tail are Tables 1 and 3 as the text of the paper describes them;
the published runs had 2250 rounds.
"""
AS_PUBLISHED = """\
The commands make these as in the paper; with `--seeds`, `--rounds`, `--model` or `--data` they make
cheaper versions.
"""


def markdown(
    artifacts: Sequence[ResultTable],
    store: Store,
    pictures: Mapping[str, str] | None = None,
    own: Sequence[ResultTable] = (),
) -> str:
    """The text of REPRODUCTION.md: the paper's numbers, ours and the difference.

    - `artifacts`: the artifacts to show, in any order; one that was not begun counts as not run.
    - `pictures`: the path of the figure of an artifact, relative to the text, by the artifact's
      `stem`.
    - `own`: tables of runs that belong to no artifact, as `pivots` makes them. Where there are no
      artifacts, the text is of these alone.
    """
    if own and not any(table.begun for table in artifacts):
        provenance = _fenced([_command(store, "RESULTS.md")])
        return "\n".join([OWN, provenance, surroundings(store), *_own(own, pictures)])
    names = list(MAKERS)
    shown = [table for table in artifacts if table.begun]
    shown.sort(key=lambda table: names.index(table.artifact.name))
    shown_names = {table.artifact.name for table in shown}
    parts = [INTRODUCTION, *replays.opening(shown), *_overview(shown, store)]
    parts += ["## How it was made", _fenced([_command(store)]), RULE]
    parts += [folded("The machines", surroundings(text_tables.results(shown)))]
    for table in shown:
        parts += _section(table, (pictures or {}).get(table.artifact.stem))
    if own:
        parts += ["## Other runs", OTHERS]
        if any(vars(result.job).items() >= IN_TEXT.items() for result in text_tables.results(own)):
            parts.append(AS_IN_TEXT)
        parts += _own(own, pictures)
    parts += _not_run([name for name in names if name not in shown_names], store)
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def terminal(table: ResultTable) -> rich.table.Table:
    """An artifact, or a table of runs, as a table for the terminal (of the library rich).

    Where numbers were published, every cell has a row.

    >>> from byzantium.papers import artifact, compare
    >>> from byzantium.tables import Version
    >>> shown = terminal(compare(artifact("table2", Version(only="krum iid")), Store("nowhere")))
    >>> [column.header.plain for column in shown.columns]
    ['aggregator', 'published', 'ours', 'difference', 'verdict']
    """
    released = table.artifact.version.released
    shown = replays.text_table(table) if released else text_tables.text_table(table, per_cell=True)
    title = table.artifact.title
    if table.artifact.cheaper:
        title += f"\ncheaper version: {', '.join(table.artifact.cheaper)}"
    caption = text_tables.outcome(table)
    if not table.artifact.maker:  # a pivot
        caption = " ".join(filter(None, [table.artifact.notes, text_tables.meaning(table)]))
        title += f"\n{table.artifact.fixed}"
    if released:
        caption = " ".join(replays.LEGEND.split())
    if table.is_published and not table.comparable:
        caption += " No verdicts: the accuracies of a cheaper version are not comparable."
    elif table.is_published and not released:
        caption += f" A cell agrees if it is {CRITERION}."
    return drawn(shown, title, caption)


def drawn(table: TextTable, title: str, caption: str) -> rich.table.Table:
    """A table of texts for the terminal."""
    from rich.table import Table
    from rich.text import Text

    rendered = Table(title=Text(printable_lines(title)), caption=Text(printable(caption)))
    for k, head in enumerate(table.head):
        rendered.add_column(Text(printable(head)), justify="left" if k < table.labels else "right")
    for row in table.rows:
        rendered.add_row(*(Text(printable(entry.text), TONES[entry.tone]) for entry in row))
    return rendered


# -- parts of the text --------------------------------------------------------------------------


def _command(store: Store, name: str = "REPRODUCTION.md") -> str:
    # An absolute path would be of no use to the reader.
    root = store.root.name if store.root.is_absolute() else store.root.as_posix()
    return f"byzantium report {shlex.quote(root)} --markdown {name}"


def _overview(shown: Sequence[ResultTable], store: Store) -> Iterator[str]:
    if not shown:
        return
    yield "## In short"
    cells = published_cells(store)
    run = [cell for cell in cells if cell.verdict != "missing"]
    agree = sum(cell.verdict == "agrees" for cell in run)
    yield (
        f"**{len(cells)} accuracies were published (Tables 1 to 4 and the main figure). "
        f"{len(run)} of them were run here as in the paper, with its model, data and rounds, and "
        f"with random numbers of our own: {agree} agree.** {_wider(run)}\n"
    )
    lines = []
    for table in shown:
        if not table.artifact.version.released:
            item, outcome = table.artifact, text_tables.outcome(table)
            lines.append(f"- `{item.name}`{_cheaper(item)}: {outcome[0].lower()}{outcome[1:]}\n")
    yield "".join(lines)
    yield from replays.masks(store)


def _wider(run: Sequence[MeasuredCell]) -> str:
    """How many cells agree only because the criterion is wider than the deviation over seeds."""
    count = sum(cell.verdict == "agrees" and not cell.within_seeds for cell in run)
    if not count:
        return ""
    return (
        f"{count} of these are outside of {POINTS} points and of two standard deviations over "
        "seeds: they agree only by the spread over the last ten evaluations, which for unstable "
        "cells is wide, or because runs collapsed on both sides."
    )


def _cheaper(item: Artifact) -> str:
    """What makes an artifact cheaper than the paper's, in brackets after its name."""
    return f" ({', '.join(item.cheaper)})" if item.cheaper else ""


def _section(table: ResultTable, picture: str | None) -> Iterator[str]:
    item = table.artifact
    yield f"## {item.title}{_cheaper(item)}"
    yield f"`{item.name}`. Fixed: {item.fixed}. Varies: {item.varies}. {item.notes}".rstrip()
    if item.cheaper:
        yield f"Cheaper version: {', '.join(item.cheaper)}."
    yield _fenced([table.command()])
    if picture is not None:
        yield _picture(table, picture)
    if item.version.released:
        yield replays.LEGEND
        yield markdown_table(replays.text_table(table))
        yield from _missing(table)
        return
    if not table.is_published:
        yield f"Nothing was published in numbers; these are ours alone: {_meaning(table)}."
    elif not table.comparable:
        yield CHEAPER
    shown = text_tables.text_table(table)
    yield markdown_table(shown)
    yield from _legend(table)
    done = [result.summary for result in text_tables.results([table]) if result.done]
    took = text_tables.duration(sum(summary.get("seconds", 0.0) for summary in done))
    yield f"**{text_tables.outcome(table)}** {how_many(len(done))} done, which took {took}."
    yield from _failures(table)
    yield from _missing(table)


def _own(own: Sequence[ResultTable], pictures: Mapping[str, str] | None) -> Iterator[str]:
    for table in own:
        yield from section(table)
        if picture := (pictures or {}).get(table.artifact.stem):
            yield f"{_picture(table, picture)}\n"


def _picture(table: ResultTable, path: str) -> str:
    return f"![{in_markdown(table.artifact.title)}]({quote(path)})"


def _meaning(table: ResultTable) -> str:
    """The meaning of the numbers in a table without published ones."""
    picture = table.artifact.picture
    if picture.kind == "bars":
        return (
            "means over all rounds and seeds of the weights of the workers; the effective number "
            "of workers is (sum of weights)² / (sum of squared weights)"
        )
    if picture.kind == "points":
        return f"{picture.title}, the mean over draws"
    if picture.y == "accuracy":
        return "accuracies"
    return f"{picture.title} (the mean of the last five evaluations)"


def _legend(table: ResultTable) -> Iterator[str]:
    """The legend of a compact table with published numbers, and the cells that differ."""
    if not table.is_published or table.artifact.picture.kind == "table":
        return
    count = len(table.cells[0].jobs)
    seeds = f"means over {count} seeds" if count > 1 else "one seed"
    if not table.comparable:
        yield f"In each cell: ours (published); {seeds}."
        return
    yield f"In each cell: ours (published); {seeds}. Cells that differ are bold."
    differ = [c for c in table.cells if c.verdict in ("differs", "collapsed")]
    if differ:
        yield "The cells that differ:"
        yield markdown_table(text_tables.cells(table, differ))


def _failures(table: ResultTable) -> Iterator[str]:
    """Why runs failed: each reason once, as code, in which nothing is Markdown."""
    results = text_tables.results([table])
    counts = Counter(result.reason for result in results if result.status == "failed")
    if counts:
        yield "Failed:"
        spans = ((as_code(reason), count) for reason, count in counts.items())
        yield "".join(f"- {span} ({how_many(count)})\n" for span, count in spans)


def _missing(table: ResultTable) -> Iterator[str]:
    absent = [cell for cell in table.cells if cell.missing]
    if not absent:
        return
    if len(absent) > LISTED:
        yield "The command above makes what is missing; finished runs are not repeated."
        return
    yield "These commands make what is missing:"
    yield _fenced([table.command(cell) for cell in absent])


@functools.cache
def _as_published(name: str) -> tuple[Artifact, frozenset[str]]:
    """An artifact, and the identities of its jobs; there are hundreds, which takes a second."""
    item = artifact(name)
    return item, frozenset(job.identity for job in item.jobs)


def _not_run(names: Sequence[str], store: Store) -> Iterator[str]:
    if not names:
        return
    there = {result.job.identity for result in store if result.done}
    rows = []
    for name in names:
        item, identities = _as_published(name)
        command = ResultTable(item, ()).command()
        done = len(identities & there)
        runs = how_many(len(identities)) + (f", {done} done" if done else "")
        rows.append((Entry(item.title), Entry(runs), Entry(command, "code")))
    yield "## Not run"
    yield AS_PUBLISHED
    yield markdown_table(TextTable(("artifact", "runs", "command"), tuple(rows), 3))


def _fenced(commands: Sequence[str]) -> str:
    return "\n".join(["```", *map(printable, commands), "```"]) + "\n"
