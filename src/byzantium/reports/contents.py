"""The data of the page: runs, tables, artifacts and sentences, as values for JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from statistics import fmean, stdev
from typing import Any

from byzantium import __version__, rules
from byzantium.core.texts import first_sentence
from byzantium.learning import metrics
from byzantium.reports import graphs, measurements, palette, text_tables
from byzantium.reports import ranking as ranking_page
from byzantium.reports.headline import headline
from byzantium.reports.palette import line_of, looks
from byzantium.reports.promises import changed, command, promises
from byzantium.rules import Trust
from byzantium.rules.trust import CAUTION, FEWEST_ROUNDS
from byzantium.runs import Federation, Job, Metrics, Result, Run
from byzantium.tables import CRITERION, MeasuredCell, Ranking, ResultTable, pivots, terms
from byzantium.tables.pivot import fields_of, setting, varying
from byzantium.tables.results import grouped
from byzantium.tables.terms import sort_key

# How many digits of a number can be seen.
DIGITS = 5
# The most columns of a heat map.
COLUMNS = 20
FILTERS = ("data", "model", "partition", "momentum", "attack", "rule", "mixing")


def contents(
    results: Iterable[Result],
    artifacts: Sequence[ResultTable],
    tables: Sequence[ResultTable] | None = None,
    ranking: Ranking | None = None,
) -> dict[str, Any]:
    """The data of the page, as plain values for JSON.

    - `tables`: the tables of runs; by default rules by attacks.
    - `ranking`: that of the benchmark, if it is to be shown.
    """
    now = datetime.now().astimezone()
    shown = {result.job: result for result in results}
    absent = ("missing", "damaged")
    shown |= {r.job: r for r in text_tables.results(artifacts) if r.status not in absent}
    trained = [result for job, result in shown.items() if "data" in job.facets()]
    trained.sort(key=_place)
    if tables is None:
        tables = pivots(trained)
    jobs = [result.job for result in trained]
    settings = _settings(jobs)
    places = {setting: k for k, setting in enumerate(settings)}
    numbers = {job: number for number, job in enumerate(jobs)}
    kinds = dict.fromkeys(job.facets()["kind"] for job in jobs)
    top = headline(tables)
    if top:  # its table goes first
        tables = [tables[top.place], *(t for t in tables if t is not tables[top.place])]
    return {
        "byzantium": __version__,
        "made": f"{now.day} {now:%B %Y, %H:%M}",
        "surroundings": _surroundings(shown.values()),
        "headline": dataclasses.asdict(top) if top else None,
        "ranking": _short(ranking_page.for_page(ranking)) if ranking else None,
        "palette": palette.for_page(),
        "settings": list(settings.values()),
        "zoom": _short(_zooms(trained, places)),
        "labels": _labels(jobs),
        "words": {term.short: term.full for term in terms.TERMS},
        "rules": {kind: first_sentence(getattr(rules, kind, None)) for kind in kinds if kind},
        # What can be drawn over rounds, in the order of the menu.
        "metrics": _quantities(trained),
        "defaults": _short({field.name: field.default for field in dataclasses.fields(Run)}),
        "caution": CAUTION,
        "criterion": CRITERION,
        "runs": [_run(result, places[_setting(result.job)], trained) for result in trained],
        "tables": [_table(table, numbers) for table in tables],
        "artifacts": [_artifact(table, numbers) for table in artifacts],
    }


def _place(result: Result) -> tuple[Any, ...]:
    """A key that sorts results as the paper does; federations, which have no model, go first."""
    facets = result.job.facets()
    texts = (sort_key(facets[name]) for name in ("data", "model", "partition", "text", "attack"))
    numbers = facets["momentum"], facets["seed"]
    return (bool(facets["model"]), *texts, *numbers, result.folder.name)


def _surroundings(results: Iterable[Result]) -> list[str]:
    """The versions and machines of the results; if there are several, how many jobs each has."""
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
    """Numbers with as many digits as can be seen; None for those that are not finite."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(item) for item in value]
    return value


# -- runs ---------------------------------------------------------------------------------------


def _facets(job: Job, names: Sequence[str]) -> dict[str, Any]:
    """Those of some facets that a job has."""
    return {name: value for name, value in job.facets().items() if name in names}


def _labels(jobs: Sequence[Job]) -> dict[str, str]:
    """The names of texts: those of the paper, as short as they still differ."""
    facets = [job.facets() for job in jobs]
    labels: dict[str, str] = {}
    for name in ("data", "model", "partition", "mixing", "attack", "rule"):
        texts = {facet[name] for facet in facets if facet.get(name)}
        plain = {text: terms.display_name(text) for text in texts}
        labels |= terms.distinct_names(texts) if name in text_tables.SHORTENED else plain
    return labels


def _setting(job: Job) -> tuple[Any, ...]:
    if not isinstance(job, Run):
        return tuple(dataclasses.asdict(job).values())
    return tuple(v for name, v in fields_of(job).items() if name not in ("rule", "attack"))


