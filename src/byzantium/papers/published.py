"""The numbers that the bucketing paper published: its tables, and curves from its released logs."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from statistics import fmean
from typing import Any

from byzantium.runs import LAST
from byzantium.tables import COLLAPSED, Published

# After NaN the released runs went on and predicted class 0; the logs of curves end there.
AFTER_NAN = 9.82
# How many evaluations a released run of 600 rounds has, and how many of the last are compared.
EVALUATIONS, LATE = 20, 10

# The labels by which the cells of the published data differ.
KEYS = ("aggregator", "attack", "momentum", "s", "split")


@cache
def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("byzantium.papers").joinpath("reference", name).read_text()
    return list(csv.DictReader(text.splitlines()))


def _key(artifact: str, labels: dict[str, Any]) -> tuple[Any, ...]:
    kinds = {"momentum": float, "s": int}
    return (artifact, *(kinds.get(name, str)(labels[name]) for name in KEYS))


@cache
def _cells() -> dict[tuple[Any, ...], Published]:
    return {
        key: Published(
            mean := float(row["mean_accuracy"]),
            float(row["std_accuracy"]),
            int(row["seeds"]),
            _spread(mean, accuracies := _accuracies(key)),
            sum(final(curve) <= COLLAPSED for curve in accuracies),
        )
        for row in _rows("published_results.csv")
        for key in [_key(row["artifact"], dict(row))]
    }


def _accuracies(key: tuple[Any, ...]) -> list[list[float]]:
    """The accuracies of each seed at all evaluations; those after NaN are class 0's."""
    curves = [[point[1] for point in sorted(seed)] for seed in _curves().get(key, {}).values()]
    return [[*curve, *[AFTER_NAN] * (EVALUATIONS - len(curve))] for curve in curves]


def final(accuracies: Sequence[float]) -> float:
    """The mean of the last five of the accuracies of a run."""
    return fmean(accuracies[-LAST:])


def _spread(mean: float, seeds: Sequence[Sequence[float]]) -> float:
    means = [
        final(curve[:end])
        for curve in seeds
        for end in range(EVALUATIONS - LATE + LAST, EVALUATIONS + 1)
    ]
    return math.sqrt(fmean((each - mean) ** 2 for each in means)) if means else 0.0


@cache
def _curves() -> dict[tuple[Any, ...], dict[int, list[tuple[int, float, float]]]]:
    curves: dict[tuple[Any, ...], dict[int, list[tuple[int, float, float]]]] = {}
    for row in _rows("published_curves.csv"):
        seeds = curves.setdefault(_key(row["artifact"], dict(row)), {})
        point = (int(row["iteration"]), float(row["accuracy"]), float(row["loss"]))
        seeds.setdefault(int(row["seed"]), []).append(point)
    return curves


@cache
def _losses() -> dict[tuple[Any, ...], dict[int, dict[int, float]]]:
    losses: dict[tuple[Any, ...], dict[int, dict[int, float]]] = {}
    for row in _rows("released_losses.csv"):
        seeds = losses.setdefault(_key(row["artifact"], dict(row)), {})
        # Where a run had diverged, the loss is empty.
        loss = float(row["training_loss"] or math.nan)
        seeds.setdefault(int(row["seed"]), {})[int(row["round"])] = loss
    return losses


def artifacts() -> set[str]:
    """The names of the artifacts for which there are published numbers."""
    return {key[0] for key in _cells()}


def keys() -> list[tuple[Any, ...]]:
    """The artifact and labels of each published cell."""
    return list(_cells())


def cell(artifact: str, labels: dict[str, Any]) -> Published | None:
    """The published number of the cell with these labels; None if there is none.

    >>> labels = dict(aggregator="krum", attack="mimic", momentum=0, s=1, split="noniid")
    >>> cell("table2", labels).mean
    37.33
    """
    return _cells().get(_key(artifact, labels)) if set(KEYS) <= set(labels) else None


def of_seeds(artifact: str, labels: dict[str, Any], seeds: int) -> Published | None:
    """The published number of the first seeds of a cell; None if there is none.

    The deviation and the spread are those of the whole cell. Where no curves were released, so is
    the mean.

    >>> labels = dict(aggregator="krum", attack="mimic", momentum=0, s=1, split="noniid")
    >>> round(of_seeds("table2", labels, seeds=1).mean, 2)
    30.85
    """
    whole = cell(artifact, labels)
    if whole is None or not (curves := _accuracies(_key(artifact, labels))[:seeds]):
        return whole
    finals = [final(curve) for curve in curves]
    collapsed = sum(each <= COLLAPSED for each in finals)
    return replace(whole, mean=fmean(finals), seeds=len(finals), collapsed=collapsed)


def curves(artifact: str, labels: dict[str, Any]) -> list[list[tuple[int, float, float]]]:
    """The published curves of a cell: for each seed a list of (iteration, accuracy, loss).

    They are from the logs that the authors released, with the seeds 0, 1, ...; empty if there is
    none of this cell.
    """
    if not set(KEYS) <= set(labels):
        return []
    seeds = _curves().get(_key(artifact, labels), {})
    return [sorted(seeds[seed]) for seed in sorted(seeds)]


def losses(artifact: str, labels: dict[str, Any], seed: int) -> dict[int, float]:
    """The logged training losses of a released run, by round: those of its first four blocks.

    They are means over the batches of all workers, attackers included, and NaN from the round in
    which a run diverged; empty if there are none.

    >>> cell = dict(aggregator="krum", attack="alie", momentum=0, s=1, split="noniid")
    >>> losses("figure-main", cell, seed=0)[1]
    2.30219251
    """
    known = set(KEYS) <= set(labels)
    return _losses().get(_key(artifact, labels), {}).get(seed, {}) if known else {}
