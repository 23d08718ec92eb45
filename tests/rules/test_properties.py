"""Laws that hold for every member; those it breaks by nature stand in `members.py`."""

from __future__ import annotations

import copy

import members
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from members import EVERYTHING, N
from torch import Tensor

seeds = st.integers(0, 2**32 - 1)
dimensions = st.integers(2, 6)  # on a line, minimisers need not be unique


def draw(seed: int, d: int) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(N, d, dtype=torch.float64, generator=generator)
    return X * torch.rand(N, 1, dtype=torch.float64, generator=generator) * 4, generator


def run(member: members.Rule, X: Tensor) -> Tensor:
    return copy.deepcopy(member.rule)(X, torch.Generator().manual_seed(7))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-8, atol=1e-8)


def holding(law: str) -> list[members.Rule]:
    return [member for member in EVERYTHING if law not in member.fails]


@pytest.mark.parametrize("member", holding("permutation"), ids=members.name)
@given(seed=seeds, d=dimensions)
@example(seed=12008, d=4)  # mixing makes two vectors equal, and a filter once told them apart
def test_the_order_of_the_workers_does_not_matter(member: members.Rule, seed: int, d: int) -> None:
    X, generator = draw(seed, d)
    assert close(run(member, X[torch.randperm(N, generator=generator)]), run(member, X))


@pytest.mark.parametrize("member", holding("translation"), ids=members.name)
@given(seed=seeds, d=dimensions)
def test_a_common_shift_shifts_the_result(member: members.Rule, seed: int, d: int) -> None:
    X, generator = draw(seed, d)
    shift = 5 * torch.randn(d, dtype=torch.float64, generator=generator)
    assert close(run(member, X + shift), run(member, X) + shift)


@pytest.mark.parametrize("member", holding("rotation"), ids=members.name)
@given(seed=seeds, d=dimensions)
def test_a_rotation_rotates_the_result(member: members.Rule, seed: int, d: int) -> None:
    X, generator = draw(seed, d)
    rotation, _ = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=generator))
    assert close(run(member, X @ rotation), run(member, X) @ rotation)


@pytest.mark.parametrize("member", holding("scale"), ids=members.name)
@given(seed=seeds, d=dimensions, scale=st.sampled_from([-3.0, 1e-3, 0.5, 70.0]))
def test_a_common_factor_multiplies_the_result(
    member: members.Rule, seed: int, d: int, scale: float
) -> None:
    X, _ = draw(seed, d)
    assert close(run(member, scale * X) / scale, run(member, X))


@pytest.mark.parametrize("member", holding("unanimity"), ids=members.name)
@given(seed=seeds, d=dimensions)
def test_what_all_say_is_the_result(member: members.Rule, seed: int, d: int) -> None:
    X, _ = draw(seed, d)
    assert close(run(member, X[:1].expand(N, d)), X[0])


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
@given(seed=seeds, d=dimensions)
def test_weights_and_remainder_sum_to_one_and_explain_the_result(
    member: members.Rule, seed: int, d: int
) -> None:
    X, _ = draw(seed, d)
    report = copy.deepcopy(member.rule).explain(X, torch.Generator().manual_seed(7))
    assert float(report.weights.sum()) + report.remainder == pytest.approx(1, abs=1e-12)
    assert (report.weights >= 0).all()
    assert torch.equal(report.aggregate, run(member, X))
    mixings = member.rule.stages[:-1]
    clipped = any(mixing.needs_origin for mixing in mixings)  # the rest is on the origin
    assert clipped or close(report.mixing.sum(dim=1), torch.ones(1).double())
    if "rotation" not in member.fails:  # a weighting: the weights make the result
        assert close(report.weights @ X, report.aggregate)
