"""Root data: held out, of a stream of its own, and a gradient like that of a worker."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from checkpoints import DIGITS, STATES, same
from checkpoints import simulation as without_root
from torch import Tensor, nn
from torch.nn import functional

import byzantium as bz
from byzantium.attacks import Scene
from byzantium.data import Dataset, by_label, by_user
from byzantium.learning import Randomness, Settings, Simulation, mlp, simulate
from byzantium.learning.metrics import ROOT_DOUBTED
from byzantium.learning.models import linear
from byzantium.learning.root_data import MOST_GROUPS, Root, draw_root, without
from byzantium.learning.worker import Momentum


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return mlp((1, 8, 8), hidden=(8,))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def numbered(n: int = 120, classes: int = 3) -> Dataset:
    """Data whose samples are their own numbers, so that it is known who has which."""
    x = torch.arange(float(n))[:, None]
    y = torch.arange(n) % classes
    test = torch.arange(1000.0, 1010.0)[:, None]
    return Dataset("numbered", x, y, test, torch.arange(10) % classes, classes, train_user=y * 7)


# -- which samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", [bz.NoAttack(), bz.BitFlip()])
def test_no_worker_and_no_test_set_has_a_root_sample(attack: bz.Attack) -> None:
    data, settings = numbered(), Settings(n=6, attackers=2, rounds=2, batch=4, root=5)
    training = Simulation(settings, data, linear((1,), 3), bz.RootMatching(f=2), attack)
    assert training.root is not None
    held = training.root.x.flatten().tolist()
    assert len(set(held)) == 15
    assert torch.bincount(training.root.y.flatten(), minlength=3).tolist() == [5, 5, 5]
    for batches in (training.batches, training.own_batches):
        indices = torch.cat(batches.parts)
        shared = training.data.train_x[indices].flatten().tolist()
        assert not set(held) & set(shared)
    everybody = torch.cat(training.batches.parts)
    assert {*held, *training.data.train_x[everybody].flatten().tolist()} == set(range(120))
    assert torch.equal(training.data.test_x, data.test_x)


def test_users_stay_with_their_samples() -> None:
    left = without(numbered(), torch.tensor([[0, 1, 2], [9, 10, 11]]))
    assert left.train_user is not None
    assert torch.equal(left.train_user, left.train_y * 7)
    settings = Settings(n=2, rounds=1, batch=4, root=2)
    Simulation(settings, numbered(), linear((1,), 3), bz.RootOnly(), partition=by_user())


def test_the_root_has_a_stream_of_its_own() -> None:
    """The other streams are those that there were before; none depends on the size of the root."""
    names = (
        *("partition", "batches", "own batches", "server", "attack", "participants", "dropout"),
    )
    before = np.random.SeedSequence(5).generate_state(len(names), np.uint64)
    seeds = Randomness(Settings(n=3, rounds=1, seed=5)).seeds
    assert [seeds[name] for name in names] == [int(seed) >> 1 for seed in before]
    assert "root" in seeds
    assert len(set(seeds.values())) == len(seeds)
    drawn = [Randomness(Settings(n=3, rounds=1, seed=s, root=4)).root(DIGITS) for s in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_without_root_data_nothing_changes() -> None:
    assert "root" not in without_root().fingerprint()
    assert "root" not in STATES[0]
    training = without_root()
    training.load_state_dict(copy.deepcopy(STATES[1]))  # as one before there was root data
    next(iter(training))
    assert same(training.state_dict(), STATES[2])


def test_root_data_that_nobody_uses_cost_nothing_and_only_hold_out() -> None:
    """With Mean, a training with a root is one on the data that are left."""
    settings = Settings(n=4, rounds=3, batch=8, root=3, momentum=0.5)
    training = Simulation(settings, DIGITS, model(), bz.Mean())
    left = without(DIGITS, Randomness(settings).root(DIGITS))
    other = Simulation(replace(settings, root=0), left, model(), bz.Mean())
    assert training.root is None
    list(training), list(other)
    assert torch.equal(weights(training.model), weights(other.model))


def test_errors_and_warnings_name_what_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    data = numbered()
    with pytest.raises(
        bz.ByzantiumError, match="41 training samples of each class, but class 0 ha"
    ):
        draw_root(data, 41, torch.Generator())
    with pytest.raises(bz.ByzantiumError, match="leaves none of the 120 training samples"):
        draw_root(data, 40, torch.Generator())
    regression = replace(data, train_y=data.train_x[:, 0], test_y=data.test_x[:, 0], classes=0)
    with pytest.raises(bz.ByzantiumError, match="121 training samples in numbered, which has 120"):
        draw_root(regression, 121, torch.Generator())
    with pytest.raises(bz.ByzantiumError, match=r"RootMatching\(f=1\) needs root data.*root=10"):
        Simulation(Settings(n=4, rounds=1), DIGITS, model(), bz.RootMatching(f=1))
    with pytest.raises(bz.ByzantiumError, match="record 'root' only where the server holds root"):
        Settings(n=4, rounds=1, record=("root",))
    assert not caplog.records
    lacking = replace(data, classes=5)
    assert draw_root(lacking, 2, torch.Generator()).shape == (2, 3)
    assert "no training sample of class 3, 4" in caplog.text


# -- the root gradient ----------------------------------------------------------------------------


class Watching(bz.Attack):
    """Sends zeros, and remembers the root gradients that it saw."""

    needs_root = True
    seen: ClassVar[list[Tensor | None]] = []

    def vectors(self, scene: Scene) -> Tensor:
        self.seen.append(None if scene.root is None else scene.root.clone())
        return torch.zeros_like(scene.mean)


def full_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = functional.cross_entropy(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("heavy_ball", [False, True])
@pytest.mark.parametrize("local_steps", [1, 3])
def test_root_only_is_training_on_the_root_in_a_plain_loop(
    heavy_ball: bool, local_steps: int
) -> None:
    settings = Settings(
        n=5,
        attackers=2,
        rounds=6,
        batch=4,
        root=4,
        momentum=0.8,
        heavy_ball=heavy_ball,
        learning_rate=0.3,
        local_steps=local_steps,
        local_rate=0.05,
        dtype="float64",
    )
    training = Simulation(settings, DIGITS, model(), bz.RootOnly(), bz.BitFlip(), by_label())
    list(training)

    indices = Randomness(settings).root(DIGITS).flatten()
    x, y = DIGITS.train_x[indices].double(), DIGITS.train_y[indices]
    plain, m = model().double(), None
    for _ in range(settings.rounds):
        local = copy.deepcopy(plain)
        total = torch.zeros_like(weights(plain))
        for _ in range(local_steps):
            step = full_gradient(local, x, y)
            total += step
            nn.utils.vector_to_parameters(weights(local) - 0.05 * step, local.parameters())
        m = total if m is None else 0.8 * m + (1.0 if heavy_ball else 1 - 0.8) * total
        nn.utils.vector_to_parameters(weights(plain) - 0.3 * m, plain.parameters())
    assert torch.allclose(weights(training.model), weights(plain), rtol=1e-9, atol=1e-12)


def test_attackers_see_the_root_gradient_and_tuned_ones_try_the_rule_with_it() -> None:
    settings = Settings(n=5, attackers=2, rounds=2, batch=4, root=3)
    Watching.seen.clear()
    training = Simulation(settings, DIGITS, model(), bz.Mean(), Watching())
    assert training.root is not None
    expected = full_gradient(model(), training.root.x[0, 0], training.root.y[0, 0])
    list(training)
    first, second = Watching.seen
    assert first is not None
    assert second is not None
    assert torch.allclose(first, expected, atol=1e-6)
    assert not torch.allclose(first, second, atol=1e-6)
    with pytest.raises(bz.ByzantiumError, match="needs root data"):
        Simulation(replace(settings, root=0), DIGITS, model(), bz.Mean(), Watching())
    with pytest.raises(bz.ByzantiumError, match="needs the server's root gradient, root="):
        Watching()(torch.ones(3, 2), q=1)

    honest, root = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.ones(4)
    tuned, rule = bz.Tuned(bz.InnerProduct()), bz.RootMatching(f=2)
    sent = tuned(honest, q=2, rule=rule, root=root)
    plain = [bz.InnerProduct(epsilon=2.0**k)(honest, q=2) for k in range(-4, 6)]

    def away(bad: Tensor) -> float:
        return float((rule(torch.cat([honest, bad]), root=root) - honest.mean(dim=0)).norm())

    assert away(sent) >= max(map(away, plain)) - 1e-6


def test_a_root_that_is_not_finite_is_divergence() -> None:
    settings = Settings(n=4, rounds=50, learning_rate=1e30, root=2)
    history = simulate(settings, DIGITS, model(), bz.RootOnly())
    assert history.status == "diverged"


def test_dropout_of_the_root_is_its_own_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(n=3, rounds=9, root=1)
    source = Randomness(settings)
    seeds = {source.dropout(t, worker) for t in range(9) for worker in range(3)}
    assert seeds.isdisjoint({source.root_dropout(t) for t in range(9)})
    shared = Randomness(replace(settings, dropout="shared"))
    assert {shared.root_dropout(0), shared.root_dropout(5)} == {shared.dropout(3, 1)}


@pytest.mark.parametrize("record", [(), ("root",)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_training_with_a_root_goes_on_bit_by_bit(
    tmp_path: Path, record: tuple[str, ...], momentum: float
) -> None:
    settings = Settings(
        n=6, attackers=1, rounds=6, batch=4, root=4, momentum=momentum, record=record
    )

    def begin() -> Simulation:
        rule, attack = bz.RootMatching(f=1), bz.Tuned(bz.InnerProduct())
        return Simulation(settings, DIGITS, model(), rule, attack, by_label())

    whole = begin()
    list(whole)
    first, second = begin(), begin()
    rounds = iter(first)
    for _ in range(3):
        next(rounds)
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    list(second)
    assert same(second.state_dict(), whole.state_dict())
    state["root"]["server"]["sent"] = torch.zeros(1, 3)
    with pytest.raises(bz.ByzantiumError, match="its root is not one of this simulation"):
        begin().load_state_dict(state)


# -- how good it is -------------------------------------------------------------------------------


def test_the_standard_error_is_that_of_many_draws() -> None:
    """The mean squared error of stratified roots, beside the mean of its estimates."""
    data, net = numbered(300, 3), linear((1,), 3)
    data = replace(data, train_x=torch.randn(300, 1, generator=torch.Generator().manual_seed(1)))
    true = full_gradient(net, data.train_x, data.train_y)
    generator, plain = torch.Generator().manual_seed(2), Momentum(0.0)
    squares, estimates = [], []
    for _ in range(300):
        indices = draw_root(data, 12, generator)
        root = Root(
            net,
            functional.cross_entropy,
            data.train_x[indices],
            data.train_y[indices],
            estimate_error=True,
        )
        assert root.groups is not None
        assert len(root.groups.sent) == MOST_GROUPS
        vector, error = root.compute(plain, rate=1.0, seed=0)
        assert error is not None
        squares.append(float((vector - true).square().sum()))
        estimates.append(error**2)
    # 12 of 100 samples of a class are drawn, without replacement: the true error is 12 % smaller.
    # And each of ten groups has one sample, so that the estimate is that of ten, not twelve.
    expected = sum(squares) / 0.88 * 12 / 10
    assert math.isclose(sum(estimates), expected, rel_tol=0.15)


def test_one_sample_of_each_class_overestimates_the_error_and_one_sample_has_none() -> None:
    x, y = torch.randn(1, 3, 2), torch.tensor([[0, 1, 2]])
    root = Root(linear((2,), 3), functional.cross_entropy, x, y, estimate_error=True)
    assert root.groups is not None
    assert len(root.groups.sent) == 3
    with pytest.raises(bz.ByzantiumError, match="at least two root samples"):
        Root(linear((2,), 3), functional.cross_entropy, x[:, :1], y[:, :1], estimate_error=True)


def test_regression_has_root_samples_in_all() -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = x @ torch.tensor([1.0, -2.0, 0.5])
    data = Dataset("line", x[:160], y[:160], x[160:], y[160:], classes=0)
    settings = Settings(
        n=10, attackers=4, rounds=80, batch=8, root=20, loss="squared", record=("root",)
    )
    attack = bz.InnerProduct(epsilon=10)
    history = simulate(settings, data, linear((3,), 1), bz.RootMatching(f=4), attack)
    assert history.evaluations[-1]["loss"] < 0.01


def records(training: Simulation) -> list[dict[str, Any]]:
    list(training)
    return training.history.rounds


def test_a_distance_beyond_the_error_of_the_root_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Five are declared: when five attack nothing is logged, when ten do it is."""
    common: dict[str, Any] = {
        "n": 25,
        "rounds": 20,
        "root": 10,
        "momentum": 0.9,
        "evaluate_every": 5,
        "record": ("root",),
    }
    caplog.set_level(logging.WARNING, "byzantium")
    for attackers in (5, 10):
        caplog.clear()
        settings = Settings(attackers=attackers, **common)
        attack = bz.InnerProduct(epsilon=10)
        rounds = records(
            Simulation(settings, DIGITS, model(), bz.RootMatching(f=5), attack, by_label())
        )
        beyond = [one["root_distance"] > one["root_limit"] for one in rounds]
        assert all(one["root_limit"] > 2 * one["root_error"] > 0 for one in rounds)
        if attackers == 5:
            assert not any(beyond)
        else:
            assert all(beyond)
        assert caplog.text.count(ROOT_DOUBTED) == (attackers == 10)


def test_the_root_survives_an_attack_that_ends_rules_without_it() -> None:
    settings = Settings(
        n=25,
        attackers=5,
        rounds=80,
        momentum=0.9,
        learning_rate=0.2,
        root=10,
        evaluate_every=80,
        record=(),
    )
    accuracy = {}
    for rule in (bz.RootMatching(f=5), bz.GeometricMedian()):
        torch.manual_seed(0)
        attack = bz.InnerProduct(epsilon=10)
        history = simulate(settings, DIGITS, mlp((1, 8, 8)), rule, attack, by_label())
        accuracy[type(rule)] = history.evaluations[-1]["accuracy"]
    assert accuracy[bz.RootMatching] > 85
    assert accuracy[bz.GeometricMedian] < 70
