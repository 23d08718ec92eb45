"""Who was heard over many rounds: named beyond chance, and never for one round."""

from __future__ import annotations

import pytest
import torch

import byzantium as bz


def rounds(rule: bz.Aggregator, count: int, honest: int = 10, liars: int = 1) -> bz.Trust:
    generator, trust = torch.Generator().manual_seed(1), bz.Trust()
    for _ in range(count):
        good = torch.randn(honest, 30, generator=generator)
        bad = torch.full((liars, 30), -20.0)
        trust.add(rule.explain(torch.cat([good, bad]), generator))
    return trust


@pytest.mark.parametrize(
    "text", ["GeometricMedian()", "Bucketing(s=2) >> GeometricMedian()", "TrimmedMean(f=2)"]
)
def test_a_liar_goes_unheard_and_nobody_else_does(text: str) -> None:
    assert list(rounds(bz.parse_rule(text), 40).unheard()) == [10]


def test_nobody_is_unheard_for_a_few_rounds() -> None:
    assert not rounds(bz.GeometricMedian(), 4).unheard()


def test_a_rule_that_picks_one_worker_says_little_of_the_others() -> None:
    trust = rounds(bz.Krum(f=2), 20, liars=0)
    assert any(s.weight == 0 for s in trust.workers.values())
    assert not trust.unheard()


def test_rejections_and_absences_are_counted_with_their_reasons() -> None:
    X = torch.ones(5, 3)
    X[2] = torch.nan
    trust = bz.Trust()
    for _ in range(2):
        trust.add(bz.Median().explain(X), "abcde", absent=["z"])
    assert trust.workers["c"].rejections == 2
    assert trust.workers["c"].rounds == 0
    assert list(trust.rejected()) == ["c"]
    assert list(trust.absent()) == ["z"]
    told = trust.sentences()
    assert len(told) == 2
    assert "not finite" in told[0]
    assert "broken or hostile" in told[0]


def test_a_mean_weight_has_a_spread() -> None:
    trust = bz.Trust()
    trust.update({"a": 0.25, "b": 0.75})
    trust.update({"a": 0.75, "b": 0.25})
    assert trust.workers["a"].weight == 1.0
    assert trust.workers["a"].spread == pytest.approx(0.5 * 2**0.5)


def test_names_must_be_as_many_as_vectors() -> None:
    with pytest.raises(bz.ByzantiumError, match="3 workers, got 2 names"):
        bz.Trust().add(bz.Mean().explain(torch.ones(3, 2)), "ab")
