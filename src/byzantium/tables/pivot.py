"""Pivots: tables of runs by the settings that vary among them, with cells over seeds.

A pivot is a `ResultTable` without published numbers, so that every renderer shows it as it shows
the paper's tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from byzantium.core import ByzantiumError, notation, one_line
from byzantium.core.options import options_of
from byzantium.learning import metrics
from byzantium.runs import Result, Run, without_f
from byzantium.tables.artifact import Artifact, Cell, Picture
from byzantium.tables.results import MeasuredCell, ResultTable, grouped, worst
from byzantium.tables.terms import short_name, sort_key

# Runs that differ in these fields alone are one cell: they train the same thing.
WITHIN = ("seed", "record", "evaluate_every")
# The fields that can be the rows or the columns of a table.
NAMES = tuple(field.name for field in options_of(Run) if field.name not in WITHIN)
# The fields that the text of a setting has where they are set; others where settings differ.
ALWAYS = ("data", "model", "partition", "topology", "n", "f", "momentum", "rounds")
# How many characters of a plugin's digest are shown.
DIGEST = len("sha256:") + 8
Values = dict[str, Any]
MEANING = (
    "B² is the variance of the honest vectors of the first rounds over the square of their mean."
)


def pivots(
    results: Iterable[Result],
    rows: Sequence[str] = (),
    columns: str = "",
    worst_case: bool = False,
    metric: str = "",
    over: str = "round",
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
    - `metric`: the name of the metric that is shown; by default the accuracy, or the loss for
      regression. Completed runs that did not record it are left out.
    - `over`: what curves in figures are drawn over, "round" or simulated "time".

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
    check_axes(rows, columns, worst_case, metric)
    trained = [
        (result, result.job)
        for result in results
        if isinstance(result.job, Run)
        # It has recorded the metric, or may still do so.
        and (not metric or result.status != "completed" or any(metric in m for m in result.metrics))
    ]
    used = {text for _, run in trained for text in run.plugin}
    names = [text.rpartition(" ")[0] for text in used]
    several = {name for name in names if names.count(name) > 1}  # in different versions
    pairs = [(result, fields_of(run, several)) for result, run in trained]
    varies = varying([values for _, values in pairs])
    beaten = ("attack",) if worst_case else ()
    usual = "partition" if worst_case else "attack"
    rows, columns = _axes([name for name in varies if name not in beaten], rows, columns, usual)
    hidden = (*rows, columns, *beaten)
    groups: dict[tuple[Any, ...], list[tuple[Result, Values]]] = {}
    for result, values in pairs:
        key = tuple(v for name, v in values.items() if name not in hidden)
        groups.setdefault(key, []).append((result, values))
    keys = sorted(groups, key=lambda key: (-len(groups[key]), [sort_key(v) for v in key]))
    named = [name for name in varies if name not in hidden]
    options = rows, columns, named, worst_case, metric, over
    return [
        _table(groups[key], *options, number=k if len(keys) > 1 else 0)
        for k, key in enumerate(keys, 1)
    ]


def check_axes(
    rows: Sequence[str] = (), columns: str = "", worst_case: bool = False, metric: str = ""
) -> None:
    """Raise an error unless `pivots` can make tables with these options; it needs no results.

    >>> check_axes(["rule"], "rule")
    Traceback (most recent call last):
    byzantium.ByzantiumError: rule cannot be rows and columns at once
    """
    if worst_case and "attack" in (*rows, columns):
        raise ByzantiumError("a table of the worst case cannot have attacks as its rows or columns")
    names = [one.name for one in metrics.numbers()]
    if metric and metric not in names:
        raise ByzantiumError(
            f"a table shows a metric that is a number, such as accuracy, and {metric!r} is none"
            + notation.hint(metric, names)
        )
    if worst_case and metric and not metrics.better(metric):
        judged = ", ".join(one for one in names if metrics.better(one))
        raise ByzantiumError(
            f"a table of the worst case needs a metric by which rules are judged ({judged}), "
            f"got {metric}"
        )
    for name in (*rows, *([columns] if columns else [])):
        if name not in NAMES:
            hint = notation.hint(name, NAMES)
            raise ByzantiumError(
                f"rows and columns are settings of a run, and {name!r} is none{hint}"
            )
    if columns in rows:
        raise ByzantiumError(f"{columns} cannot be rows and columns at once")


def own_runs(results: Iterable[Result], tables: Sequence[ResultTable]) -> list[Result]:
    """Those of some results that belong to none of some artifacts.

    >>> own_runs([], [])
    []
    """
    shown = {job for table in tables for job in table.artifact.jobs}
    return [result for result in results if result.job not in shown]


def fields_of(run: Run, several: Collection[str] = ()) -> Values:
    """The fields of a run that tables distinguish; its rule is without the f.

    - `several`: the plugins of which there are several versions; others are left out.
    """
    values = {name: getattr(run, name) for name in NAMES}
    split = (text.rpartition(" ") for text in run.plugin)
    versions = [f"{name} {digest[:DIGEST]}" for name, _, digest in split if name in several]
    return {**values, "rule": without_f(run.rule), "plugin": ", ".join(versions)}


def varying(all_values: Sequence[Values]) -> list[str]:
    """The names of fields that have several values."""
    return [name for name in NAMES if len({values[name] for values in all_values}) > 1]


def _axes(
    varies: Sequence[str], rows: Sequence[str], columns: str, usual: str
) -> tuple[list[str], str]:
    """The rows and the columns, chosen from the fields that vary; `usual` are the columns."""
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
    pairs: Sequence[tuple[Result, Values]],
    rows: Sequence[str],
    columns: str,
    named: Sequence[str],
    worst_case: bool,
    metric: str,
    over: str,
    number: int,
) -> ResultTable:
    names, values = [*rows, columns], pairs[0][1]
    attacks = {result_values["attack"] for _, result_values in pairs}
    keys = [*names, "attack"] if worst_case else names
    cells = _cells(pairs, keys, metric)
    notes = ""
    if worst_case:
        cells, notes = _worst(cells, names, len(attacks))
    notes = " ".join(filter(None, [notes, heterogeneity([result for result, _ in pairs])]))
    losses = any("loss" in result.summary for result, _ in pairs)
    y = metric or ("loss" if losses else "accuracy")
    what = [short_name(name, values[name]) for name in named]
    what += [metrics.TABLE[metric].title] if metric else []
    title = f"{' and '.join(map(_title, rows))} by {_title(columns)}"
    title += f": {', '.join(what)}" if what else ""
    # A column that has one value in all rows is not shown: the setting says it.
    one = {name for name in rows if len({row_values[name] for _, row_values in pairs}) == 1}
    fixed = {name: value for name, value in values.items() if name in one or name not in keys}
    artifact = Artifact(
        "-".join([*rows, "by", columns, *filter(None, [metric, str(number or "")])]),
        title[0].upper() + title[1:],
        setting(fixed, named),
        ", ".join(map(_title, names)),
        Picture("grid", rows[0], columns, y=y, x=over)
        if worst_case
        else Picture("curves", "", columns, tuple(rows), y=y, x=over),
        tuple(cell.cell for cell in cells),
        notes,
    )
    return ResultTable(artifact, tuple(cells))


def _cells(
    pairs: Sequence[tuple[Result, Values]], names: Sequence[str], metric: str
) -> list[MeasuredCell]:
    """A cell for all runs with the same values of these names."""
    cells: dict[tuple[Any, ...], dict[int, Result]] = {}
    for result, values in pairs:
        seeds = cells.setdefault(tuple(values[name] for name in names), {})
        assert isinstance(result.job, Run)
        # Runs that differ in what they record are one training; a finished one counts.
        if result.job.seed not in seeds or result.done:
            seeds[result.job.seed] = result
    return [
        MeasuredCell(
            Cell(dict(zip(names, key, strict=True)), tuple(result.job for result in results)),
            None,
            results,
            metric,
        )
        for key, seeds in sorted(cells.items(), key=lambda item: [sort_key(v) for v in item[0]])
        for results in [tuple(seeds[seed] for seed in sorted(seeds))]
    ]


def _worst(
    cells: Sequence[MeasuredCell], names: Sequence[str], attacks: int
) -> tuple[list[MeasuredCell], str]:
    """The worst of the cells that differ only in their attack, and a note on all of them."""
    lowest, fewer = [], 0
    for key, group in grouped(cells, names).items():
        one = worst(group) or group[0]
        labels = dict(zip(names, key, strict=True))
        lowest.append(dataclasses.replace(one, cell=Cell(labels, one.jobs)))
        fewer += sum(bool(c.values or c.diverged) for c in group) < attacks
    notes = f"Each cell shows the worst of {attacks} attack{'s' * (attacks > 1)}"
    some = f"; in {fewer} of {len(lowest)} cells, not all of them are done." if fewer else "."
    return lowest, notes + some


def heterogeneity(results: Iterable[Result]) -> str:
    r"""The limit on :math:`B^2` beside the measured one, in a sentence for each number of workers.

    The measured number is the median over the first rounds of a run; of several runs, the smallest
    and the largest are named, for each data set and partition. Attackers change the model, and so
    what honest workers send: where nobody attacks in some of the runs, only these count. Empty
    where no run has recorded it, as in results of earlier versions, or where f is 0.

    >>> from pathlib import Path
    >>> lines = [{"round": 30, "early_heterogeneity": [27.0, 28.0, 31.0]}]
    >>> result = Result(Run(attack="Mimic()"), Path("results"), "unfinished", lines, {})
    >>> print(heterogeneity([result]))  # doctest: +ELLIPSIS
    5 of 25 need B² < 3; yours is 28. B² is the variance of the honest vectors ...
    """
    from byzantium.guarantees import describe_limit

    measured: dict[tuple[int, int], dict[tuple[str, str], list[tuple[bool, float]]]] = {}
    for result in results:
        job, b2 = result.job, metrics.early_heterogeneity(result.metrics)
        if not isinstance(job, Run) or job.topology is not None:
            continue
        if b2 is not None and 0 < 2 * job.bad < job.vectors:
            groups = measured.setdefault((job.vectors, job.bad), {})
            calm = job.attack == "NoAttack()" or not job.attacker_count
            groups.setdefault((job.data, job.partition), []).append((calm, b2))
    sentences = []
    for (n, f), groups in sorted(measured.items()):
        several = [len(set(column)) > 1 for column in zip(*groups, strict=True)]
        named: dict[str, list[float]] = {}
        for (data, partition), values in groups.items():
            texts = data.partition(" sha256:")[0], short_name("partition", partition)
            name = ", ".join(text for text, shown in zip(texts, several, strict=True) if shown)
            calm = any(one for one, _ in values)
            named.setdefault(name, []).extend(b2 for one, b2 in values if one or not calm)
        sentences.append(f"{describe_limit(n, f, named)}.")
    return " ".join([*sentences, MEANING]) if sentences else ""


def _title(name: str) -> str:
    return name.replace("_", " ")


def setting(values: Mapping[str, Any], more: Iterable[str] = ()) -> str:
    """A setting in words: the fields that it always has, and some more."""
    names = [*ALWAYS, *(name for name in more if name not in ALWAYS)]
    there = [name for name in names if values.get(name) is not None]
    return ", ".join(_words(name, values[name]) for name in there)


def _words(name: str, value: Any) -> str:
    if name == "rounds":
        return f"{value} rounds"
    if name == "partition":
        return short_name(name, value)
    if name == "topology":
        return one_line(value, 60)
    if isinstance(value, str):
        return value.removesuffix("()")
    return short_name(name, value)
