"""Every member agrees with the slow reference, on awkward inputs, in both precisions."""

from __future__ import annotations

import inputs
import members
import numpy as np
import pytest
import torch
from torch import Tensor

import byzantium as bz
from byzantium._kernels import torch_passes as plain
from byzantium.rules import kinds as rules
from byzantium.vectors import points

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def assert_agrees(member: members.Rule, X: Tensor) -> None:
    """To the tolerance of the dtype, relative to the rows that counted; ties are skipped."""
    tolerance = TOLERANCE[X.dtype]
    expected, margin = member.reference(X.double().numpy())
    if margin < 10 * tolerance:
        pytest.skip("the best two alternatives are closer than the tolerance")
    scale = max(float(np.abs(expected).max()), float(X.double().norm(dim=1).median()))
    result = member.fresh()(X, generator()).double().numpy()
    assert np.abs(result - expected).max() <= tolerance * scale


@pytest.mark.parametrize("kind", inputs.INPUTS)
@pytest.mark.parametrize("member", members.RULES, ids=members.name)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rules_agree_with_the_reference(
    member: members.Rule, kind: str, dtype: torch.dtype
) -> None:
    assert_agrees(member, inputs.INPUTS[kind](members.N).to(dtype))


@pytest.mark.parametrize("kind", ["heterogeneous", "outliers at 1e8"])
@pytest.mark.parametrize("member", members.PIPELINES, ids=members.name)
def test_composition_in_gram_space_equals_materialised_composition(
    member: members.Rule, kind: str
) -> None:
    assert_agrees(member, inputs.INPUTS[kind](members.N))


@pytest.mark.parametrize("mix", members.MIXINGS, ids=members.name)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_mixings_agree_with_the_reference(mix: members.Mix, dtype: torch.dtype) -> None:
    X = inputs.heterogeneous(members.N).to(dtype)
    expected = mix.reference(X.double().numpy(), generator())
    result = mix.mixing(X, generator()).double().numpy()
    assert result.shape == expected.shape == (mix.mixing.rows(members.N), X.shape[1])
    assert np.abs(result - expected).max() <= TOLERANCE[dtype] * np.abs(expected).max()


@pytest.mark.parametrize("kind", ["gaussian", "common part", "copies", "outliers at 1e8"])
@pytest.mark.parametrize("member", members.EVERYTHING, ids=members.name)
def test_plain_torch_agrees_with_the_compiled_kernels(
    member: members.Rule, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs on a GPU, on the CPU, and in blocks of few columns."""
    X = inputs.INPUTS[kind](members.N)
    X = X.repeat(1, -(-300 // X.shape[1]))
    expected = member.fresh().explain(X, generator())
    monkeypatch.setattr(plain, "BLOCK_BYTES", 1)  # the narrowest: 256 columns
    monkeypatch.setattr(points, "backend", lambda matrix: plain)
    monkeypatch.setattr(rules, "backend", lambda matrix: plain)
    result = member.fresh().explain(X, generator())
    scale = max(float(expected.aggregate.abs().max()), float(X.norm(dim=1).median()))
    assert (result.aggregate - expected.aggregate).abs().max() <= 1e-9 * scale
    if kind != "copies":  # whose weight is whose is a matter of rounding among equals
        assert torch.allclose(result.weights, expected.weights, atol=1e-6)


def test_the_opening_example_of_the_paper() -> None:
    """2n + 1 workers hold +-1: the robust rules say +-1, the mean and the buckets about 0."""
    X = torch.tensor([[(-1.0) ** i] for i in range(21)])
    for rule in (bz.Krum(f=0), bz.Median(), bz.GeometricMedian()):
        assert rule(X).abs() == 1
    assert bz.Mean()(X).abs() < 0.05
