"""SAGA and MARINA on the workers: against slow loops, and the convergence that SGD lacks."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import byzantium as bz
from byzantium.data import Dataset, GivenBatches, Partition, by_label
from byzantium.learning import Randomness, Settings, Simulation, Task, WorkerMethod, spread
from byzantium.learning.optimizers import SGD
from byzantium.learning.worker import Workers
from byzantium.related import SAGA, Marina

D, CLASSES = 3, 2


def small(n: int = 31) -> Dataset:
    """Few samples, which no straight line divides into the two classes."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + torch.randn(n, generator=generator) > 0).long()
    return Dataset("small", x, y, x, y, classes=CLASSES)


DATA = small()


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(D, CLASSES, bias=False)).double()


SETTINGS = Settings(
    n=5, attackers=1, rounds=14, batch=3, learning_rate=0.4, dtype="float64", record=()
)


class Following(bz.LabelFlip):
    """Attackers who follow the worker method, on flipped labels."""

    own_momentum: ClassVar[bool] = True


def training(
    worker: WorkerMethod | None, settings: Settings = SETTINGS, **parts: object
) -> Simulation:
    given = {"rule": bz.Mean(), "attack": Following(), "partition": by_label(), **parts}
    return Simulation(settings, DATA, model(), worker=worker, **given)  # type: ignore[arg-type]


# -- slow loops ---------------------------------------------------------------------------------


def gradient(worker: int, weight: Tensor, samples: Sequence[int]) -> Tensor:
    """The mean gradient of samples, one after the other, as a worker sees them."""
    total = torch.zeros_like(weight)
    for sample in samples:
        leaf = weight.clone().requires_grad_()
        label = CLASSES - 1 - DATA.train_y[sample] if worker == LIAR else DATA.train_y[sample]
        loss = functional.cross_entropy((leaf @ DATA.train_x[sample])[None], label[None])
        total += torch.autograd.grad(loss, leaf)[0] / len(samples)
    return total


# Of the round, the worker, the model, all samples of the worker and those of its batch.
Estimate = Callable[[int, int, Tensor, list[int], list[int]], Tensor]
Slow = Callable[[Randomness], tuple[Estimate, Callable[[Tensor, Tensor], None]]]
LIAR = SETTINGS.n - 1


def descent(slow: Slow, following: bool) -> Tensor:
    """The model after rounds in which the server takes the mean of what workers send.

    - `following`: whether the attacker follows the method; else it sends plain gradients.
    """
    randomness = Randomness(SETTINGS)
    batches = randomness.batches(DATA, by_label())
    own = randomness.own_batches(DATA)
    parts = [*batches.parts, *own.parts]
    weight = next(model().parameters()).detach()
    estimate, after = slow(randomness)
    for t in range(SETTINGS.rounds):
        drawn = [*batches.draw(range(LIAR)), *own.draw([0])]
        sent = [
            estimate(t, i, weight, part.tolist(), batch.tolist())
            if i < LIAR or following
            else gradient(i, weight, batch.tolist())
            for i, (part, batch) in enumerate(zip(parts, drawn, strict=True))
        ]
        aggregate = torch.stack(sent).mean(dim=0)
        after(weight, aggregate)
        weight = weight - SETTINGS.learning_rate * aggregate
    return weight


def slow_saga(_: Randomness) -> tuple[Estimate, Callable[[Tensor, Tensor], None]]:
    tables: dict[int, dict[int, Tensor]] = {}

    def estimate(t: int, i: int, weight: Tensor, part: list[int], batch: list[int]) -> Tensor:
        if i not in tables:
            tables[i] = {j: gradient(i, weight, [j]) for j in part}
        table, fresh = tables[i], {j: gradient(i, weight, [j]) for j in batch}
        average = torch.stack([table[j] for j in part]).mean(dim=0)
        change = torch.stack([fresh[j] - table[j] for j in batch]).mean(dim=0)
        table |= fresh
        return average + change

    return estimate, lambda weight, aggregate: None


P = 0.3


