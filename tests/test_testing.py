"""What others may hold their own parts to: it holds for all of ours, and catches what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import members
import numpy as np
import pytest
import torch
from members import ATTACKS, EVERYTHING, MIXINGS
from torch import Tensor

import byzantium as bz
from byzantium.core import Count
from byzantium.data import load
from byzantium.learning import Settings, Simulation, mlp
from byzantium.testing import check_attack, check_mixing, check_rule


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_every_rule_and_pipeline_of_ours_passes(member: members.Rule) -> None:
    # Behind resampling a bad vector is in two buckets, and the rules here are built for F.
    robust = member.robust and not isinstance(member.rule.stages[0], bz.Resampling)
    check_rule(member.rule, breaks={*member.fails, *(() if robust else ("robustness",))})


@pytest.mark.parametrize("mix", MIXINGS, ids=members.name)
def test_every_mixing_of_ours_passes(mix: members.Mix) -> None:
    check_mixing(mix.mixing, breaks=mix.fails)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_every_attack_of_ours_passes(attack: bz.Attack) -> None:
    check_attack(attack)


# -- parts of somebody else's --------------------------------------------------------------------


class Largest(bz.MatrixRule):
    """Any function of the matrix."""

    def aggregate(self, updates: Tensor) -> Tensor:
        return updates.max(dim=0).values


@dataclass(frozen=True, repr=False)
class Nearest(bz.Weighting):
    """The vector nearest the mean."""

    f: Count = 0

    def weights(self, geometry: bz.Geometry) -> Any:
        mean = geometry.uniform_over(np.arange(geometry.n))
        return geometry.at(int(geometry.distances_to(mean).argmin()))


@dataclass(frozen=True, repr=False)
class Inner(bz.CoordinateWise):
    """The middle three of each coordinate."""

    def averaged(self, n: int) -> int:
        return 3 if n % 2 else 2


class Halved(bz.Mixing):
    """Its rows do not sum to one."""

    def matrix(self, geometry: bz.Geometry, generator: torch.Generator | None) -> Any:
        return np.eye(geometry.n) / 2


class Undeclared(bz.Weighting):
    """Uses the origin, and does not say so."""

    def weights(self, geometry: bz.Geometry) -> Any:
        return geometry.at(geometry.origin)


def test_a_function_of_the_matrix_is_a_rule_of_its_own() -> None:
    check_rule(Largest(), breaks={"rotation", "robustness"})
    X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    report = (bz.Bucketing(s=2) >> Largest()).explain(X, torch.Generator().manual_seed(1))
    mixed = bz.Bucketing(s=2)(X, torch.Generator().manual_seed(1))
    assert torch.equal(report.aggregate, mixed.max(dim=0).values)
    assert report.weights.isnan().all()
    assert report.mixing.shape == (3, 6)
    names = [{"a": row[:2], "b": row[2:]} for row in X]
    assert torch.equal(Largest()(names)["a"], X.max(dim=0).values[:2])


def test_a_run_with_a_rule_of_ones_own_is_recorded_but_for_its_weights(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = ("distance", "weights", "rejected")
    settings = Settings(n=7, attackers=1, rounds=2, evaluate_every=1, record=record)
    training = Simulation(settings, load("digits"), mlp((1, 8, 8)), bz.Bucketing(s=2) >> Largest())
    names = ["distance", "early_heterogeneity", "loss", "rejected", "round"]
    assert [sorted(found) for found in training] == [names] * 2
    assert "does not know how much each worker counted" in caplog.text


def test_rules_of_the_other_kinds_pass_too() -> None:
    check_rule(Nearest(f=2), breaks={"robustness"})
    check_rule(Inner(), breaks={"rotation"})


@pytest.mark.parametrize("other", [bz.Krum(f=0), bz.CenteredClipping(radius=1.0)], ids=repr)
def test_a_mixing_whose_rows_do_not_sum_to_one_is_refused(other: bz.Aggregator) -> None:
    with pytest.raises(bz.ByzantiumError, match=r"Halved\(\): .* its row 0 sums to 0.5"):
        (Halved() >> other)(torch.ones(5, 2))
    with pytest.raises(bz.ByzantiumError, match="must sum to one"):
        check_mixing(Halved())


def test_an_anchor_that_nobody_declared_is_a_sentence() -> None:
    for rule in (Undeclared(), bz.Bucketing(s=2) >> Undeclared()):
        with pytest.raises(bz.ByzantiumError, match="the origin is not among the points"):
            rule(torch.ones(6, 2))


@pytest.mark.parametrize(
    ("aggregate", "sentence"),
    [
        (lambda X: X, r"must give one vector of dimension 2, got a Tensor of shape \(3, 2\)"),
        (lambda X: 1.0, "must give one vector of dimension 2, got a float"),
    ],
)
def test_what_is_no_vector_is_refused(aggregate: Any, sentence: str) -> None:
    class Wrong(bz.MatrixRule):
        def aggregate(self, updates: Tensor) -> Tensor:
            return aggregate(updates)

    with pytest.raises(bz.ByzantiumError, match=sentence):
        Wrong()(torch.ones(3, 2))


class InPlace(bz.MatrixRule):
    """Forgets nothing: the second call knows the first."""

    calls = 0

    def aggregate(self, updates: Tensor) -> Tensor:
        type(self).calls += 1
        return updates[0] * type(self).calls


class Loud(bz.Attack):
    """Changes what it is shown."""

    def vectors(self, scene: bz.Scene) -> Tensor:
        return scene.honest.mul_(2)[0]


def test_the_checks_catch_what_is_wrong() -> None:
    with pytest.raises(AssertionError, match="breaks 'robustness'"):
        check_rule(bz.Mean())
    with pytest.raises(AssertionError, match="breaks 'rotation'"):
        check_rule(bz.Median())
    with pytest.raises(AssertionError, match="different results for equal generators"):
        check_rule(InPlace(), breaks={"robustness"})
    with pytest.raises(AssertionError, match="changes the honest vectors"):
        check_attack(Loud())
    with pytest.raises(bz.ByzantiumError, match="there is no law 'luck'"):
        check_rule(bz.Mean(), breaks={"luck"})


# -- weights from inner products ------------------------------------------------------------------


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_inner_products_are_enough_for_every_weighting(member: members.Rule) -> None:
    X = torch.randn(members.N, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    generators = [torch.Generator().manual_seed(4) for _ in range(2)]
    rule = member.fresh()
    if rule.knows_weights != "always":
        with pytest.raises(bz.ByzantiumError, match="needs the vectors"):
            rule.weigh(X @ X.T)
        return
    expected = member.fresh().explain(X, generators[0]).weights
    assert torch.allclose(rule.weigh(X @ X.T, generators[1]), expected, atol=1e-9)
    assert rule.state_dict() == {}


@pytest.mark.parametrize(
    ("gram", "sentence"),
    [
        (torch.ones(3, 2), r"has the shape \(n, n\), got \(3, 2\)"),
        (torch.full((3, 3), torch.nan), "finite"),
        (-torch.eye(3), "no negative eigenvalues"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "symmetric"),
    ],
)
def test_what_is_no_gram_matrix_is_refused(gram: Tensor, sentence: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence):
        bz.Mean().weigh(gram)
