"""What is in the report: runs, tables, artifacts and sentences, as JSON has them."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from statistics import fmean, stdev
from typing import Any

from byzantium import __version__, rules
from byzantium.learning import metrics
from byzantium.papers import CRITERION, MeasuredCell, ResultTable
from byzantium.reports import measured, palette
from byzantium.reports import tables as rows
from byzantium.reports.headline import headline
from byzantium.reports.looks import looks
from byzantium.reports.looks import of as line_of
from byzantium.reports.pivot import described, order, pivots, setting, varying, without_f
from byzantium.reports.promises import promises
from byzantium.rules import Trust
from byzantium.rules.trust import CAUTION, FEWEST_ROUNDS
from byzantium.runs import Federation, Job, Metrics, Mimicry, Result, Run, Store

DIGITS = 4
# A heat map with more columns than this shows nothing more.
COLUMNS = 20


def contents(
    store: Store,
    comparisons: Sequence[ResultTable],
    tables: Sequence[ResultTable] | None = None,
) -> dict[str, Any]:
    """All that the page shows, as plain values for JSON."""
    now = datetime.now().astimezone()
    results = {result.job: result for result in store}
    absent = ("missing", "damaged")
    results |= {r.job: r for r in rows.results(comparisons) if r.status not in absent}
    trained = [result for job, result in results.items() if isinstance(job, Run | Federation)]
    trained.sort(key=_place)
    if tables is None:
        tables = pivots(trained)
    jobs = [result.job for result in trained]
    settings = _settings(jobs)
    places = {setting: k for k, setting in enumerate(settings)}
    numbers = {job: number for number, job in enumerate(jobs)}
    said = headline(tables)
    if said:  # what it is about is seen first
        tables = [tables[said.place], *(t for t in tables if t is not tables[said.place])]
    return {
        "byzantium": __version__,
        "made": f"{now.day} {now:%B %Y, %H:%M}",
        "surroundings": _surroundings(results.values()),
        "headline": dataclasses.asdict(said) if said else None,
        "palette": palette.for_page(),
        "settings": list(settings.values()),
        "zoom": _short(_zooms(trained, places)),
        "labels": _labels(jobs),
        "words": {term.short: term.words for term in palette.TERMS},
        "rules": {k: _summary(k) for k in {_kind(j.rule) for j in jobs if isinstance(j, Run)}},
        # What may be drawn over rounds, in the order it is offered.
        "metrics": _quantities(trained),
        "defaults": {field.name: _plain(field.default) for field in dataclasses.fields(Run)},
        "caution": CAUTION,
        "criterion": CRITERION,
        "runs": [_run(result, places[_setting(result.job)]) for result in trained],
        "tables": [_table(table) for table in tables],
        "artifacts": [_artifact(comparison, numbers) for comparison in comparisons],
    }


def _place(result: Result) -> tuple[Any, ...]:
    """In the order of the paper; real federations go first."""
    job = result.job
    if isinstance(job, Federation):
        return (0, job.name, job.rule, job.f, result.folder.name)
    assert isinstance(job, Run)
    texts = (order(text) for text in (job.data, job.model, job.partition, job.rule, job.attack))
    return (1, *texts, job.momentum, job.seed)


def _surroundings(results: Iterable[Result]) -> list[str]:
    """What the numbers were made with; of several, how many jobs each."""
    counts: dict[str, int] = {}
    for result in results:
        if result.done:
            get = result.summary.get
            text = f"byzantium {get('byzantium')}, torch {get('torch')}, Python {get('python')}"
            text += f", {get('machine')}"
            text += "".join(f", plugin {one}" for one in getattr(result.job, "plugin", ()))
            counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({n} jobs)" for text, n in counts.items()] if len(counts) > 1 else [*counts]


def _short(value: Any) -> Any:
    """Numbers with a few digits, which is all that can be seen; what is not finite is a gap."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS + 1}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return value


# -- runs ---------------------------------------------------------------------------------------


def _parts(rule: str) -> tuple[str, str]:
    """What stands before a rule, and the rule without its f, which is that of the run."""
    before, _, last = without_f(rule).rpartition(" >> ")
    return before, last


def _kind(rule: str) -> str:
    """The class of a rule, which tells its colour."""
    return rule.rpartition(" >> ")[2].partition("(")[0]


