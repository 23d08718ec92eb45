"""What the theory promises, measured: bounded error, Lemma 1 and Theorem 1 of the paper."""

from __future__ import annotations

import copy
import itertools
import math

import inputs
import members
import pytest
import torch
from members import EVERYTHING, MIXINGS, F, N
from torch import Tensor

import byzantium as bz
from byzantium import related

# A sum of signs is bounded by its penalty, not by the spread of the honest vectors.
ROBUST = [
    member
    for member in EVERYTHING
    if member.robust and not isinstance(member.rule.stages[-1], related.SignSum)
]
SIZES = [1e2, 1e4, 1e8, 1e12, 1e100]


def attacked(member: members.Rule, size: float) -> tuple[Tensor, Tensor]:
    """As many attackers as the pipeline is built for, and the honest vectors."""
    copies = max((mix.copies for mix in MIXINGS if mix.mixing in member.rule.stages), default=1)
    X = inputs.gaussian(N, 10, seed=3) + 2
    q = F // copies
    X[:q] = size * inputs.gaussian(1, 10, seed=4)
    return X, X[q:]


def error(member: members.Rule, size: float) -> float:
    """Distance to the honest mean in units of the honest spread."""
    X, honest = attacked(member, size)
    rule = copy.deepcopy(member.rule)
    centre = honest.mean(dim=0)
    spread = float((honest - centre).norm(dim=1).square().mean().sqrt())
    if isinstance(rule.stages[-1], bz.CenteredClipping):  # a sensible centre, as after some rounds
        rule.load_state_dict({"center": centre + 0.5})
    return float((rule(X, torch.Generator().manual_seed(7)) - centre).norm()) / spread


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("member", ROBUST, ids=members.name)
def test_no_attacker_moves_a_robust_rule_far(member: members.Rule, size: float) -> None:
    assert error(member, size) < 3


def test_any_attacker_moves_the_mean_as_far_as_it_likes() -> None:
    errors = [error(members.RULES[0], size) for size in SIZES]
    assert all(b > 90 * a for a, b in itertools.pairwise(errors))
    assert errors[-1] > 1e90


def pairwise(X: Tensor) -> Tensor:
    """Squared distances of different rows."""
    distances = (X[:, None] - X[None]).square().sum(dim=2)
    return distances[~torch.eye(len(X), dtype=torch.bool)]


@pytest.mark.parametrize(("n", "s"), [(24, 2), (24, 3), (24, 8)])
def test_lemma_1_bucketing_keeps_the_mean_and_divides_the_spread_by_s(n: int, s: int) -> None:
    X = inputs.heterogeneous(n)
    generator = torch.Generator().manual_seed(0)
    spreads = []
    for _ in range(1000):
        Y = bz.Bucketing(s=s)(X, generator)
        assert torch.allclose(Y.mean(dim=0), X.mean(dim=0), atol=1e-12)
        spreads.append(pairwise(Y).mean())
    expected = pairwise(X).mean() / s
    assert float(torch.stack(spreads).mean()) == pytest.approx(float(expected), rel=0.03)


@pytest.mark.parametrize("s", [2, 3, 5])
def test_lemma_1_when_s_does_not_divide_n_each_bucket_is_the_mean_in_expectation(s: int) -> None:
    X = inputs.heterogeneous(11, 3)
    generator = torch.Generator().manual_seed(0)
    total = sum(bz.Bucketing(s=s)(X, generator) for _ in range(3000)) / 3000
    assert isinstance(total, Tensor)
    spread = float(X.std())
    assert (total - X.mean(dim=0)).abs().max() < 0.08 * spread


def theorem_1() -> list[tuple[str, float, int, bz.Aggregator, float]]:
    """(name, c, s, rule, factor) for delta = 3/60 with the constants of the paper's appendix."""
    delta = 3 / 60
    cases: list[tuple[str, float, int, bz.Aggregator, float]] = []
    nu = 0.05
    delta_max = 1 / 4 - nu
    s = math.floor(delta_max / delta + 1e-9)
    cases.append(("Krum", 4 / (3 * nu * delta_max), s, bz.Krum(f=3), 1))
    nu = 0.1
    delta_max = 1 / 2 - nu
    s = math.floor(delta_max / delta + 1e-9)
    cases.append(("GeometricMedian", 1 / (nu * delta_max), s, bz.GeometricMedian(), 1))
    cases.append(("Median", 1 / (nu * delta_max), s, bz.Median(), 12))  # d = 12
    return cases


@pytest.mark.parametrize("attack", ["mimic", "far", "flip", "inner product"])
@pytest.mark.parametrize("case", theorem_1(), ids=lambda case: case[0])
def test_theorem_1(case: tuple[str, float, int, bz.Aggregator, float], attack: str) -> None:
    """E ||rule(buckets) - mean||^2 <= c delta rho^2, over many permutations."""
    _, c, s, rule, factor = case
    n, q, d = 60, 3, 12
    honest = (inputs.gaussian(n - q, d, seed=5) > 0).double() * 2 - 1
    mean = honest.mean(dim=0)
    bad = {
        "mimic": honest[:1],
        "far": torch.full((1, d), 1e6).double(),
        "flip": -5 * honest[:1],
        "inner product": -10 * mean[None],
    }[attack].expand(q, d)
    X = torch.cat([honest, bad])
    generator = torch.Generator().manual_seed(0)
    pipeline = bz.Bucketing(s=s) >> rule
    errors = [float((pipeline(X, generator) - mean).square().sum()) for _ in range(150)]
    assert sum(errors) / len(errors) <= factor * c * (q / n) * float(pairwise(honest).mean())


@pytest.mark.parametrize("rule", [bz.Krum(f=5), bz.Median(), bz.GeometricMedian()], ids=repr)
def test_under_mimic_bucketing_helps_the_rules_that_look_for_one_representative(
    rule: bz.Aggregator,
) -> None:
    """The paper's demonstration: random signs, and a fifth of the workers copy worker 0."""
    honest = (inputs.gaussian(20, 100, seed=6) > 0).double() * 2 - 1
    X = torch.cat([honest, honest[:1].expand(5, 100)])
    mean = honest.mean(dim=0)
    generator = torch.Generator().manual_seed(0)
    plain = float((rule(X) - mean).square().sum())
    bucketed = [
        float(((bz.Bucketing(s=2) >> rule)(X, generator) - mean).square().sum()) for _ in range(60)
    ]
    assert sum(bucketed) / len(bucketed) < 0.75 * plain