def slow_marina(randomness: Randomness) -> tuple[Estimate, Callable[[Tensor, Tensor], None]]:
    last: list[Tensor] = []

    def estimate(t: int, i: int, weight: Tensor, part: list[int], batch: list[int]) -> Tensor:
        if not last or np.random.default_rng(randomness.common(t)).random() < P:
            return gradient(i, weight, part)
        before, aggregate = last
        return aggregate + gradient(i, weight, batch) - gradient(i, before, batch)

    def after(weight: Tensor, aggregate: Tensor) -> None:
        last[:] = weight, aggregate

    return estimate, after


@pytest.mark.parametrize("attack", [Following(), bz.LabelFlip()])
@pytest.mark.parametrize(("method", "slow"), [(SAGA(), slow_saga), (Marina(p=P), slow_marina)])
def test_workers_send_what_a_slow_loop_says(
    method: WorkerMethod, slow: Slow, attack: bz.Attack
) -> None:
    """One of the workers holds a sample twice."""
    run = training(method, attack=attack)
    assert any(len(set(part.tolist())) < len(part) for part in run.batches.parts)
    list(run)
    weight, expected = next(run.model.parameters()).detach(), descent(slow, attack.own_momentum)
    torch.testing.assert_close(weight, expected, rtol=0, atol=1e-13)


def test_the_coin_of_marina_falls_on_both_sides_in_these_rounds() -> None:
    randomness = Randomness(SETTINGS)
    coins = [np.random.default_rng(randomness.common(t)).random() < P for t in range(1, 14)]
    assert 2 < sum(coins) < 10


# -- what defines the methods -------------------------------------------------------------------


def test_saga_is_unbiased_and_its_table_follows() -> None:
    """The mean over all batches of two of five samples is the full gradient, at any table."""
    method, d = SAGA(), D * CLASSES
    workers = Workers(model(), 1)
    part = torch.tensor([4, 9, 0, 17, 2])
    method.prepare(workers, {0: part})

    def samples(indices: Tensor) -> tuple[Tensor, Tensor]:
        return DATA.train_x[indices], DATA.train_y[indices]

    def task(batch: Sequence[int]) -> Task:
        indices = torch.tensor(batch)[None, None]
        return Task(
            workers, [0], *samples(indices), indices, [part], samples, 1.0, 1.0, seeds=[0], seed=0
        )

    first = torch.zeros(1, d, dtype=torch.float64)
    method.compute(first, task([4, 9]))  # the table is filled at the first model
    workers.seen[0] = True
    weight = next(workers.gradients.model.parameters())
    torch.testing.assert_close(first[0], gradient(0, weight.detach(), part.tolist()).flatten())
    with torch.no_grad():
        weight.add_(1.0)
    method.compute(first, task([0, 2]))  # two of its rows are at the second
    with torch.no_grad():
        weight.mul_(-0.5)
    full = gradient(0, weight.detach(), part.tolist()).flatten()
    estimates = []
    for batch in itertools.combinations(part.tolist(), 2):
        row = torch.zeros(1, d, dtype=torch.float64)
        copy.deepcopy(method).compute(row, task(batch))
        estimates.append(row[0])
    assert len(estimates) == 10
    torch.testing.assert_close(torch.stack(estimates).mean(dim=0), full, rtol=0, atol=1e-15)
    assert min(float((one - full).norm()) for one in estimates) > 1e-3
    for sample in (4, 9, 17, 2, 0):
        method.compute(first, task([sample, sample]))  # as often as all, but changed once
    torch.testing.assert_close(method.state["average"][0], full, rtol=0, atol=1e-15)


class InOrder(Randomness):
    """Each batch of a worker is all its samples, in their order."""

    def batches(self, data: Dataset, partition: Partition) -> GivenBatches:
        parts = super().batches(data, partition).parts
        return GivenBatches(lambda worker, _: parts[worker], self.honest, len(parts[0]), parts)

    def own_batches(self, data: Dataset) -> GivenBatches:
        return GivenBatches(lambda worker, _: torch.arange(8), 1, 8)


@pytest.mark.parametrize("rule", [bz.Mean(), bz.Bucketing(s=2) >> bz.GeometricMedian()])
def test_marina_with_full_gradients_alone_is_full_gradient_descent_to_the_bit(
    rule: bz.Aggregator,
) -> None:
    parts: dict[str, Any] = {"attack": bz.InnerProduct(), "rule": rule}
    marina, plain = training(Marina(p=1), **parts), training(None, randomness=InOrder, **parts)
    for one, other in zip(marina, plain, strict=True):
        assert one["loss"] == other["loss"]
        assert torch.equal(marina.sent, plain.sent)
    assert torch.equal(marina.server.model_vector(), plain.server.model_vector())