def _facets(job: Job) -> dict[str, Any]:
    """What can be filtered by, and what tells the lines of a chart apart."""
    if isinstance(job, Federation):
        # What a simulation is told, and nobody knows of a real one.
        unknown = dict.fromkeys(("model", "partition", "attack"), "")
        return {"data": job.name, **unknown, "momentum": 0.0, "rule": job.rule, "mixing": ""}
    if not isinstance(job, (Run, Mimicry)):
        return {}
    mixing, rule = _parts(job.rule)
    own = ("data", "model", "partition", "momentum", "attack") if isinstance(job, Run) else ()
    return {**{name: getattr(job, name) for name in own}, "rule": rule, "mixing": mixing}


def _labels(jobs: Sequence[Job]) -> dict[str, str]:
    """What texts are called: by the paper's names, as short as they can be told apart."""
    facets = [_facets(job) for job in jobs]
    named: dict[str, str] = {}
    for name in ("data", "model", "partition", "mixing", "attack", "rule"):
        texts = {facet[name] for facet in facets if facet.get(name)}
        short = name in rows.SHORTENED
        named |= palette.shortened(texts) if short else {t: palette.called(t) for t in texts}
    return named


@cache
def _summary(kind: str) -> str:
    """What a rule does, in the first sentence of its documentation."""
    text = inspect.getdoc(getattr(rules, kind, None)) or ""
    return re.sub(r",? :math:`[^`]*`", "", text.split("\n\n")[0].replace("\n", " "))


def _setting(job: Job) -> tuple[Any, ...]:
    if not isinstance(job, Run):
        return tuple(dataclasses.asdict(job).values())
    return tuple(v for name, v in described(job).items() if name not in ("rule", "attack"))


def _settings(jobs: Sequence[Job]) -> dict[tuple[Any, ...], str]:
    """Each setting in words."""
    real = [job for job in jobs if isinstance(job, Federation)]
    words = {_setting(job): f"federation {job.name}, f = {job.f}" for job in real}
    runs = {_setting(job): described(job) for job in jobs if isinstance(job, Run)}
    told = [name for name in varying(list(runs.values())) if name not in ("rule", "attack")]
    return words | {place: setting(values, told) for place, values in runs.items()}


def _zooms(results: Sequence[Result], places: dict[tuple[Any, ...], int]) -> dict[int, Any]:
    """For each setting the range of accuracies, where its lines all but coincide."""
    lines: dict[int, list[list[tuple[float, float]]]] = {}
    for result in results:
        line = [(m["round"], m["accuracy"]) for m in result.metrics if "accuracy" in m]
        lines.setdefault(places[_setting(result.job)], []).append(line)
    return {k: found for k, own in lines.items() if (found := measured.zoomed(own))}


def command(run: Run | Federation) -> str:
    """The command that makes a run, with the options that differ from their defaults.

    Empty for a federation, which no command makes.

    >>> command(Run(rule="Krum", heavy_ball=True, record=("distance", "norm")))
    "byzantium run --rule 'Krum(f=5)' --heavy-ball --record distance,norm"
    """
    if isinstance(run, Federation):
        return ""
    words = ["byzantium", "run"]
    for name in _changed(run):
        value = getattr(run, name)
        if name == "plugin":  # what is installed is found by itself
            named = (text.partition(" sha256:")[0] for text in value)
            words += [word for file in named if file.endswith(".py") for word in ("--plugin", file)]
            continue
        if name == "data":
            value = value.partition(" sha256:")[0]
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(",".join(value) if isinstance(value, tuple) else str(value))
    return shlex.join(words)


def _changed(run: Job) -> list[str]:
    fields = dataclasses.fields(run)
    return [field.name for field in fields if getattr(run, field.name) != field.default]


def _run(result: Result, setting: int) -> dict[str, Any]:
    job = result.job
    assert isinstance(job, Run | Federation)
    weights = _weights(result.metrics)
    if isinstance(job, Federation):
        about = {"kind": "", "seed": 0, "n": len(weights["rows"][0]) if weights else 0, "q": 0}
    else:
        about = {"kind": _kind(job.rule), "seed": job.seed, "n": job.n, "q": job.attacker_count}
    entries: dict[str, Any] = {
        **_facets(job),
        **about,
        "text": job.rule,
        "setting": setting,
        "status": result.status,
        "ending": result.ending,
        "reason": result.reason,
        "accuracy": result.accuracy,
        "seconds": result.summary.get("seconds"),
        "command": command(job),
        "changed": {name: getattr(job, name) for name in _changed(job)},
        "series": {
            "round": [line["round"] for line in result.metrics],
            **{
                name: [line.get(name) for line in result.metrics]
                for name in _quantities([result])
                if any(name in line for line in result.metrics)
            },
        },
        "weights": weights,
        "trust": _trust(result),
        "promises": promises(job, result.metrics) if isinstance(job, Run) else {},
    }
    return {name: _short(value) for name, value in entries.items()}


