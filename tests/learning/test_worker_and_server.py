"""The worker and the server, one without the other, are those of the simulation."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from paths import SUPPORT
from torch import Tensor, nn
from torch.nn import functional

import byzantium as bz
from byzantium.data import Dataset, by_label, load
from byzantium.learning import Momentum, Server, Settings, Simulation, checkpoint, linear, mlp
from byzantium.learning.gradients import WorkerGradients, shaped

DIGITS = load("digits")
BETA, RATE = 0.8, 0.2


def gradients(rounds: int = 4) -> list[Tensor]:
    return list(torch.randn(rounds, 6, generator=torch.Generator().manual_seed(1)))


def by_hand(vectors: list[Tensor], heavy_ball: bool) -> list[Tensor]:
    """The formula: m = beta m + (1 - beta) g, and m = g in the first round."""
    momenta = [vectors[0].double()]
    for g in vectors[1:]:
        momenta.append(BETA * momenta[-1] + (1 if heavy_ball else 1 - BETA) * g.double())
    return momenta


# How an update may look, and how it is read as one vector again.
Form = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]
FORMS: dict[str, Form] = {
    "tensor": (lambda g: g.clone(), lambda update: update),
    "array": (lambda g: g.numpy().copy(), torch.from_numpy),
    "mapping of arrays": (
        lambda g: {"a": g[:2].numpy().copy(), "b": g[2:].view(2, 2).numpy().copy()},
        lambda update: torch.from_numpy(np.concatenate([update["a"], update["b"].ravel()])),
    ),
    "state dict": (
        lambda g: OrderedDict(weight=g[:4].view(2, 2).clone(), bias=g[4:].clone()),
        lambda update: torch.cat([update["weight"].flatten(), update["bias"]]),
    ),
    "list of arrays": (
        lambda g: [g[:5].numpy().copy(), g[5:].numpy().copy()],
        lambda update: torch.from_numpy(np.concatenate(update)),
    ),
}


@pytest.mark.parametrize("heavy_ball", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_worker_sends_its_momentum_in_the_form_of_its_update(form: str, heavy_ball: bool) -> None:
    write, read = FORMS[form]
    momentum, vectors = Momentum(BETA, heavy_ball), gradients()
    for g, expected in zip(vectors, by_hand(vectors, heavy_ball), strict=True):
        update = write(g)
        sent = momentum.update(update)
        assert sent is update
        assert (read(sent) - expected).abs().max() < 1e-6
    assert torch.equal(Momentum(BETA, heavy_ball).update(vectors[0].clone()), vectors[0])


def test_a_worker_goes_on_from_its_state() -> None:
    vectors = gradients()
    whole, first = Momentum(BETA), Momentum(BETA)
    for g in vectors[:2]:
        whole.update(g.clone())
        first.update(g.clone())
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = Momentum(BETA)
    second.load_state_dict(torch.load(file, weights_only=True))
    for g in vectors[2:]:
        assert torch.equal(second.update(g.clone()), whole.update(g.clone()))
    begun = Momentum(BETA)
    begun.load_state_dict(Momentum(BETA).state_dict())
    assert torch.equal(begun.update(vectors[1].clone()), vectors[1])


def test_what_a_worker_sends_is_not_what_it_remembers() -> None:
    momentum, (one, other, *_) = Momentum(BETA), gradients()
    momentum.update(one.clone()).zero_()
    momentum.state_dict()["m"]["update"].zero_()
    assert (momentum.update(other.clone()) - by_hand([one, other], False)[1]).abs().max() < 1e-6


def test_whole_numbers_have_no_momentum_and_nothing_is_remembered_without_beta() -> None:
    momentum = Momentum(BETA)
    for count in (3, 10):
        sent = momentum.update({"g": np.ones(2), "batches": np.array(count)})
        assert sent["batches"] == count
        assert sent["batches"].dtype == np.int64
    none = Momentum(beta=0.0)
    for bad in (torch.tensor([torch.nan]), torch.ones(1)):
        assert torch.equal(none.update(bad.clone()), bad) or bad.isnan().all()
    assert none.state_dict() == {"m": None}


def read_only() -> np.ndarray[Any, Any]:
    array = np.ones(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        ({"a": np.ones(3)}, "and b is not in this one"),
        ({"a": np.ones(3), "b": np.ones(2)}, r"b of shape \(2,\) was not in the one before"),
        ({"a": np.ones(3), "c": np.ones(1)}, r"c of shape \(1,\) was not in the one before"),
        ({"a": read_only(), "b": np.ones(1)}, "a is read-only; give a copy of it"),
        ({"a": 3.0, "b": np.ones(1)}, "momentum needs tensors or arrays, a is a float"),
    ],
    ids=["missing", "shape", "name", "read-only", "number"],
)
def test_an_update_that_cannot_have_momentum_is_refused_and_changes_nothing(
    update: dict[str, Any], sentence: str
) -> None:
    momentum = Momentum(BETA)
    momentum.update({"a": np.ones(3), "b": np.ones(1)})
    before = momentum.state_dict()
    with pytest.raises((ValueError, TypeError), match=sentence):
        momentum.update(update)
    after = momentum.state_dict()
    assert all(torch.equal(after["m"][name], before["m"][name]) for name in before["m"])


def test_momentum_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="Momentum needs 0 <= beta < 1, got beta=1"):
        Momentum(1.0)


# -- the server ---------------------------------------------------------------------------------


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return mlp((1, 8, 8), hidden=(16,))


def adam(trained: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(trained.parameters(), lr=0.01)


def weights(trained: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trained.parameters()])


def named(vector: Tensor, trained: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    pieces = torch.split(vector, [p.numel() for p in trained.parameters()])
    named = zip(trained.named_parameters(), pieces, strict=True)
    return {name: piece.view(p.shape).numpy() for (name, p), piece in named}


def test_a_server_takes_the_same_step_from_a_matrix_and_from_named_arrays() -> None:
    one, other = model(), model()
    X = torch.randn(5, len(weights(one)), generator=torch.Generator().manual_seed(2))
    rule = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=1.0)
    servers = Server(one, rule, adam(one)), Server(other, rule, adam(other))
    for seed in range(3):
        aggregate = servers[0].step(X, torch.Generator().manual_seed(seed))
        servers[1].step([named(row, other) for row in X], torch.Generator().manual_seed(seed))
        assert aggregate.shape == (X.shape[1],)
    assert not torch.equal(weights(one), weights(model()))
    assert torch.equal(weights(one), weights(other))
    assert all(parameter.grad is None for parameter in one.parameters())


def test_a_server_goes_on_from_its_state() -> None:
    X = torch.randn(5, len(weights(model())), generator=torch.Generator().manual_seed(2))
    rule, whole, restored = bz.CenteredClipping(radius=1.0), model(), mlp((1, 8, 8), hidden=(16,))
    server, other = Server(whole, rule, adam(whole)), Server(restored, rule, adam(restored))
    server.step(X)
    other.load_state_dict(copy.deepcopy(server.state_dict()))
    for _ in range(2):
        server.step(X)
        other.step(X)
    assert torch.equal(weights(whole), weights(restored))


def test_a_server_refuses_what_is_no_gradient_of_its_model() -> None:
    small = linear((2,), classes=3)
    server = Server(small, bz.Mean(), torch.optim.SGD(small.parameters(), lr=0.1))
    before = weights(small).clone()
    with pytest.raises(ValueError, match=r"has 9 parameters, .* shape \(9,\), got \(8,\)"):
        server.step(torch.ones(4, 8))
    with pytest.raises(ValueError, match=r"the aggregate lacks 1\.weight"):
        server.take({"1.bias": torch.ones(3)})
    with pytest.raises(ValueError, match="the aggregate has extra, which is no parameter"):
        server.take({"1.bias": torch.ones(3), "1.weight": torch.ones(3, 2), "extra": torch.ones(1)})
    assert torch.equal(weights(small), before)


# -- together -----------------------------------------------------------------------------------


def simulation(heavy_ball: bool) -> tuple[Simulation, list[Tensor]]:
    """A trained one, and the batches that its workers drew."""
    settings = Settings(
        n=5, rounds=5, batch=8, momentum=BETA, heavy_ball=heavy_ball, learning_rate=RATE
    )
    training = Simulation(settings, DIGITS, model(), bz.Median(), partition=by_label())
    source = copy.deepcopy(training.batches)
    drawn = [source.draw(range(5)) for _ in range(5)]
    list(training)
    return training, drawn


@pytest.mark.parametrize("heavy_ball", [False, True])
def test_workers_and_a_server_on_their_own_are_the_simulation(heavy_ball: bool) -> None:
    training, drawn = simulation(heavy_ball)
    trained = model()
    workers = [Momentum(BETA, heavy_ball) for _ in range(5)]
    sgd = torch.optim.SGD(trained.parameters(), lr=RATE)
    server = Server(trained, bz.Median(), sgd)
    for indices in drawn:
        sent = []
        for worker, batch in zip(workers, indices, strict=True):
            loss = functional.cross_entropy(trained(DIGITS.train_x[batch]), DIGITS.train_y[batch])
            pieces = torch.autograd.grad(loss, list(trained.parameters()))
            sent.append(worker.update(torch.cat([piece.flatten() for piece in pieces])))
        server.step(sent)
    assert (weights(trained) - weights(training.model)).abs().max() < 1e-5


@pytest.mark.parametrize("heavy_ball", [False, True])
def test_the_bits_of_a_run_are_those_of_kernel_rule_and_optimizer(heavy_ball: bool) -> None:
    """No part of the simulation adds a rounding of its own, or leaves one out."""
    training, drawn = simulation(heavy_ball)
    trained = model()
    kernel, rows = WorkerGradients(trained), torch.zeros_like(training.sent)
    share = 1.0 if heavy_ball else 1 - BETA
    sgd = torch.optim.SGD(trained.parameters(), lr=RATE)
    for t, indices in enumerate(drawn):
        x, y = DIGITS.train_x[indices][:, None], DIGITS.train_y[indices][:, None]
        kernel(rows, x, y, keep=BETA, share=share)
        if t == 0 and share != 1:
            rows /= share
        aggregate = bz.Median()(rows)
        for parameter, columns in kernel.columns.items():
            parameter.grad = shaped(aggregate[columns], parameter)
        sgd.step()
        sgd.zero_grad()
    assert torch.equal(rows, training.sent)
    assert torch.equal(weights(trained), weights(training.model))


def test_a_checkpoint_of_the_first_version_is_gone_on_with() -> None:
    x, y = torch.linspace(-1, 1, 60).view(20, 3), torch.arange(20) % 4
    data = Dataset("small", x, y, x, y, 4)
    settings = Settings(
        n=5,
        attackers=1,
        rounds=6,
        batch=4,
        momentum=0.5,
        learning_rate=0.01,  # the default then
        evaluate_every=2,
        record=("distance", "spread", "norm", "weights", "rejected", "heterogeneity"),
    )

    def started() -> Simulation:
        begun = linear((3,), classes=4)
        for parameter in begun.parameters():
            nn.init.zeros_(parameter)
        rule, attack = bz.CenteredClipping(radius=1.0), bz.Mimic(warmup=1)
        return Simulation(settings, data, begun, rule, attack, optimizer=torch.optim.Adam)

    whole, resumed = started(), started()
    list(whole)
    resumed.load_state_dict(checkpoint.load(SUPPORT / "checkpoint-0.1.0.pt"))
    assert len(resumed.history.rounds) == 3
    list(resumed)
    assert torch.allclose(weights(resumed.model), weights(whole.model), atol=1e-5)
    assert resumed.history.status == "completed"
    names = [sorted(record) for record in whole.history.rounds]
    for early in names[:3]:  # which 0.1.0 did not measure
        early.remove("early_heterogeneity")
    assert [sorted(record) for record in resumed.history.rounds] == names
