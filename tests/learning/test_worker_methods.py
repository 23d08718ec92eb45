"""Worker methods in general: their state, what they refuse, and how they are named."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import members
import pytest
import torch
from checkpoints import DIGITS, same
from torch import Tensor

import byzantium as bz
from byzantium.core import files
from byzantium.learning import (
    Settings,
    Simulation,
    Task,
    WorkerMethod,
    checkpoint,
    linear,
    measured_heterogeneity,
    simulate,
)
from byzantium.learning.checkpoint import CheckpointError
from byzantium.related import RSA, SAGA, Marina, SignSum
from byzantium.runs import Run, check_ready, load_plugin

METHODS = [pytest.param(method, id=repr(method)) for method in members.WORKERS]
OTHERS = METHODS[1:]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return linear((1, 8, 8))


def simulation(method: WorkerMethod, attack: bz.Attack | None = None, **changes: Any) -> Simulation:
    momentum = getattr(method, "beta", 0.0)
    values = {"attackers": 2, "rounds": 8, "batch": 8, "momentum": momentum, "evaluate_every": 4}
    settings = Settings(n=7, record=(), **{**values, **changes})
    rule = SignSum(method.penalty) if isinstance(method, RSA) else bz.CenteredClipping(1.0)
    return Simulation(settings, DIGITS, model(), rule, attack or bz.NoAttack(), worker=method)


# -- state --------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"participants": 4}], ids=["all", "some"])
@pytest.mark.parametrize("method", METHODS)
def test_a_stopped_training_goes_on_to_the_bit(
    method: WorkerMethod, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Attackers follow the method, too, and the simulations share no object."""
    whole, first, second = (simulation(method, **changes) for _ in range(3))
    list(whole)
    for record in first:
        if record["round"] == 3:
            break
    checkpoint.save(tmp_path, 3, first.state_dict())
    list(first)  # what was saved does not change any more
    second.load_state_dict(checkpoint.load(tmp_path / "checkpoint-000000003.pt"))
    list(second)
    states = [run.state_dict() for run in (whole, first, second)]
    losses = [[record["loss"] for record in state.pop("history")["rounds"]] for state in states]
    assert losses[0] == losses[1] == losses[2]
    assert same(states[1], states[0])
    assert same(states[2], states[0])
    assert method.state == {}  # a simulation works with a copy


@pytest.mark.parametrize("method", OTHERS)
def test_a_state_of_another_form_is_refused_and_changes_nothing(method: WorkerMethod) -> None:
    run = simulation(method)
    for record in run:
        if record["round"] == 3:
            break
    good = copy.deepcopy(run.state_dict())
    names = [name for name in ("worker", "last model", "last aggregate") if name in good]
    assert names
    fresh = simulation(method)
    before = copy.deepcopy(fresh.state_dict())
    for name in names:
        inner = good[name]
        bad: list[Any] = [None, [1], torch.zeros(2)]
        if isinstance(inner, dict):
            key = next(iter(inner))
            bad += [{**inner, key: inner[key][1:]}, {**inner, "more": inner[key]}, {}]
        for value in bad:
            with pytest.raises(CheckpointError, match=name):
                fresh.load_state_dict({**good, name: value})
        with pytest.raises(CheckpointError, match=name):
            fresh.load_state_dict({key: one for key, one in good.items() if key != name})
    with pytest.raises(checkpoint.OtherSimulationError):
        simulation(members.WORKERS[0]).load_state_dict(good)
    assert same(fresh.state_dict(), before)
    fresh.load_state_dict(good)


def test_attackers_remember_only_where_they_follow_the_method() -> None:
    following, plain = simulation(SAGA(), bz.NoAttack()), simulation(SAGA(), bz.BitFlip())
    own = sum(len(part) for part in following.own_batches.parts)
    tables = [len(run.worker.state["gradients"]) for run in (following, plain)]
    assert tables[0] - tables[1] == own
    *_, record = plain
    assert record["round"] == 8


@pytest.mark.parametrize("attack", [bz.Backdoor(), bz.Mimic(warmup=2), bz.RelocatedPerturbation()])
@pytest.mark.parametrize("method", OTHERS)
def test_attacks_run_against_all_methods(method: WorkerMethod, attack: bz.Attack) -> None:
    assert list(simulation(method, attack))[-1]["round"] == 8


# -- what does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize("method", OTHERS)
def test_momentum_and_local_steps_are_refused_beside_another_method(method: WorkerMethod) -> None:
    with pytest.raises(bz.ByzantiumError, match="have no momentum: set momentum=0, got momentum="):
        simulation(method, momentum=0.9)
    with pytest.raises(bz.ByzantiumError, match="set local_steps=1, got local_steps=3"):
        simulation(method, local_steps=3)


def test_momentum_is_that_of_the_settings() -> None:
    with pytest.raises(bz.ByzantiumError, match=r"says Momentum\(beta=0\): got Momentum\(beta=0.9"):
        simulation(members.WORKERS[0], momentum=0.0)


