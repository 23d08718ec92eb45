"""Runs as tables: what varies among them, and cells over seeds.

A table of one's own runs is an artifact as those of the paper are, without published numbers:
terminal, Markdown, LaTeX, CSV, figures and the page draw it as they draw them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from byzantium.core import ByzantiumError, notation
from byzantium.core.options import options_of
from byzantium.papers import Artifact, Cell, MeasuredCell, Picture, ResultTable, worst
from byzantium.reports import palette
from byzantium.runs import Result, Run

# Runs that differ in these alone are one cell: none of them says what is trained.
WITHIN = ("seed", "record", "evaluate_every")
# What can be the rows or the columns of a table.
NAMES = tuple(field.name for field in options_of(Run) if field.name not in WITHIN)
# What is always said of a setting; the rest only where settings differ in it.
SAID = ("data", "model", "partition", "n", "f", "momentum", "rounds")
# How much of a digest tells versions of a plugin apart.
DIGEST = len("sha256:") + 8
Values = dict[str, Any]


def pivots(
    results: Iterable[Result],
    rows: Sequence[str] = (),
    columns: str = "",
    worst_case: bool = False,
) -> list[ResultTable]:
    """Put runs into tables, whose cells are means over seeds.

    All runs of a table have the same settings, apart from its rows, its columns and the seed. What
    else varies makes several tables, the largest first: nothing but seeds is ever averaged over.

    - `results`: results of runs; those of other jobs are left out.
    - `rows`: the fields of a run that make the rows, such as ("rule", "momentum"); by default
      "rule", or what else varies.
    - `columns`: the field of a run that makes the columns; by default "attack", or what else
      varies.
    - `worst_case`: show in each cell the worst of all attacks.

    Returns the tables, in a form that the terminal, files, figures and the page can show.

    >>> from pathlib import Path
    >>> def done(rule: str, attack: str) -> Result:
    ...     run = Run(rule=rule, attack=attack)
    ...     return Result(run, Path("results"), "completed", [], {"accuracy": 90.0})
    >>> attacks = ("Mimic()", "BitFlip()")
    >>> (table,) = pivots(done(rule, attack) for rule in ("Mean()", "Krum()") for attack in attacks)
    >>> table.artifact.title, len(table.cells)
    ('Rule by attack', 4)
    """
    trained = [(result, result.job) for result in results if isinstance(result.job, Run)]
    several = _versions([run for _, run in trained])
    found = [(result, described(run, several)) for result, run in trained]
    varies = varying([values for _, values in found])
    over = ("attack",) if worst_case else ()
    if set(over) & {*rows, columns}:
        raise ByzantiumError("a table of the worst case cannot have attacks as its rows or columns")
    usual = "partition" if worst_case else "attack"
    rows, columns = _chosen([name for name in varies if name not in over], rows, columns, usual)
    hidden = (*rows, columns, *over)
    tables: dict[tuple[Any, ...], list[tuple[Result, Values]]] = {}
    for result, values in found:
        setting = tuple(v for name, v in values.items() if name not in hidden)
        tables.setdefault(setting, []).append((result, values))
    places = sorted(tables, key=lambda place: (-len(tables[place]), [order(v) for v in place]))
    ordered = [tables[place] for place in places]
    told = [name for name in varies if name not in hidden]
    return [
        _table(some, rows, columns, told, k if len(ordered) > 1 else 0, worst_case)
        for k, some in enumerate(ordered, 1)
    ]


def own_runs(results: Iterable[Result], comparisons: Sequence[ResultTable]) -> list[Result]:
    """The results that belong to none of some artifacts.

    - `results`: any results.
    - `comparisons`: the artifacts.

    >>> own_runs([], [])
    []
    """
    shown = {job for comparison in comparisons for job in comparison.artifact.jobs}
    return [result for result in results if result.job not in shown]


def described(run: Run, several: Collection[str] = ()) -> Values:
    """What tells a run from others; its rule without the f, which is that of the run.

    several: plugins of which there are several versions. Of others, what is named tells them.
    """
    values = {name: getattr(run, name) for name in NAMES}
    split = (text.rpartition(" ") for text in run.plugin)
    versions = [f"{name} {digest[:DIGEST]}" for name, _, digest in split if name in several]
    return {**values, "rule": without_f(run.rule), "plugin": ", ".join(versions)}


def _versions(runs: Iterable[Run]) -> set[str]:
    """The names of plugins that some runs used in different versions."""
    used = {text for run in runs for text in run.plugin}
    names = [text.rpartition(" ")[0] for text in used]
    return {name for name in names if names.count(name) > 1}


def without_f(rule: str) -> str:
    """A rule in our notation, without its f.

    >>> without_f("Bucketing(s=2) >> Krum(f=5, m=2)"), without_f("TrimmedMean(f=3)")
    ('Bucketing(s=2) >> Krum(m=2)', 'TrimmedMean()')
    """
    return palette.F.sub("", rule)


def varying(all_values: Sequence[Values]) -> list[str]:
    """The names of which there are several values."""
    return [name for name in NAMES if len({values[name] for values in all_values}) > 1]


def _chosen(
    varies: Sequence[str], rows: Sequence[str], columns: str, usual: str
) -> tuple[list[str], str]:
    """Which names are rows and columns, where that was not said; `usual` are the columns."""
    for name in (*rows, *([columns] if columns else [])):
        if name not in NAMES:
            hint = notation.hint(name, NAMES)
            raise ByzantiumError(
                f"rows and columns are settings of a run, and {name!r} is none{hint}"
            )
    if columns in rows:
        raise ByzantiumError(f"{columns} cannot be rows and columns at once")
    left = [name for name in varies if name not in rows and name != columns]
    if not columns:
        others = [name for name in left if name != "rule" or rows]
        columns = usual if usual in left or not others else others[-1]
        left = [name for name in left if name != columns]
    if not rows:
        first = "rule" if columns != "rule" else "attack"
        rows = [first] if first in left or not left else left[:1]
    return list(rows), columns


def _table(
    found: Sequence[tuple[Result, Values]],
    rows: Sequence[str],
    columns: str,
    told: Sequence[str],
    number: int,
    worst_case: bool,
) -> ResultTable:
    names, values = [*rows, columns], found[0][1]
    attacks = {result_values["attack"] for _, result_values in found}
    keys = [*names, "attack"] if worst_case else names
    cells = _cells(found, keys)
    notes = ""
    if worst_case:
        cells, notes = _worst(cells, names, len(attacks))
    y = "loss" if any("loss" in result.summary for result, _ in found) else "accuracy"
    what = ", ".join(palette.short(name, values[name]) for name in told)
    title = f"{' and '.join(map(_title, rows))} by {_title(columns)}" + (
        f": {what}" if told else ""
    )
    made = Artifact(
        f"{'-'.join(rows)}-by-{columns}" + (f"-{number}" if number else ""),
        title[0].upper() + title[1:],
        setting({name: v for name, v in values.items() if name not in keys}, told),
        ", ".join(map(_title, names)),
        Picture("grid", rows[0], columns, y=y)
        if worst_case
        else Picture("curves", "", columns, tuple(rows), y=y),
        tuple(compared.cell for compared in cells),
        notes,
    )
    return ResultTable(made, tuple(cells))


def _cells(found: Sequence[tuple[Result, Values]], names: Sequence[str]) -> list[MeasuredCell]:
    """A cell for all runs with the same values of these names."""
    cells: dict[tuple[Any, ...], dict[int, Result]] = {}
    for result, values in found:
        seeds = cells.setdefault(tuple(values[name] for name in names), {})
        assert isinstance(result.job, Run)
        # Runs with one seed that record different things are one training; what is done counts.
        if result.job.seed not in seeds or result.done:
            seeds[result.job.seed] = result
    return [
        MeasuredCell(
            Cell(dict(zip(names, key, strict=True)), tuple(result.job for result in results)),
            None,
            results,
        )
        for key, seeds in sorted(cells.items(), key=lambda item: [order(v) for v in item[0]])
        for results in [tuple(seeds[seed] for seed in sorted(seeds))]
    ]


def _worst(
    cells: Sequence[MeasuredCell], names: Sequence[str], attacks: int
) -> tuple[list[MeasuredCell], str]:
    """Of the cells that differ in their attack the worst; and what must be said of them all."""
    groups: dict[tuple[Any, ...], list[MeasuredCell]] = {}
    for compared in cells:
        key = tuple(compared.cell.labels[name] for name in names)
        groups.setdefault(key, []).append(compared)
    found, fewer = [], 0
    for key, group in groups.items():
        one = worst(group) or group[0]
        labels = dict(zip(names, key, strict=True))
        found.append(dataclasses.replace(one, cell=Cell(labels, one.cell.jobs)))
        fewer += sum(bool(c.values or c.diverged) for c in group) < attacks
    notes = f"Each cell shows the worst of {attacks} attack{'s' * (attacks > 1)}"
    some = f"; in {fewer} of {len(found)} cells, not all of them are done." if fewer else "."
    return found, notes + some


def order(value: Any) -> tuple[Any, ...]:
    """A key by which values of any one name are sorted: names as in the paper, numbers by size."""
    if isinstance(value, str):
        return (1, *palette.order(value))
    return (0, -1.0 if value is None else float(value))


def _title(name: str) -> str:
    return name.replace("_", " ")


def setting(values: Mapping[str, Any], told: Iterable[str] = ()) -> str:
    """What is fixed, in words: what is always said, and what is told besides."""
    names = [*SAID, *(name for name in told if name not in SAID)]
    there = [name for name in names if values.get(name) is not None]
    return ", ".join(_words(name, values[name]) for name in there)


def _words(name: str, value: Any) -> str:
    if name == "rounds":
        return f"{value} rounds"
    if name == "partition":
        return palette.short(name, value)
    if isinstance(value, str):
        return value.removesuffix("()")
    return palette.short(name, value)
