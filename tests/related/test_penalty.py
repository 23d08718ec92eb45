"""RSA: models of their own on the workers, and the bound on what an attacker moves."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_variance import CLASSES, DATA, SETTINGS, D, Following, gradient, model, training
from torch import Tensor

import byzantium as bz
from byzantium.data import by_label
from byzantium.learning import Randomness, Server, Settings, Simulation
from byzantium.learning.optimizers import SGD
from byzantium.related import RSA, SignSum

PENALTY, RATE = 0.125, 0.25
RULE = SignSum(penalty=PENALTY)


def slow() -> tuple[Tensor, list[Tensor]]:
    """The models of the server and of the workers, the last of whom flips labels."""
    randomness = Randomness(SETTINGS)
    batches = randomness.batches(DATA, by_label())
    own = randomness.own_batches(DATA)
    server = next(model().parameters()).detach()
    models = [server] * SETTINGS.n
    for _ in range(SETTINGS.rounds):
        drawn = [*batches.draw(range(SETTINGS.n - 1)), *own.draw([0])]
        votes = sum(((server - x).sign() for x in models), torch.zeros_like(server))
        slopes = [gradient(i, x, drawn[i].tolist()) for i, x in enumerate(models)]
        models = [
            x - SETTINGS.learning_rate * (slope + PENALTY * (x - server).sign())
            for x, slope in zip(models, slopes, strict=True)
        ]
        server = server - SETTINGS.learning_rate * PENALTY * votes
    return server, models


def test_workers_and_the_server_step_as_a_slow_loop_says() -> None:
    run = training(RSA(PENALTY), rule=RULE, attack=Following())
    list(run)
    server, models = slow()
    torch.testing.assert_close(run.server.model_vector(), server.flatten(), rtol=0, atol=1e-13)
    rows = torch.stack([x.flatten() for x in models])
    torch.testing.assert_close(run.worker.state["models"], rows, rtol=0, atol=1e-13)
    assert float((rows - server.flatten()).abs().max()) > 1e-2


@pytest.mark.parametrize("liars", [1, 2, 7])
def test_each_liar_moves_the_server_by_at_most_rate_times_penalty(liars: int) -> None:
    """Exactly: all numbers are dyadic, and liars may be the majority."""
    generator = torch.Generator().manual_seed(liars)
    honest = torch.randn(5, D * CLASSES, generator=generator, dtype=torch.float64)
    lies = 10.0 ** torch.randint(-30, 15, (liars, D * CLASSES), generator=generator).double()
    lies *= torch.randint(-1, 2, lies.shape, generator=generator)
    steps = []
    for rows in (honest, torch.cat([honest, lies])):
        trained = model()
        for parameter in trained.parameters():
            parameter.data.mul_(2**20).round_().div_(2**20)
        server = Server(trained, RULE, SGD(trained.parameters(), lr=RATE))
        server.step(rows)
        steps.append(server.model_vector())
    moved = steps[1] - steps[0]
    assert torch.equal(moved, -RATE * PENALTY * lies.sign().sum(dim=0))
    assert float(moved.abs().max()) <= RATE * PENALTY * liars


@pytest.mark.parametrize("attack", [bz.InnerProduct(epsilon=1e9), bz.ALittleIsEnough()])
def test_attackers_that_mean_cannot_survive_move_a_training_little(attack: bz.Attack) -> None:
    """Every step of the server is at most rate * penalty * n long in each coordinate."""
    before = torch.zeros(0)
    run = training(RSA(PENALTY), rule=RULE, attack=attack)
    for _ in run:
        now = run.server.model_vector()
        if len(before):
            step = float((now - before).abs().max())
            assert step <= SETTINGS.learning_rate * PENALTY * SETTINGS.n * (1 + 1e-12)
        before = now
    assert run.history.status == "completed"


def test_all_models_agree_in_the_end_where_the_penalty_is_large_enough() -> None:
    """And the smaller the penalty, the farther the models of label-sorted workers stay apart."""
    apart = []
    for penalty in (0.5, 0.05):
        settings = dataclasses.replace(SETTINGS, rounds=300, learning_rate=0.01, attackers=0)
        run = training(RSA(penalty), settings, rule=SignSum(penalty), attack=None)
        list(run)
        models = run.worker.state["models"]
        apart.append(float((models - run.server.model_vector()).abs().max()))
    assert apart[0] < 0.05 < apart[1]


@pytest.mark.parametrize("rule", [bz.Mean(), SignSum(penalty=0.5), bz.Bucketing(s=2) >> RULE])
def test_another_rule_at_the_server_is_refused(rule: bz.Aggregator) -> None:
    with pytest.raises(bz.ByzantiumError, match=r"send what the rule SignSum\(penalty=0.125\) is"):
        Simulation(Settings(n=3, rounds=2), DATA, model(), rule, worker=RSA(PENALTY))