def test_marina_is_refused_where_the_server_aggregates_vectors_of_several_rounds() -> None:
    with pytest.raises(bz.ByzantiumError, match="vectors are of one round: set cache=False"):
        simulation(Marina(p=0.5), cache=True, participants=4)
    for p in (0.0, 1.5):
        with pytest.raises(bz.ByzantiumError, match="Marina needs 0 < p <= 1"):
            Marina(p=p)


def test_a_table_larger_than_a_quarter_of_the_memory_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a simulation, and by the checks before a sweep; the model has 650 parameters."""
    run = Run(worker="SAGA", model="linear", partition="iid", attack="NoAttack")
    samples, d = len(DIGITS.train_y) + 25, 650  # and an average for each worker
    monkeypatch.setattr(files, "quarter_of_memory", lambda: 4 * samples * d)
    check_ready([run])
    monkeypatch.setattr(files, "quarter_of_memory", lambda: 4 * samples * d - 1)
    for check in (lambda: check_ready([run]), run.simulation):
        with pytest.raises(bz.ByzantiumError, match=r"SAGA\(\) would remember 0.00\d+ GiB"):
            check()
    check_ready([Run(worker="Marina(p=0.5)")])


def test_other_samples_in_each_pass_are_refused() -> None:
    run = simulation(SAGA())
    run.batches.orders[0] = run.batches.parts[1]
    with pytest.raises(bz.ByzantiumError, match="draw from the same samples in each pass"):
        next(iter(run))


# -- names --------------------------------------------------------------------------------------


def test_a_run_names_its_method_in_one_way() -> None:
    assert Run().worker == Run(worker="Momentum").worker == "Momentum()"
    assert Run(worker="Momentum(beta=0.5)", momentum=0.5) == Run(momentum=0.5)
    run = Run(worker="SAGA", momentum=0.9, heavy_ball=True)
    assert (run.worker, run.momentum, run.heavy_ball) == ("SAGA()", 0.0, False)
    assert run == Run(worker="SAGA()", momentum=0.0)
    assert Run.of({key: one for key, one in run.configuration().items() if key != "kind"}) == run
    assert isinstance(run.simulation().worker, SAGA)
    assert Run().identity != Run(worker="Marina(p=0.1)", momentum=0.9).identity


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"worker": "Marina()"}, "lacks the argument 'p'"),
        ({"worker": "Krum(f=5)"}, "names 'Krum', which does not exist"),
        ({"worker": "SAGA()", "local_steps": 2}, "set local_steps=1, got local_steps=2"),
        ({"worker": "Momentum(beta=0.5)"}, r"says Momentum\(beta=0.9\): got Momentum\(beta=0.5\)"),
        ({"worker": "RSA(penalty=0.1)"}, r"the rule SignSum\(penalty=0.1\) is for"),
        ({"worker": "SAGA()", "randomness": "released"}, "needs worker='Momentum\\(\\)', got"),
    ],
)
def test_a_run_whose_method_does_not_fit_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence):
        Run(**changes)


def test_a_run_compares_with_its_root_data_alone_whatever_workers_do() -> None:
    run = Run(worker="SAGA", rule="RootMatching()", root=10, attack="BitFlip()")
    alone = run.root_alone()
    assert alone is not None
    assert alone.worker == "Momentum()"
    assert alone.momentum == 0


def test_a_plugin_adds_a_method(tmp_path: Path) -> None:
    file = tmp_path / "signs.py"
    file.write_text(
        "from byzantium.learning import WorkerMethod\n\n"
        "class Signs(WorkerMethod):\n"
        "    def compute(self, rows, task):\n"
        "        losses = task.team.gradients(rows, task.x, task.y, seeds=task.seeds)\n"
        "        rows.sign_()\n"
        "        return losses\n"
    )
    load_plugin(file)
    run = Run(worker="Signs", rounds=2, model="linear")
    assert [text.partition(" ")[0] for text in run.plugin] == ["signs.py"]
    training = run.simulation()
    next(iter(training))
    assert set(training.sent[: training.honest].flatten().tolist()) <= {-1.0, 0.0, 1.0}


def test_heterogeneity_is_measured_of_what_the_method_sends() -> None:
    """Full gradients differ less than those of batches."""
    settings = Settings(n=7, batch=4)
    measured = [
        measured_heterogeneity(settings, DIGITS, model(), worker=worker)
        for worker in (None, Marina(p=1.0))
    ]
    assert measured[1] < measured[0] / 4


def test_simulate_takes_a_method() -> None:
    class Twice(WorkerMethod):
        def compute(self, rows: Tensor, task: Task) -> Tensor:
            losses = task.team.gradients(rows, task.x, task.y, seeds=task.seeds, share=2.0)
            assert task.new == ([0, 1, 2] if not any(task.team.seen) else [])
            return losses

    found = []
    for rate, worker in ((0.1, Twice()), (0.2, None)):
        settings = Settings(n=3, rounds=4, learning_rate=rate)
        history = simulate(settings, DIGITS, model(), bz.Mean(), worker=worker)
        found.append([record["loss"] for record in history.rounds])
    assert found[0] == found[1]
