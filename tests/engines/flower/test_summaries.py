"""What Flower's metrics, the folder and the log say of a federation of many nodes."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import FIRST, LIES, REJECTED, USED, Nodes, honest_ones, hostile

from byzantium.engines.federation.record import ROUNDS
from byzantium.engines.flower import RobustStrategy

ROUNDS_OF_RUN = 50


def crowd(honest: int, *attackers: str) -> Nodes:
    bad = {
        FIRST + honest + k: hostile({**REJECTED, **USED, **LIES}[kind], k)
        for k, kind in enumerate(attackers)
    }
    return Nodes(honest_ones(honest) | bad)


def start(strategy: RobustStrategy, grid: Nodes, rounds: int) -> dict[int, dict[str, Any]]:
    result = strategy.start(grid, federation.record(federation.model()), num_rounds=rounds)
    return {number: dict(record) for number, record in result.train_metrics_clientapp.items()}


def test_metrics_do_not_grow_with_the_nodes_and_the_folder_has_each_node(tmp_path: Path) -> None:
    many = RobustStrategy("Krum()", f=1, folder=tmp_path)
    few = RobustStrategy("Krum()", f=1)
    metrics = start(many, crowd(99, "far away"), ROUNDS_OF_RUN)
    names = set(start(few, crowd(5, "far away"), 1)[1])
    assert all(set(record) <= names for record in metrics.values())
    assert sum(len(record) for record in metrics.values()) < 1500
    (folder,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in (folder / ROUNDS).read_text().splitlines()]
    assert len(lines) == ROUNDS_OF_RUN
    for line, at in zip(lines, many.rounds, strict=True):
        assert line["weights"] == {str(node): weight for node, weight in at.weights.items()}
        assert len(line["distances"]) == len(line["weights"]) == 100


def test_summaries_are_those_of_the_nodes() -> None:
    strategy = RobustStrategy("GeometricMedian()", f=1)
    (record,) = start(strategy, crowd(6, "far away"), 1).values()
    (at,) = strategy.rounds
    for name, values in (("weight", at.weights), ("distance", at.distances)):
        numbers = sorted(values.values())
        assert record[f"{name}-min"] == numbers[0]
        assert record[f"{name}-median"] == median(numbers)
        assert record[f"{name}-max"] == numbers[-1]
    assert record["near-zero"] == sum(w < 0.1 / 7 for w in at.weights.values()) == 1


def test_the_numbers_of_each_node_are_added_on_request() -> None:
    plain = RobustStrategy("GeometricMedian()", f=1)
    full = RobustStrategy("GeometricMedian()", f=1, node_metrics=True)
    (summary,) = start(plain, crowd(6, "NaN"), 1).values()
    (record,) = start(full, crowd(6, "NaN"), 1).values()
    (at,) = full.rounds
    expected = {f"rejected-{FIRST + 6}"}
    expected |= {f"{name}-{node}" for name in ("weight", "distance") for node in at.used}
    assert set(record) - set(summary) == expected


def test_the_log_names_nodes_whose_weight_stays_near_zero_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy = RobustStrategy("GeometricMedian()", f=2)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        start(strategy, crowd(8, "far away", "far away"), 10)
    said = sorted(message for message in caplog.messages if "stays near zero" in message)
    assert len(said) == 2
    for node, message in zip((FIRST + 8, FIRST + 9), said, strict=True):
        assert f"the weight of node {node} stays near zero: 0.00 of an equal share" in message
