"""Zeno: trial steps on root data, alone and in trainings."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import reference_related
import torch
from torch import Tensor

import byzantium as bz
from byzantium import related
from byzantium.data import by_label, load
from byzantium.learning import Settings, Simulation, mlp
from byzantium.testing import D, N

GOAL = torch.ones(D, dtype=torch.float64)


def loss(step: Tensor) -> float:
    """That of a quadratic with its minimum at GOAL, at the model 0."""
    return float((-step - GOAL).square().sum())


def gradients(n: int = N) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return -2 * GOAL + torch.randn(n, D, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("trial", "rho"), [(0.01, 0.005), (0.5, 0.0), (0.2, 2.0)])
def test_the_best_of_the_definition_are_averaged(trial: float, rho: float) -> None:
    X = gradients()
    X[3:9] *= -1
    expected = reference_related.zeno(
        X.numpy(), lambda step: float(np.sum((-step - 1) ** 2)), 7, trial, rho
    )
    result = related.Zeno(f=7, trial=trial, rho=rho)(X, root=loss)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("bad", [5, 15, 22])
def test_more_than_half_may_attack(bad: int) -> None:
    X = gradients()
    X[N - bad :] *= -10
    report = related.Zeno(f=bad).explain(X, root=loss)
    assert not report.weights[N - bad :].any()


def test_a_loss_that_is_not_finite_is_the_worst_score() -> None:
    X = gradients()
    X[0] = 1e100

    def overflowing(step: Tensor) -> float:
        return float("nan") if step.norm() > 1e50 else loss(step)

    assert related.Zeno(f=1).explain(X, root=overflowing).weights[0] == 0


def test_it_needs_the_loss_and_not_a_gradient() -> None:
    for root in (None, GOAL):
        with pytest.raises(bz.ByzantiumError, match="needs the loss of root data"):
            related.Zeno(f=1)(gradients(), root=root)


def training(rule: bz.Aggregator, attack: bz.Attack, **options: Any) -> Simulation:
    torch.manual_seed(0)
    options = {"n": 10, "attackers": 3, "rounds": 8, "root": 5, "record": (), **options}
    return Simulation(Settings(**options), load("digits"), mlp((1, 8, 8)), rule, attack, by_label())


def test_a_simulation_passes_the_loss_of_its_root_data() -> None:
    """Counted by a rule of the user's: the loss falls along the gradient of the root data."""
    seen = []

    class Probe(bz.Mean):
        root_form = "loss"
        needs_root = True

        def try_before_admission(self, source: Any, explain: bool) -> Any:
            return bz.Weighting.try_before_admission(self, source, explain)

        def weights(self, geometry: bz.Geometry) -> Any:
            root_loss = geometry.basis.source.root_loss
            assert root_loss is not None
            zero = geometry.rows()[0] * 0
            seen.append((root_loss(zero), root_loss(-0.1 * gradient), root_loss(0.1 * gradient)))
            return super().weights(geometry)

    simulation = training(Probe(), bz.NoAttack(), attackers=0)
    before = copy.deepcopy(simulation.model.state_dict())
    x, y = simulation.root_samples or (torch.zeros(0), torch.zeros(0))
    value = torch.nn.functional.cross_entropy(simulation.model(x.flatten(0, 1)), y.flatten())
    parts = torch.autograd.grad(value, list(simulation.model.parameters()))
    gradient = torch.cat([part.flatten() for part in parts])
    next(iter(simulation))
    ((now, up, down),) = seen
    assert now == pytest.approx(value.item(), rel=1e-5)
    assert down < now < up
    assert not all(torch.equal(before[k], v) for k, v in simulation.model.state_dict().items())


@pytest.mark.parametrize(
    "attack",
    [bz.BitFlip(), bz.Adaptive("distance", budget=10), bz.Tuned(bz.InnerProduct(), both=False)],
    ids=repr,
)
def test_attackers_can_try_it(attack: bz.Attack) -> None:
    simulation = training(related.Zeno(f=3), attack, rounds=2)
    for _ in simulation:
        pass
    assert simulation.history.status == "completed"


@pytest.mark.parametrize(
    "rule",
    [
        related.Zeno(f=3),
        related.Safeguard(short=2, long=5),
        related.ByzantineSGD(v=5, t_a=1e3, t_b=40),
        related.BlockGeometricMedian(share=0.1),
    ],
    ids=repr,
)
def test_a_training_goes_on_from_a_checkpoint(rule: bz.Aggregator) -> None:
    whole = training(rule, bz.BitFlip(), momentum=0.9)
    for k, _ in enumerate(whole):
        if k == 3:
            state = copy.deepcopy(whole.state_dict())
    resumed = training(rule, bz.BitFlip(), momentum=0.9)
    resumed.load_state_dict(state)
    for _ in resumed:
        pass
    expected, result = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(result[name], value) for name, value in expected.items())


def test_a_rule_that_remembers_workers_needs_all_of_them() -> None:
    with pytest.raises(bz.ByzantiumError, match="needs all of them in each round"):
        training(related.Safeguard(), bz.NoAttack(), participants=5)
