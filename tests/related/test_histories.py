"""Rules that remember what workers sent: round after round as their definitions say."""

from __future__ import annotations

import copy
import logging
from typing import Any

import numpy as np
import pytest
import reference_related
import torch

import byzantium as bz
from byzantium import related

N, BAD, D = 15, 3, 20


def rounds(count: int, drift: float, seed: int = 0, bad: int = BAD) -> list[torch.Tensor]:
    """What workers send in each round: the same mean and noise; attackers add a small drift."""
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for _ in range(count):
        X = 1 + torch.randn(N, D, generator=generator, dtype=torch.float64)
        X[N - bad :] += drift
        calls.append(X)
    return calls


def good_of(rule: bz.Aggregator) -> list[int]:
    return rule.state_dict()["good"].nonzero()[:, 0].tolist()


SAFEGUARDS: list[dict[str, Any]] = [
    {"short": 1, "long": 1},
    {"short": 2, "long": 5},
    {"short": 3, "long": 7, "factor": 1.05},
    {"short": 2, "long": 4, "factor": 1.05, "forgive": True},
    {"short": 2, "long": 9, "radius": 4.4},
]


@pytest.mark.parametrize("drift", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("parameters", SAFEGUARDS, ids=str)
def test_safeguard_is_the_loop_of_its_definition(parameters: dict[str, Any], drift: float) -> None:
    calls = rounds(12, drift)
    expected, good = reference_related.safeguard([X.numpy() for X in calls], **parameters)
    rule = related.Safeguard(**parameters)
    for X, out in zip(calls, expected, strict=True):
        np.testing.assert_allclose(rule(X).numpy(), out, atol=1e-9)
    assert good_of(rule) == good


@pytest.mark.parametrize("drift", [0.0, 1.0, 30.0])
@pytest.mark.parametrize(
    ("v", "t_a", "t_b"), [(4.0, 1e9, 1e9), (3.0, 60.0, 1e9), (3.0, 1e9, 14.0), (0.1, 1.0, 1.0)]
)
def test_byzantine_sgd_is_the_loop_of_its_definition(
    v: float, t_a: float, t_b: float, drift: float
) -> None:
    calls = rounds(12, drift)
    expected, good = reference_related.byzantine_sgd([X.numpy() for X in calls], v, t_a, t_b)
    rule = related.ByzantineSGD(v=v, t_a=t_a, t_b=t_b)
    for X, out in zip(calls, expected, strict=True):
        np.testing.assert_allclose(rule(X).numpy(), out, atol=1e-9)
    assert good_of(rule) == good


def test_safeguard_drops_what_hides_in_each_single_round() -> None:
    """ALIE stays within the noise of a round; sums over a window leave it behind."""
    sigma = D**0.5
    rule = related.Safeguard(short=20, long=40, radius=2 * sigma)
    drift = 1.0  # in each coordinate as large as its deviation
    calls = rounds(40, drift)
    first = torch.cdist(calls[0], calls[0])
    assert float(first[-BAD:, :-BAD].min()) < float(first[:-BAD, :-BAD].max())  # not seen in one
    for X in calls:
        rule(X)
    assert good_of(rule) == list(range(N - BAD))


def test_no_honest_worker_is_dropped_where_sigma_is_known() -> None:
    rule = related.Safeguard(short=10, long=60, radius=2 * D**0.5)
    for X in rounds(120, drift=0.0, bad=0):
        rule(X)
    assert good_of(rule) == list(range(N))


def test_workers_that_send_the_same_are_never_dropped() -> None:
    rules = related.Safeguard(short=2, long=5), related.ByzantineSGD(v=0.1, t_a=0.1, t_b=0.1)
    for rule in rules:
        for X in rounds(12, 0.0):
            rule(X[:1].expand(N, D))
        assert good_of(rule) == list(range(N))


@pytest.mark.parametrize("bias", [0.5, 1.0])
def test_byzantine_sgd_drops_a_bias_when_its_sum_passes_the_threshold(bias: float) -> None:
    """The sum of a bias b over t rounds is b t; the noise of honest sums grows as sqrt(t)."""
    t_b, length = 60.0, bias * D**0.5
    rule = related.ByzantineSGD(v=5 * D**0.5, t_a=1e9, t_b=t_b)
    lasted = 0
    for X in rounds(200, bias):
        rule(X)
        if len(good_of(rule)) < N:
            break
        lasted += 1
    assert good_of(rule)[: N - BAD] == list(range(N - BAD))
    assert 0.3 * t_b / length < lasted < 1.5 * t_b / length


def test_what_one_call_of_byzantine_sgd_bears_follows_from_v() -> None:
    """Not from how far honest vectors are apart: a lie at a distance of 4v counts."""
    X = rounds(1, 0.0)[0]
    for v in (1e2, 1e4):
        rule = related.ByzantineSGD(v=v, t_a=1e9, t_b=1e9)
        lies = X.clone()
        lies[N - BAD :, 0] += 3.5 * v
        assert float((rule(lies) - rule.explain(X).aggregate)[0]) > 0.5 * v
        lies[N - BAD :, 0] += 1e6 * v
        torch.testing.assert_close(rule(lies), lies[: N - BAD].mean(dim=0))


def test_who_is_dropped_is_named(caplog: pytest.LogCaptureFixture) -> None:
    rule = related.Safeguard(short=1, long=6)
    report = rule.explain(rounds(1, 1e3)[0])
    assert report.notes == (f"{rule!r} drops 12, 13, 14; 12 of 15 are left",)
    assert report.notes[0] in [record.getMessage() for record in caplog.records]
    assert rule.explain(rounds(1, 1e3)[0]).notes == ()


def test_an_unusable_vector_is_dropped_with_its_worker() -> None:
    rule = related.Safeguard()
    X = rounds(1, 0.0)[0]
    X[3, 2] = torch.nan
    rule(X)
    assert good_of(rule) == [k for k in range(N) if k != 3]
    X = rounds(1, 0.0)[0]
    assert rule.explain(X).weights[3] == 0


@pytest.mark.parametrize(
    "rule", [related.Safeguard(), related.ByzantineSGD(v=1, t_a=1, t_b=1)], ids=repr
)
def test_a_worker_is_always_the_same(rule: bz.Aggregator) -> None:
    rule = copy.deepcopy(rule)
    for mixing in (bz.Bucketing(s=2), bz.Resampling(s=2), bz.Bucketing(s=2) >> bz.Clipping(1)):
        with pytest.raises(bz.ByzantiumError, match="remembers what each worker sent"):
            mixing >> rule
    (bz.AdaptiveClipping(f=2) >> rule)(rounds(1, 0.0)[0])
    rule(rounds(1, 0.0)[0])
    with pytest.raises(bz.ByzantiumError, match="remembers 15 workers, got 14 vectors"):
        rule(rounds(1, 0.0)[0][:14])


def test_attackers_who_try_the_rule_do_not_advance_it(caplog: pytest.LogCaptureFixture) -> None:
    rule = related.Safeguard(short=1, long=3)
    rule(rounds(1, 0.0)[0])
    before = rule.state_dict()
    X = rounds(2, 0.0)[1]
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for attack in (bz.Adaptive(), bz.Tuned(bz.InnerProduct())):
            generator = torch.Generator().manual_seed(1)
            attack(X[:-BAD], q=BAD, rule=rule, epoch=1, generator=generator)
    assert not caplog.records
    assert all(torch.equal(value, before[name]) for name, value in rule.state_dict().items())


def test_the_memory_of_blocks_is_that_of_the_definition() -> None:
    calls = [X[:, :7] * torch.arange(1, 8) for X in rounds(6, 0.0)]
    expected, memory = reference_related.block_geometric_median([X.numpy() for X in calls], 0.4)
    rule = related.BlockGeometricMedian(share=0.4)
    for X, out in zip(calls, expected, strict=True):
        np.testing.assert_allclose(rule(X).numpy(), out, atol=1e-8)
    np.testing.assert_allclose(rule.state_dict()["memory"].numpy(), memory, atol=1e-8)


def test_all_columns_give_the_geometric_median() -> None:
    X = rounds(1, 4.0)[0]
    rule = related.BlockGeometricMedian(share=1)
    assert torch.equal(rule(X), bz.GeometricMedian()(X))
    assert not rule.state_dict()["memory"].any()


def test_nothing_of_equal_workers_is_lost() -> None:
    """Results and memory together are all that was sent."""
    rule = related.BlockGeometricMedian(share=0.2)
    sent, results = torch.zeros(2, D, dtype=torch.float64)
    for X in rounds(9, 0.0):
        sent, results = sent + X[0], results + rule(X[:1].expand(5, D))
    torch.testing.assert_close(results + rule.state_dict()["memory"], sent)


def test_an_attacker_reaches_the_memory_of_blocks() -> None:
    """Why `delta_max` is 0: what waits is a mean."""
    rule = related.BlockGeometricMedian(share=0.5)
    X = torch.ones(9, 4, dtype=torch.float64)
    X[0] = torch.tensor([2e6, 2e6, 1e6, 1e6])
    rule(X)
    assert float(rule(torch.ones_like(X)).abs().max()) > 1e4