def _settings(jobs: Sequence[Job]) -> dict[tuple[Any, ...], str]:
    """Each setting in words."""
    real = [job for job in jobs if isinstance(job, Federation)]
    words = {_setting(job): f"federation {job.name}, f = {job.f}" for job in real}
    runs = {_setting(job): fields_of(job) for job in jobs if isinstance(job, Run)}
    names = [name for name in varying(list(runs.values())) if name not in ("rule", "attack")]
    return words | {place: setting(values, names) for place, values in runs.items()}


def _zooms(results: Sequence[Result], places: dict[tuple[Any, ...], int]) -> dict[int, Any]:
    """The range of accuracies of each setting whose lines nearly coincide."""
    lines: dict[int, list[list[tuple[float, float]]]] = {}
    for result in results:
        line = [(m["round"], m["accuracy"]) for m in result.metrics if "accuracy" in m]
        lines.setdefault(places[_setting(result.job)], []).append(line)
    return {k: span for k, own in lines.items() if (span := measurements.zoom_range(own))}


def _run(result: Result, setting: int, others: Sequence[Result]) -> dict[str, Any]:
    job, facets, weights = result.job, result.job.facets(), _weights(result.metrics)
    graph = graphs.picture(result)
    entries: dict[str, Any] = {
        **facets,
        "n": facets["n"] or (len(weights["rows"][0]) if weights else 0),
        "identity": job.identity,
        "setting": setting,
        **{name: getattr(result, name) for name in ("status", "ending", "reason", "accuracy")},
        "loss": result.summary.get("loss"),
        "success_rate": result.mean_of_last("success_rate"),
        "seconds": result.summary.get("seconds"),
        "command": command(job) if isinstance(job, Run) else "",
        "changed": {name: getattr(job, name) for name in changed(job)},
        "series": {
            name: [line.get(name) for line in result.metrics]
            for name in ("round", *_quantities([result]))
            if name == "round" or any(name in line for line in result.metrics)
        },
        "weights": weights,
        "graph": graph,
        "trust": _trust(result, graph["plain"] if graph else None),
        "promises": promises(job, result.metrics, others) if isinstance(job, Run) else {},
    }
    return {name: _short(value) for name, value in entries.items()}


def _quantities(results: Iterable[Result]) -> dict[str, dict[str, str]]:
    """The metrics that can be drawn over rounds; the title of an unknown one is its name."""
    known = {m.name: {"title": m.title, "scale": m.scale} for m in metrics.numbers()}
    others = {
        name: {"title": name, "scale": "linear"}
        for result in results
        for line in result.metrics
        for name, value in line.items()
        if name not in metrics.TABLE and name != "round" and isinstance(value, (int, float))
    }
    return known | others


def _trust(result: Result, plain: Sequence[float] | None) -> dict[str, Any] | None:
    """The mean weight of each worker, in equal shares, and its spread; the unheard workers.

    - `plain`: on a graph, the weight of each node in plain gossip, which is then an equal share.
    """
    blocks = measurements.weight_blocks(result)
    if not blocks:
        return None
    trust = Trust()
    for rounds, weights in blocks:
        vouched = dict(enumerate(plain)) if plain else None
        trust.update(dict(enumerate(weights)), rounds=rounds, vouched=vouched)
    means, attackers = measurements.mean_weights(result), result.job.facets()["q"]
    standings = [trust.workers.get(worker) for worker in range(len(means))]
    return {
        "weight": [standing.weight if standing else 0.0 for standing in standings],
        "spread": [standing.spread if standing else 0.0 for standing in standings],
        "enough": len(blocks) >= FEWEST_ROUNDS,
        "unheard": sorted(trust.unheard()),
        "share": measurements.share(means, attackers) if attackers else None,
        "even": measurements.share(plain or [1 / len(means)] * len(means), attackers),
    }


def _weights(lines: Sequence[Metrics]) -> dict[str, Any] | None:
    """The weights of workers over rounds; neighboring rounds are averaged if there are many."""
    weighed = [line for line in lines if "weights" in line]
    if not weighed:
        return None
    step = math.ceil(len(weighed) / COLUMNS)
    groups = [weighed[k : k + step] for k in range(0, len(weighed), step)]
    rows = [measurements.means([line["weights"] for line in group]) for group in groups]
    return {"round": [group[-1]["round"] for group in groups], "rows": rows}


# -- tables -------------------------------------------------------------------------------------


def _table(table: ResultTable, numbers: dict[Job, int]) -> dict[str, Any]:
    """A table of runs with cells over seeds, which the page filters."""
    names, across = text_tables.axes(table)
    name_of = text_tables.namer(table)
    return {
        **{name: getattr(table.artifact, name) for name in ("title", "fixed", "notes")},
        "rows": names,
        "columns": across,
        "judged": text_tables.has_worst_case(table),
        "measure": table.artifact.picture.y,
        "less": metrics.better(table.artifact.picture.y) == "less",
        "seeds": text_tables.usual_seeds(table),
        "cells": [
            _place_in_table(cell, names, across, name_of) | {"runs": _numbers_of(cell, numbers)}
            for cell in table.cells
        ],
    }