# -- linear convergence -------------------------------------------------------------------------

DECAY = 0.1


@bz.partition
def shared(samples: np.ndarray, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
    """All workers hold the same samples."""
    return [samples[:12]] * workers


def objective(weight: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The mean over workers of their mean losses, with weight decay."""
    outputs = [DATA.train_x[part] @ weight.T for part in parts]
    losses = [
        functional.cross_entropy(out, DATA.train_y[part])
        for out, part in zip(outputs, parts, strict=True)
    ]
    return torch.stack(losses).mean() + DECAY / 2 * weight.square().sum()


def minimum(parts: Sequence[Tensor]) -> float:
    """The least value of the objective, by Newton's method."""
    weight = torch.zeros(CLASSES, D, dtype=torch.float64)
    for _ in range(30):
        leaf = weight.clone().requires_grad_()
        (slope,) = torch.autograd.grad(objective(leaf, parts), leaf)
        bend = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda w: objective(w, parts), weight
        )
        flat = bend.reshape(weight.numel(), -1)
        weight = weight - torch.linalg.solve(flat, slope.flatten()).view_as(weight)
    assert float(slope.norm()) < 1e-14
    return float(objective(weight, parts))


def converging(
    worker: WorkerMethod | None, partition: Partition, attack: bz.Attack | None, rule: bz.Aggregator
) -> Simulation:
    settings = dataclasses.replace(
        SETTINGS,
        n=4 if attack is None else 5,
        attackers=0 if attack is None else 1,
        rounds=220,
        evaluate_every=220,
        batch=4,
        momentum=0.9 if worker is None else 0.0,
    )
    return training(
        worker,
        settings,
        rule=rule,
        attack=attack,
        partition=partition,
        optimizer=lambda p: SGD(p, lr=1.0, weight_decay=DECAY),
    )


def gap(run: Simulation) -> float:
    list(run)
    weight = next(run.model.parameters()).detach()
    return float(objective(weight, run.batches.parts)) - minimum(run.batches.parts)


@pytest.mark.parametrize(
    ("partition", "attack", "rule"),
    [
        (by_label(), None, bz.Mean()),
        (shared(), bz.ALittleIsEnough(), bz.Median()),
        pytest.param(shared(), bz.BitFlip(), bz.GeometricMedian(), marks=pytest.mark.slow),
        pytest.param(shared(), bz.InnerProduct(), bz.GeometricMedian(), marks=pytest.mark.slow),
    ],
)
def test_they_converge_linearly_where_momentum_stays_in_a_neighborhood(
    partition: Partition, attack: bz.Attack | None, rule: bz.Aggregator
) -> None:
    """Without attackers on any data; with attackers where all workers have the same data.

    There, what honest workers send differs in the end only if it is momentum.
    """
    runs = [converging(worker, partition, attack, rule) for worker in (SAGA(), Marina(p=0.2), None)]
    gaps = [gap(run) for run in runs]
    assert max(map(abs, gaps[:2])) < 1e-12
    assert gaps[2] > 1e-5
    if attack is not None:
        spreads = [spread(run.sent[: run.honest]) for run in runs]
        assert max(spreads[:2]) < 1e-12
        assert spreads[2] > 1e-6


def test_at_the_minimum_messages_of_saga_have_no_variance() -> None:
    """Each is the full gradient of its worker, and these differ as the data do."""
    run = converging(SAGA(), by_label(), None, bz.Mean())
    list(run)
    weight = next(run.model.parameters()).detach()
    full = [gradient(i, weight, part.tolist()) for i, part in enumerate(run.batches.parts)]
    expected = torch.stack([one.flatten() for one in full])
    torch.testing.assert_close(run.sent, expected, rtol=0, atol=1e-9)
    assert spread(expected) > 1e-2


@pytest.mark.slow
def test_heterogeneous_data_leave_what_variance_reduction_cannot_remove() -> None:
    """With an attacker and label-sorted data, all of them stay in a neighborhood."""
    for worker in (None, SAGA(), Marina(p=0.2)):
        assert gap(converging(worker, by_label(), bz.BitFlip(), bz.Median())) > 1e-3