def _quantities(results: Iterable[Result]) -> dict[str, dict[str, str]]:
    """What may be drawn over rounds; a metric that nobody knows here has its name as title."""
    known = {m.name: {"title": m.title, "scale": m.scale} for m in metrics.numbers()}
    others = {
        name: {"title": name, "scale": "linear"}
        for result in results
        for line in result.metrics
        for name, value in line.items()
        if name not in metrics.TABLE and name != "round" and isinstance(value, (int, float))
    }
    return known | others


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _trust(result: Result) -> dict[str, Any] | None:
    """Each worker's mean weight, in equal shares, and its spread; who went unheard."""
    blocks = measured.weighed(result)
    if not blocks:
        return None
    trust = Trust()
    for rounds, weights in blocks:
        trust.update(dict(enumerate(weights)), rounds=rounds)
    standings = [trust.workers[worker] for worker in sorted(trust.workers)]
    job, means = result.job, measured.mean_weights(result)
    return {
        "weight": [standing.weight for standing in standings],
        "spread": [standing.spread for standing in standings],
        "enough": len(blocks) >= FEWEST_ROUNDS,
        "unheard": sorted(trust.unheard()),
        "share": measured.share(means, job)
        if isinstance(job, Run) and job.attacker_count
        else None,
    }


def _weights(lines: Sequence[Metrics]) -> dict[str, Any] | None:
    """How much each worker counted, over rounds; neighbours are averaged where there are many."""
    weighed = [line for line in lines if "weights" in line]
    if not weighed:
        return None
    step = math.ceil(len(weighed) / COLUMNS)
    groups = [weighed[k : k + step] for k in range(0, len(weighed), step)]
    rows = [_means([line["weights"] for line in group]) for group in groups]
    return {"round": [group[-1]["round"] for group in groups], "rows": rows}


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of each column."""
    return [fmean(column) for column in zip(*rows, strict=True)]


# -- tables -------------------------------------------------------------------------------------


def _table(table: ResultTable) -> dict[str, Any]:
    """A table of runs; its cells are over seeds, and filters leave some of them."""
    names, across = rows.axes(table)
    called = rows.namer(table)
    return {
        "title": table.artifact.title,
        "fixed": table.artifact.fixed,
        "notes": table.artifact.notes,
        "rows": names,
        "columns": across,
        "judged": rows.judged(table),
        "measure": table.artifact.picture.y,
        "seeds": rows.usual(table),
        "cells": [_place_in_table(compared, names, across, called) for compared in table.cells],
    }


def _place_in_table(
    compared: MeasuredCell, names: Sequence[str], across: str, called: Callable[[str, Any], str]
) -> dict[str, Any]:
    labels, job = compared.cell.labels, compared.cell.jobs[0]
    cell = {
        **_facets(job),
        "kind": _kind(job.rule) if isinstance(job, Run) else "",
        "text": job.rule if isinstance(job, Run) else "",
        "row": ", ".join(called(name, labels[name]) for name in names),
        "column": called(across, labels[across]),
        "notation": labels[across] if isinstance(labels[across], str) else "",
        "value": compared.value,
        "deviation": compared.deviation,
        "seeds": len(compared.values) + compared.diverged,
        "diverged": compared.diverged,
        "state": rows.state(compared),
    }
    return {name: _short(value) for name, value in cell.items()}


# -- artifacts ----------------------------------------------------------------------------------


def _artifact(comparison: ResultTable, numbers: dict[Job, int]) -> dict[str, Any]:
    made = comparison.artifact
    shown = _looks(comparison)
    return {
        "name": made.name,
        "title": made.title,
        "fixed": made.fixed,
        "varies": made.varies,
        "notes": made.notes,
        "cheaper": made.cheaper,
        "picture": dataclasses.asdict(made.picture),
        "zoom": _panel_zooms(comparison),
        "command": comparison.command(),
        "published": comparison.is_published,
        "comparable": comparison.comparable,
        "order": comparison.order(),
        "cells": [
            {**_cell(comparison, compared, numbers), "look": look}
            for compared, look in zip(comparison.cells, shown, strict=True)
        ],
    }


def _looks(comparison: ResultTable) -> list[list[str] | None]:
    """The colour and the dashes of each cell that is a line, as the figure has them."""
    picture, cells = comparison.artifact.picture, comparison.cells
    if not picture.lines:
        return [None for _ in cells]
    panels: dict[Any, list[MeasuredCell]] = {}
    for compared in cells:
        panels.setdefault(compared.cell.labels.get(picture.rows), []).append(compared)
    shown = {row: looks(own, picture.lines) for row, own in panels.items()}
    lines = (line_of(shown[c.cell.labels.get(picture.rows)], c)[1] for c in cells)
    return [[look.colour.name, look.dashes] for look in lines]


def _panel_zooms(comparison: ResultTable) -> dict[str, Any]:
    """For each row of panels the range of its lines, where they all but coincide."""
    picture = comparison.artifact.picture
    panels: dict[str, list[MeasuredCell]] = {}
    for compared in comparison.cells:
        text = palette.words(picture.rows, compared.cell.labels.get(picture.rows))
        panels.setdefault(text, []).append(compared)
    if picture.kind != "curves":
        return {}
    found = {text: measured.zoom(comparison, cells) for text, cells in panels.items()}
    return {text: span for text, span in found.items() if span}


def _cell(
    comparison: ResultTable, compared: MeasuredCell, numbers: dict[Job, int]
) -> dict[str, Any]:
    picture, job = comparison.artifact.picture, compared.cell.jobs[0]
    values = _numbers(comparison, compared)
    cell: dict[str, Any] = {
        **_facets(job),
        "kind": _kind(job.rule) if isinstance(job, (Run, Mimicry)) else "",
        "labels": compared.cell.labels,
        "words": {k: palette.words(k, v) for k, v in compared.cell.labels.items()},
        "runs": [numbers[r.job] for r in compared.results if r.job in numbers],
        "value": fmean(values) if values else None,
        "deviation": stdev(values) if len(values) > 1 else None,
        "state": rows.state(compared),
        "verdict": compared.verdict,
        # No difference is printed where it means nothing.
        "difference": compared.difference if comparison.comparable else None,
        "tolerance": compared.tolerance,
        "seeds": len(compared.values),
        "jobs": len(compared.results),
        "missing": compared.missing,
        "diverged": compared.diverged,
        "failed": compared.failed,
        "reasons": list(dict.fromkeys(r.reason for r in compared.results if r.reason)),
    }
    if compared.missing:
        cell["command"] = comparison.command(compared)
    if compared.published:
        cell["published"] = dataclasses.asdict(compared.published)
    if picture.kind == "curves":
        cell["ours"] = _mean_curve(measured.curves(comparison, compared), compared)
        theirs = measured.published_curves(comparison, compared)
        cell["theirs"] = [[*zip(*curve, strict=True)] for curve in theirs]
    if picture.kind == "bars":
        found = measured.weights(compared)
        cell["weights"] = _means(found) if found else None
        cell["honest"] = job.n - job.attacker_count if isinstance(job, Run) else 0
    return {name: _short(value) for name, value in cell.items()}


def _numbers(comparison: ResultTable, compared: MeasuredCell) -> list[float]:
    """For each seed the number of a cell; of bars, the share of the weight that attackers had."""
    job = compared.cell.jobs[0]
    if comparison.artifact.picture.kind != "bars" or not isinstance(job, Run):
        return measured.numbers(comparison, compared)
    found = measured.weights(compared, done=True)
    return [measured.share(row, job) for row in found]


def _mean_curve(curves: Sequence[dict[int, float]], compared: MeasuredCell) -> list[list[float]]:
    """Over seeds; as far as the shortest that diverged goes, else as far as any does."""
    results = zip(curves, compared.results, strict=True)
    ends = [max(c, default=0) for c, result in results if result.status == "diverged"]
    end = min(ends, default=math.inf)
    rounds = sorted({at for curve in curves for at in curve if at <= end})
    return [[*rounds], [fmean(curve[at] for curve in curves if at in curve) for at in rounds]]