def _numbers_of(cell: MeasuredCell, numbers: dict[Job, int]) -> list[int]:
    """The numbers of the runs of a cell, in the list of all runs."""
    return [numbers[result.job] for result in cell.results if result.job in numbers]


def _place_in_table(
    cell: MeasuredCell, names: Sequence[str], across: str, name_of: Callable[[str, Any], str]
) -> dict[str, Any]:
    labels, job = cell.labels, cell.jobs[0]
    entries = {
        **_facets(job, (*FILTERS, "kind", "text")),
        "row": ", ".join(name_of(name, labels[name]) for name in names),
        "column": name_of(across, labels[across]),
        "notation": labels[across] if isinstance(labels[across], str) else "",
        "value": cell.value,
        "deviation": cell.deviation,
        "seeds": len(cell.values) + cell.diverged,
        "diverged": cell.diverged,
        "state": text_tables.state(cell),
    }
    return {name: _short(value) for name, value in entries.items()}


# -- artifacts ----------------------------------------------------------------------------------


def _artifact(table: ResultTable, numbers: dict[Job, int]) -> dict[str, Any]:
    artifact, names = table.artifact, ("name", "title", "fixed", "varies", "notes", "cheaper")
    return {
        **{name: getattr(artifact, name) for name in names},
        "picture": dataclasses.asdict(artifact.picture),
        "zoom": _panel_zooms(table),
        "command": table.command(),
        "published": table.is_published,
        "comparable": table.comparable,
        "order": table.order(),
        "cells": [
            {**_cell(table, cell, numbers), "look": look}
            for cell, look in zip(table.cells, _looks(table), strict=True)
        ],
    }


def _looks(table: ResultTable) -> list[list[str] | None]:
    """The color and the dashes of each cell that is a line, as in the figure."""
    picture, cells = table.artifact.picture, table.cells
    if not picture.lines:
        return [None for _ in cells]
    panels = grouped(cells, [picture.rows])
    shown = {row: looks(own, picture.lines) for (row,), own in panels.items()}
    lines = (line_of(shown[c.labels.get(picture.rows)], c)[1] for c in cells)
    return [[look.color.name, look.dashes] for look in lines]


def _panel_zooms(table: ResultTable) -> dict[str, Any]:
    """The range of each row of panels whose lines nearly coincide."""
    rows = table.artifact.picture.rows
    if table.artifact.picture.kind != "curves":
        return {}
    panels = grouped(table.cells, [rows]).items()
    spans = {terms.full_name(rows, row): measurements.zoom(table, own) for (row,), own in panels}
    return {text: span for text, span in spans.items() if span}


def _cell(table: ResultTable, cell: MeasuredCell, numbers: dict[Job, int]) -> dict[str, Any]:
    picture, job = table.artifact.picture, cell.jobs[0]
    values, facets = _numbers(table, cell), job.facets()
    entries: dict[str, Any] = {
        "kind": "",
        **_facets(job, (*FILTERS, "kind")),
        "labels": cell.labels,
        "words": {k: terms.full_name(k, v) for k, v in cell.labels.items()},
        "runs": _numbers_of(cell, numbers),
        "value": fmean(values) if values else None,
        "deviation": stdev(values) if len(values) > 1 else None,
        "state": text_tables.state(cell),
        "verdict": cell.verdict,
        # No difference is printed where it means nothing.
        "difference": cell.difference if table.comparable else None,
        "tolerance": cell.tolerance,
        "seeds": len(cell.values),
        "jobs": len(cell.results),
        **{name: getattr(cell, name) for name in ("missing", "diverged", "failed")},
        "reasons": list(dict.fromkeys(r.reason for r in cell.results if r.reason)),
    }
    if cell.missing:
        entries["command"] = table.command(cell)
    if cell.published:
        entries["published"] = dataclasses.asdict(cell.published)
    if picture.kind == "curves":
        entries["ours"] = _mean_curve(measurements.curves(table, cell), cell)
        theirs = measurements.published_curves(table, cell)
        entries["theirs"] = [[*zip(*curve, strict=True)] for curve in theirs]
    if picture.kind == "bars":
        weights = measurements.weights(cell)
        entries["weights"] = measurements.means(weights) if weights else None
        entries["honest"] = facets["n"] - facets["q"]
    return {name: _short(value) for name, value in entries.items()}


def _numbers(table: ResultTable, cell: MeasuredCell) -> list[float]:
    """The number of a cell for each seed; for bars, the share of the weight of attackers."""
    if table.artifact.picture.kind != "bars":
        return measurements.numbers(table, cell)
    attackers = cell.jobs[0].facets()["q"]
    return [measurements.share(row, attackers) for row in measurements.weights(cell, done=True)]


def _mean_curve(curves: Sequence[measurements.Curve], cell: MeasuredCell) -> list[list[float]]:
    """The mean over seeds; it ends where the first seed diverged."""
    results = zip(curves, cell.results, strict=True)
    ends = [max(c, default=0) for c, result in results if result.status == "diverged"]
    end = min(ends, default=math.inf)
    rounds = sorted({at for curve in curves for at in curve if at <= end})
    return [[*rounds], [fmean(curve[at] for curve in curves if at in curve) for at in rounds]]
