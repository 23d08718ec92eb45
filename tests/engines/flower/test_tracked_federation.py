"""A federation in a tracker: each round once, also after the server was killed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)
pytest.importorskip(
    "tensorboard",
    reason="tensorboard is not installed: pip install '.[tensorboard]' runs its tests",
)

import federation
from federation import Nodes
from flwr.app import ArrayRecord, MetricRecord

from byzantium.engines.federation.rounds import Standstill
from byzantium.engines.flower import RobustStrategy
from byzantium.runs import Store


def measured(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": 0.5 + number / 100})


def started(folder: Path, rounds: int, nodes: int = 6) -> None:
    robust = RobustStrategy(
        "Median()", f=2, folder=folder, name="trial", track="tensorboard", patience=2
    )
    robust.start(
        Nodes(federation.honest_ones(nodes)),
        federation.record(federation.plain()),
        rounds,
        evaluate_fn=measured,
    )


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    loader = importlib.import_module("tensorboard.backend.event_processing.event_file_loader")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.*")):
        for event in loader.LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_each_round_is_sent_once_also_if_the_server_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(number: int, arrays: ArrayRecord) -> Any:
        if number == 4:
            raise Killed
        return measured(number, arrays)

    robust = RobustStrategy("Median()", f=2, folder=tmp_path, name="trial", track="tensorboard")
    model, grid = federation.record(federation.plain()), Nodes(federation.honest_ones(6))
    with pytest.raises(Killed):
        robust.start(grid, model, 6, evaluate_fn=kill)
    started(tmp_path, 6)
    (result,) = Store(tmp_path)
    assert result.status == "completed"
    found = scalars(tmp_path / "tensorboard" / result.job.identity)
    assert [step for step, _ in found["used"]] == [1, 2, 3, 4, 5, 6]
    # The server was killed between the checkpoint of round 4 and its evaluation.
    expected = [line["accuracy"] for line in result.metrics if line["round"] != 4]
    assert [x for _, x in found["accuracy"]] == pytest.approx(expected, rel=1e-6)
    assert len(found["status/text_summary"]) == 1


def test_a_federation_that_fails_is_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(Standstill):
        started(tmp_path, 5, nodes=4)
    (result,) = Store(tmp_path)
    found = scalars(tmp_path / "tensorboard" / result.job.identity)
    assert [value for _, value in found["kept"]] == [1, 1]
    assert "failure/text_summary" in found
    assert "status/text_summary" not in found


def test_a_tracker_needs_a_folder_and_a_name_that_is_known(tmp_path: Path) -> None:
    with pytest.raises(bz.ByzantiumError, match="needs a folder of results to track it"):
        RobustStrategy("Median()", f=1, track="mlflow")
    with pytest.raises(bz.ByzantiumError, match="there is no tracker 'mlfow'"):
        RobustStrategy("Median()", f=1, folder=tmp_path, track="mlfow").start(
            Nodes(federation.honest_ones(4)), federation.record(federation.plain()), 1
        )
