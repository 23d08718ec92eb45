"""The numbers that the bucketing paper published: its tables, and curves from its released logs.

S. P. Karimireddy, L. He, M. Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via
Bucketing, ICLR 2022.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

# What tells the cells of an artifact apart in the published data.
KEYS = ("aggregator", "attack", "momentum", "s", "split")


@dataclass(frozen=True)
class Published:
    """What was published for a cell.

    - `mean`: the mean test accuracy over seeds, in percent.
    - `deviation`: its standard deviation over seeds.
    - `seeds`: how many seeds there were.
    """

    mean: float
    deviation: float
    seeds: int


@cache
def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("byzantium.papers").joinpath("reference", name).read_text()
    return list(csv.DictReader(text.splitlines()))


def _key(artifact: str, labels: dict[str, Any]) -> tuple[Any, ...]:
    return (
        artifact,
        labels["aggregator"],
        labels["attack"],
        float(labels["momentum"]),
        int(labels["s"]),
        labels["split"],
    )


@cache
def _cells() -> dict[tuple[Any, ...], Published]:
    return {
        _key(row["artifact"], dict(row)): Published(
            float(row["mean_accuracy"]), float(row["std_accuracy"]), int(row["seeds"])
        )
        for row in _rows("published_results.csv")
    }


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


def cell(artifact: str, labels: dict[str, Any]) -> Published | None:
    """What was published for a cell with these labels; None if nothing was.

    >>> cell("table2", dict(aggregator="krum", attack="mimic", momentum=0, s=1, split="noniid"))
    Published(mean=37.33, deviation=6.78, seeds=3)
    """
    return _cells().get(_key(artifact, labels)) if set(KEYS) <= set(labels) else None


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
