"""A federation on digits sorted by label: with root data it learns where rules without fail."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import FIRST, Nodes
from flwr.app import ArrayRecord

from byzantium.data import load
from byzantium.engines.flower import RobustStrategy
from byzantium.learning import RootUpdate

N, ROUNDS, PER_CLASS = 25, 30, 10
# A client trains for one epoch, with momentum over rounds; so does the root.
LIKE_CLIENTS: dict[str, Any] = {"learning_rate": 0.2, "momentum": 0.9, "classes": 10}

pytestmark = pytest.mark.filterwarnings("ignore:the root data lack:UserWarning")  # of the clients


@cache
def samples() -> tuple[list[Tensor], Tensor]:
    """The indices of each client's samples, which have one or two labels, and of the root's."""
    y = load("digits").train_y
    root = torch.stack([(y == c).nonzero()[:PER_CLASS, 0] for c in range(10)], dim=1).reshape(-1)
    others = torch.ones(len(y), dtype=torch.bool).index_fill(0, root, False).nonzero()[:, 0]
    return list(others[y[others].argsort(stable=True)].tensor_split(N)), root


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(64, 10)


def training_on(indices: Tensor, seed: int = 0) -> RootUpdate:
    data = load("digits")
    batches = [(data.train_x[k].flatten(1), data.train_y[k]) for k in torch.split(indices, 32)]
    return RootUpdate(network(), batches, seed=seed, **LIKE_CLIENTS)


def client(indices: Tensor, seed: int) -> federation.Node:
    local = training_on(indices, seed)
    return lambda message: federation.reply(
        message, local(federation.received(message)), num_examples=len(indices)
    )


def trained(rule: str, f: int, attackers: int) -> tuple[float, RobustStrategy]:
    """The test accuracy after all rounds; attackers see all replies, and are spread over labels."""
    parts, root = samples()
    rehearsal: dict[str, Any] = {
        "rehearse": "InnerProduct(epsilon=10)",
        "nodes": [FIRST + 7 * k % N for k in range(attackers)],
    }
    strategy = RobustStrategy(
        rule,
        f=f,
        root=training_on(root) if "Root" in rule else None,
        fraction_evaluate=0.0,
        **(rehearsal if attackers else {}),
    )
    nodes = Nodes({FIRST + k: client(part, k) for k, part in enumerate(parts)})
    result = strategy.start(nodes, ArrayRecord(network().state_dict()), ROUNDS)
    assert len(strategy.rounds) == ROUNDS
    assert not any(at.kept for at in strategy.rounds)
    model, data = network(), load("digits")
    model.load_state_dict(result.arrays.to_torch_state_dict())
    right = model(data.test_x.flatten(1)).argmax(dim=1) == data.test_y
    return float(right.float().mean()), strategy


@cache
def root_alone() -> float:
    return trained("RootOnly()", 5, 0)[0]


@pytest.mark.parametrize("attackers", [5, 13])
def test_with_root_data_a_fifth_or_more_than_half_of_the_nodes_may_attack(
    attackers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "flwr"):
        accuracy, strategy = trained("RootMatching()", attackers, attackers)
    assert accuracy > max(0.85, root_alone() + 0.05)
    assert strategy.rehearsal is not None
    bad = strategy.rehearsal.nodes
    assert len(bad) == attackers
    shares = [sum(at.weights[node] for node in bad) for at in strategy.rounds]
    assert sum(shares) / ROUNDS < 0.05
    # The limit on vectors alone does not hold for a server with data.
    assert "need B²" not in caplog.text


@pytest.mark.parametrize(
    "rule", ["GeometricMedian()", "TrimmedMean()", "Bucketing(s=2) >> GeometricMedian()", "Krum()"]
)
def test_without_root_data_a_fifth_is_too_many(rule: str, caplog: pytest.LogCaptureFixture) -> None:
    """The replies say so in the first round: they differ far more than the limit allows."""
    with caplog.at_level("WARNING", "flwr"):
        accuracy, strategy = trained(rule, 5, 5)
    assert accuracy < 0.5
    first = strategy.rounds[0]
    assert first.spread_to_mean_limit == 3
    assert first.spread_to_mean is not None
    assert first.spread_to_mean > 10
    assert caplog.text.count("5 of 25 need B² < 3; these replies have") == 1
