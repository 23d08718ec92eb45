"""A federation on disk: a run folder as any other, and a server that is killed goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from paths import SUPPORT

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
import folders
from federation import FIRST, Nodes, hostile
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Result

from byzantium.engines.federation.vectors import change_vector
from byzantium.engines.flower import RobustStrategy, Standstill
from byzantium.reports.contents import contents as page_contents
from byzantium.runs import Store

LIAR = FIRST + 6


def grid() -> Nodes:
    nodes = federation.honest_ones(6)
    return Nodes({**nodes, LIAR: hostile(federation.REJECTED["NaN"])})


def measured(number: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": 0.5 + number / 100, "loss": 1.0})


def started(strategy: RobustStrategy, rounds: int, nodes: Nodes | None = None) -> Result:
    return strategy.start(
        nodes or grid(), federation.record(federation.plain()), rounds, evaluate_fn=measured
    )


def strategy(folder: Path, rule: str = "CenteredClipping(radius=3)", f: int = 2) -> RobustStrategy:
    return RobustStrategy(rule, f=f, folder=folder, name="trial")


def test_a_folder_holds_what_every_run_holds(tmp_path: Path) -> None:
    started(strategy(tmp_path), 3)
    (result,) = Store(tmp_path)
    assert result.status == "completed"
    assert result.accuracy == pytest.approx(52.0)
    assert [line["round"] for line in result.metrics] == [1, 2, 3]
    assert result.metrics[-1]["accuracy"] == pytest.approx(53.0)
    nodes = [int(node) for node in json.loads((result.folder / "nodes.json").read_text())]
    assert set(nodes) == {*range(FIRST, FIRST + 7)}
    for line in result.metrics:
        assert line["rejected"] == {str(nodes.index(LIAR)): 1}
        assert line["weights"][nodes.index(LIAR)] == 0
    lines = (result.folder / "rounds.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert "not finite" in first["rejected"][str(LIAR)]
    assert len(first["distances"]) == 6


def test_the_report_shows_a_real_federation(tmp_path: Path) -> None:
    started(strategy(tmp_path), 3)
    store = Store(tmp_path)
    (run,) = page_contents(store, [])["runs"]
    assert run["data"] == "trial"
    assert run["n"] == 7
    assert run["series"]["accuracy"] == pytest.approx([51.0, 52.0, 53.0])
    assert len(run["weights"]["rows"][0]) == 7
    done = subprocess.run(
        [sys.executable, "-c", "from byzantium.cli import main; main()", "report", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert folders.held(tmp_path / "report.html")["runs"][0]["data"] == "trial"


def test_a_node_that_comes_later_makes_all_lines_longer(tmp_path: Path) -> None:
    nodes = grid()
    seven = nodes.nodes.pop(FIRST)
    robust = strategy(tmp_path)

    def measure(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number == 2:
            nodes.nodes[FIRST] = seven
        return measured(number, arrays)

    robust.start(nodes, federation.record(federation.plain()), 4, evaluate_fn=measure)
    (result,) = Store(tmp_path)
    assert [len(line["weights"]) for line in result.metrics] == [7] * 4
    assert [line["sampled"] for line in result.metrics] == [6, 6, 7, 7]


def test_a_run_that_stands_still_is_failed_and_not_completed(tmp_path: Path) -> None:
    robust = RobustStrategy("Median()", f=3, folder=tmp_path, patience=2)
    nodes = Nodes(federation.honest_ones(5))
    with pytest.raises(Standstill):
        started(robust, 5, nodes)
    (result,) = Store(tmp_path)
    assert result.status == "failed"
    assert "2 rounds in a row" in result.reason
    assert [line["kept"] for line in result.metrics] == [1, 1]


@pytest.mark.parametrize("rule", ["CenteredClipping(radius=3)", "Krum()", "Median()"])
def test_going_on_from_a_checkpoint_changes_nothing(tmp_path: Path, rule: str) -> None:
    whole = started(strategy(tmp_path / "whole", rule), 6)
    started(strategy(tmp_path / "parts", rule), 2)
    later = strategy(tmp_path / "parts", rule)
    result = started(later, 6)
    assert [at.number for at in later.rounds] == [3, 4, 5, 6]
    assert list(result.evaluate_metrics_serverapp) == [3, 4, 5, 6]
    ours, theirs = (federation.arrays_of(r.arrays)["weight"] for r in (result, whole))
    # Nodes are drawn in another order, and sums rounded differently.
    assert np.allclose(ours, theirs, rtol=1e-6)
    (found,) = Store(tmp_path / "parts")
    assert [line["round"] for line in found.metrics] == [1, 2, 3, 4, 5, 6]
    assert later.trust.workers[LIAR].rejections == 6


def test_a_finished_federation_is_not_done_again(tmp_path: Path) -> None:
    first = started(strategy(tmp_path), 2)
    again = strategy(tmp_path)
    second = started(again, 2)
    assert not again.rounds
    assert (
        federation.arrays_of(first.arrays)["weight"]
        == federation.arrays_of(second.arrays)["weight"]
    ).all()


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    robust = strategy(tmp_path)
    started(robust, 3)
    assert robust.record is not None
    (robust.record.folder / "checkpoint-000000003.pt").write_bytes(b"garbage")
    later = strategy(tmp_path)
    started(later, 4)
    assert [at.number for at in later.rounds] == [3, 4]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    started(strategy(tmp_path), 1)
    with pytest.raises(bz.ByzantiumError, match="other arrays"):
        strategy(tmp_path).start(grid(), federation.record(federation.plain(9)), 2)


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[2:]
import test_record as tests
from pathlib import Path

def measured(number, arrays):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return tests.measured(number, arrays)

strategy = tests.strategy(Path(sys.argv[1]))
record = tests.federation.record(tests.federation.plain())
strategy.start(tests.grid(), record, 6, evaluate_fn=measured)
"""


