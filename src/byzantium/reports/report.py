"""The report: one HTML file with all it shows inside, to be opened, filtered and passed on."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import math
import re
import shlex
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from byzantium import __version__
from byzantium.aggregation import parse
from byzantium.core import files, needed, notation
from byzantium.learning import metrics
from byzantium.papers import Compared, Comparison, published
from byzantium.reports import palette, tables
from byzantium.reports.promises import promises
from byzantium.runs import Federation, Job, Metrics, Mimicry, Result, Run, Store

# Runs that differ in these alone stand in one matrix.
COMPARED = ("rule", "attack", "seed", "record", "evaluate_every")
# What is always said of a setting; the rest only where settings differ in it.
SAID = ("data", "model", "partition", "n", "f", "momentum", "rounds")
DIGITS = 4
# A heat map with more columns than this shows nothing more.
COLUMNS = 60


def write(
    store: Store,
    comparisons: Sequence[Comparison],
    path: Path,
    title: str = "Byzantine-robust learning: results",
) -> Path:
    """Write the results of a store, and artifacts beside the published numbers, as one page."""
    scripts = {"plotly": _plotly(), "script": _file("report.js")}
    parts = {
        **scripts,
        "title": html.escape(title),
        "style": _file("report.css"),
        "policy": html.escape(_policy(scripts.values())),
        "data": _embedded(contents(store, comparisons)),
    }
    # In one pass: what is filled in is never searched for places to fill.
    page = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("report.html"))
    files.write(path, page)
    return path


# -- the page -----------------------------------------------------------------------------------


def _file(name: str) -> str:
    folder = resources.files("byzantium.reports").joinpath("page")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _plotly() -> str:
    return str(needed("plotly.offline", "report", "a report").get_plotlyjs())


def _policy(scripts: Iterable[str]) -> str:
    """The browser runs these scripts and no others, and fetches nothing."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:"
    )


def _embedded(values: Any) -> str:
    """JSON that cannot end the element it stands in, whatever texts are in it."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _short(value: Any) -> Any:
    """Numbers with a few digits, which is all that can be seen; what is not finite is a gap."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS + 1}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return value


# -- what is in it ------------------------------------------------------------------------------


def contents(store: Store, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """All that the page shows, as JSON has it."""
    now = datetime.now().astimezone()
    results = {result.job: result for result in store}
    absent = ("missing", "damaged")
    results |= {r.job: r for r in tables.results(comparisons) if r.status not in absent}
    trained = [result for job, result in results.items() if isinstance(job, Run | Federation)]
    trained.sort(key=_place)
    settings = _settings([result.job for result in trained])
    numbers = {result.job: number for number, result in enumerate(trained)}
    return {
        "byzantium": __version__,
        "made": f"{now.day} {now:%B %Y, %H:%M}",
        "surroundings": _surroundings(results.values()),
        "palette": palette.for_page(),
        "settings": list(settings.values()),
        "labels": _labels(list(numbers)),
        # What may be drawn over rounds, in the order it is offered.
        "metrics": {m.name: {"title": m.title, "scale": m.scale} for m in metrics.numbers()},
        "runs": [_run(result, list(settings).index(_setting(result.job))) for result in trained],
        "artifacts": [_artifact(comparison, numbers) for comparison in comparisons],
    }


def _place(result: Result) -> tuple[Any, ...]:
    job = result.job
    if isinstance(job, Federation):  # the real ones go first
        return ("", job.name, job.rule, job.f, result.folder.name, "", "")
    assert isinstance(job, Run)
    return (job.data, job.model, job.partition, job.momentum, job.rule[::-1], job.attack, job.seed)


def _surroundings(results: Iterable[Result]) -> list[str]:
    """What the numbers were made with; of several, how many jobs each."""
    counts: dict[str, int] = {}
    for result in results:
        if result.done:
            get = result.summary.get
            text = f"byzantium {get('byzantium')}, torch {get('torch')}, Python {get('python')}"
            text += f", {get('machine')}"
            counts[text] = counts.get(text, 0) + 1
    return [f"{text} ({n} jobs)" for text, n in counts.items()] if len(counts) > 1 else [*counts]


# -- runs ---------------------------------------------------------------------------------------


@cache
def _parts(rule: str) -> tuple[str, str]:
    """What stands before a rule, and the rule without its f, which is that of the run."""
    *mixings, last = parse(rule).stages
    text = re.sub(r"\bf=\d+(, )?", "", repr(last))
    return " >> ".join(map(repr, mixings)), re.sub(r", \)", ")", text)


@cache
def _kind(rule: str) -> str:
    """The class of a rule, which tells its colour."""
    return type(parse(rule).stages[-1]).__name__


def _facets(job: Job) -> dict[str, Any]:
    """What can be filtered by."""
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
    """A short name where a text is the only one of its name: `Krum` for `Krum(power=4)`."""
    facets = [_facets(job) for job in jobs]
    texts = {text for facet in facets for text in facet.values() if isinstance(text, str)}
    names: dict[str, list[str]] = {}
    for text in sorted(texts):
        if (name := notation.name(text)) is not None:
            names.setdefault(name, []).append(text)
    bare = {text: text.removesuffix("()") for text in texts}
    mixings = {facet.get("mixing") for facet in facets}
    # The s of a bucketing is worth saying even where there is only one.
    alone = {t: name for name, same in names.items() for t in same if len(same) == 1}
    return bare | {text: name for text, name in alone.items() if text not in mixings}


def _setting(job: Job) -> tuple[Any, ...]:
    fields = dataclasses.fields(job)
    return tuple(getattr(job, field.name) for field in fields if field.name not in COMPARED)


def _settings(jobs: Sequence[Job]) -> dict[tuple[Any, ...], str]:
    """Each setting in words."""
    names = [f.name for f in dataclasses.fields(Run) if f.name not in COMPARED]
    real = [job for job in jobs if isinstance(job, Federation)]
    words = {_setting(job): f"federation {job.name}, f = {job.f}" for job in real}
    found = list(dict.fromkeys(_setting(job) for job in jobs if job not in real))
    columns = dict(zip(names, zip(*found, strict=True), strict=True)) if found else {}
    said = [*SAID, *(n for n in names if n not in SAID and len(set(columns.get(n, ()))) > 1)]
    for setting in found:
        values = dict(zip(names, setting, strict=True))
        given = (name for name in said if values[name] is not None)
        words[setting] = ", ".join(_words(name, values[name]) for name in given)
    return words


def _words(name: str, value: Any) -> str:
    if name in ("data", "model", "partition"):
        return str(value).removesuffix("()")
    if name == "rounds":
        return f"{value} rounds"
    if isinstance(value, bool):
        return ("" if value else "no ") + name.replace("_", " ")
    number = f"{value:g}" if isinstance(value, float) else str(value)
    sign = " = " if len(name) == 1 else " "
    return f"{name.replace('_', ' ')}{sign}{number}"


def command(run: Run | Federation) -> str:
    """What makes a run, if a command does; only what differs from the defaults is said.

    >>> command(Run(rule="Krum", heavy_ball=True, record=("distance", "norm")))
    "byzantium run --rule 'Krum(f=5)' --heavy-ball --record distance,norm"
    """
    if isinstance(run, Federation):
        return ""
    words = ["byzantium", "run"]
    for name in _changed(run):
        value = getattr(run, name)
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
        about = {"kind": _kind(job.rule), "seed": job.seed, "n": job.n, "q": job.q}
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
        "fields": {f.name: getattr(job, f.name) for f in dataclasses.fields(job)},
        "changed": _changed(job),
        "series": {
            "round": [line["round"] for line in result.metrics],
            **{
                name: [line.get(name) for line in result.metrics]
                for name in (metric.name for metric in metrics.numbers())
                if any(name in line for line in result.metrics)
            },
        },
        "weights": weights,
        "promises": promises(job, result.metrics) if isinstance(job, Run) else {},
    }
    return {name: _short(value) for name, value in entries.items()}


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