def test_a_killed_server_goes_on(tmp_path: Path) -> None:
    paths = [str(SUPPORT), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), *paths],
        capture_output=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    later = strategy(tmp_path)
    started(later, 6)
    assert [at.number for at in later.rounds] == [4, 5, 6]
    (result,) = Store(tmp_path)
    assert result.status == "completed"
    assert [line["round"] for line in result.metrics] == [1, 2, 3, 4, 5, 6]


# -- what stands around the rule -------------------------------------------------------------------


def final(robust: RobustStrategy, rounds: int = 3) -> np.ndarray:
    return federation.arrays_of(started(robust, rounds).arrays)["weight"]


def test_sgd_with_the_rate_one_is_no_optimizer() -> None:
    plain = final(RobustStrategy("Median()", f=2))
    sgd = RobustStrategy("Median()", f=2, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    assert np.allclose(final(sgd), plain, atol=1e-6)


def test_adam_takes_steps_of_its_rate() -> None:
    """FedAdam: the first step of Adam is as long as its rate, whatever the gradient."""
    adam = RobustStrategy("Median()", f=2, optimizer=lambda p: torch.optim.Adam(p, lr=0.25))
    assert np.allclose(final(adam, 1), 0.25, atol=1e-4)


def test_an_optimizer_goes_on_with_its_state(tmp_path: Path) -> None:
    def robust(folder: str) -> RobustStrategy:
        return RobustStrategy(
            "Median()",
            f=2,
            folder=tmp_path / folder,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        )

    whole = final(robust("whole"), 4)
    final(robust("parts"), 2)
    assert np.allclose(final(robust("parts"), 4), whole, rtol=1e-6)


@pytest.mark.parametrize(
    "attack", [bz.InnerProduct(epsilon=5.0), bz.ALittleIsEnough(z=9), "Mimic(warmup=1)"]
)
def test_attackers_who_see_everybody_are_rehearsed_on_the_server(attack: bz.Attack | str) -> None:
    nodes = Nodes(federation.honest_ones(9))
    robust = RobustStrategy("GeometricMedian()", f=2, rehearse=attack, nodes=2)
    result = started(robust, 2, nodes)
    mean = RobustStrategy("Mean()", f=2, rehearse=attack, nodes=2)
    broken = started(mean, 2, nodes)
    ours, theirs = (
        np.abs(federation.arrays_of(r.arrays)["weight"] - 1.0).max() for r in (result, broken)
    )
    assert ours < 0.35
    if isinstance(attack, bz.InnerProduct):
        assert theirs > 0.5
    assert robust.rehearsal is not None
    assert robust.rehearsal.nodes == {FIRST, FIRST + 1}


def test_a_rehearsed_attack_knows_the_last_aggregate() -> None:
    """Without an optimizer it is the change of the model in the round before."""
    seen = []

    class Spy(bz.InnerProduct):
        needs_last_aggregate = True

        def vectors(self, scene: bz.Scene) -> torch.Tensor:
            seen.append(scene.last_aggregate)
            return super().vectors(scene)

    def change(rounds: int) -> np.ndarray:
        strategy = RobustStrategy("Median()", f=2, rehearse=Spy(), nodes=2)
        result = started(strategy, rounds, Nodes(federation.honest_ones(9)))
        return change_vector(federation.plain(), federation.arrays_of(result.arrays))

    expected = change(1)
    change(2)
    assert seen[:2] == [None, None]
    assert seen[2] is not None
    assert np.allclose(seen[2].numpy(), expected)


def test_a_rehearsal_needs_to_know_who_attacks() -> None:
    with pytest.raises(bz.ByzantiumError, match="which ones attack"):
        RobustStrategy("Median()", f=1, rehearse="Mimic()")


def test_flowers_differential_privacy_wraps_it(tmp_path: Path) -> None:
    robust = RobustStrategy("Median()", f=1, folder=tmp_path)
    private = DifferentialPrivacyServerSideFixedClipping(
        robust, noise_multiplier=0.01, clipping_norm=0.3, num_sampled_clients=6
    )
    nodes = Nodes(federation.honest_ones(6))
    result = private.start(nodes, federation.record(federation.plain()), 2)
    moved = federation.arrays_of(result.arrays)["weight"]
    assert 0.4 < np.linalg.norm(moved) < 0.8  # twice the clipping norm, and noise
    assert [at.number for at in robust.rounds] == [1, 2]