# -- artifacts ----------------------------------------------------------------------------------


def _artifact(comparison: Comparison, numbers: dict[Job, int]) -> dict[str, Any]:
    made = comparison.artifact
    return {
        "name": made.name,
        "title": made.title,
        "fixed": made.fixed,
        "varies": made.varies,
        "notes": made.notes,
        "cheaper": made.cheaper,
        "picture": dataclasses.asdict(made.picture),
        "command": comparison.command(),
        "published": comparison.is_published,
        "comparable": comparison.comparable,
        "order": comparison.order(),
        "cells": [_cell(comparison, compared, numbers) for compared in comparison.cells],
    }


def _cell(comparison: Comparison, compared: Compared, numbers: dict[Job, int]) -> dict[str, Any]:
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
        "state": tables.state(compared),
        "verdict": compared.verdict,
        "difference": compared.difference,
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
        cell["ours"] = _mean_curve(tables.curves(comparison, compared), compared)
        cell["theirs"] = _published_curves(comparison, compared)
    if picture.kind == "bars":
        found = tables.weights(compared)
        cell["weights"] = _means(found) if found else None
        cell["honest"] = job.n - job.q if isinstance(job, Run) else 0
    return {name: _short(value) for name, value in cell.items()}


def _numbers(comparison: Comparison, compared: Compared) -> list[float]:
    """For each seed the number of a cell; of bars, the share of the weight that attackers had."""
    job = compared.cell.jobs[0]
    if comparison.artifact.picture.kind != "bars" or not isinstance(job, Run):
        return tables.measured(comparison, compared)
    found = tables.weights(compared, done=True)
    return [tables.share(row, job) for row in found]


def _mean_curve(curves: Sequence[dict[int, float]], compared: Compared) -> list[list[float]]:
    """Over seeds; as far as the shortest that diverged goes, else as far as any does."""
    results = zip(curves, compared.results, strict=True)
    ends = [max(c, default=0) for c, result in results if result.status == "diverged"]
    end = min(ends, default=math.inf)
    rounds = sorted({at for curve in curves for at in curve if at <= end})
    return [[*rounds], [fmean(curve[at] for curve in curves if at in curve) for at in rounds]]


def _published_curves(comparison: Comparison, compared: Compared) -> list[list[list[float]]]:
    """For each published seed rounds and values; as far as they go."""
    place = {"accuracy": 1, "loss": 2}.get(comparison.artifact.picture.y)
    if place is None:
        return []
    found = published.curves(comparison.artifact.name, compared.cell.labels)
    return [[[point[0] for point in curve], [point[place] for point in curve]] for curve in found]
