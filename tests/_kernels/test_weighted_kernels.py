"""Kernels for weighted values: the same as plain torch, and as so many equal rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from byzantium._kernels import torch_passes as plain

passes = pytest.importorskip("byzantium._kernels.compiled_passes", reason="llvmlite is missing")

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
# Enough columns for the kernels of 7 rows, and a tail.
COLUMNS = 40_009


def kept_of(rule: str, held: float) -> tuple[float, bool]:
    """What the rules by coordinate keep of the weight, and whether it is what is nearest."""
    return {
        "mean": (1.0, False),
        "median": (0.0, False),
        "trimmed": (1 - 2 * held, False),
        "meamed": (1 - held, True),
    }[rule]


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "meamed"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("n", [7, 8, 33])
def test_kernels_agree_with_plain_torch(n: int, rule: str, dtype: torch.dtype, mixed: bool) -> None:
    rng = np.random.default_rng(n)
    X = torch.from_numpy(rng.normal(size=(n + 2, COLUMNS))).to(dtype)
    rows = np.delete(np.arange(n + 2), [1, 4])
    weights = rng.integers(1, 30, size=n) / 1.0
    weights /= weights.sum()
    kept, nearest = kept_of(rule, float(np.sort(weights)[-2:].sum()))
    mixing = None
    if mixed:
        mixing = rng.random((n, n)) + 3 * np.eye(n)
        mixing /= mixing.sum(axis=1, keepdims=True)
    ours, theirs = torch.empty(COLUMNS, dtype=dtype), torch.empty(COLUMNS, dtype=dtype)
    share, expected = np.zeros(n), np.zeros(n)
    given_ = X, rows, mixing, weights, kept, nearest
    peak = passes.weighted_mean(*given_, ours, share)
    largest = plain.weighted_mean(*given_, theirs, expected)
    assert peak >= largest * (1 - 1e-6) if mixed else peak == pytest.approx(largest, rel=1e-6)
    assert (ours - theirs).abs().max() <= TOLERANCE[dtype] * X.abs().max()
    # Mixed rows are rounded in another order.
    assert share == pytest.approx(expected, rel=1e-4 if mixed else 1e-5)
    assert share.sum() == pytest.approx(COLUMNS)
    again = torch.empty_like(ours)
    passes.weighted_mean(*given_, again)
    assert torch.equal(ours, again)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["median", "trimmed", "meamed"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(st.integers(1, 9), min_size=7, max_size=7),
    st.integers(0, 2**20),
)
def test_whole_weights_are_so_many_equal_rows(
    rule: str, dtype: torch.dtype, sizes: list[int], seed: int
) -> None:
    """Values are eighths, so that many are equal or equally near, and nothing is rounded."""
    rng = np.random.default_rng(seed)
    held, whole = max(sizes), sum(sizes)
    X = torch.from_numpy(rng.integers(-20, 21, size=(7, COLUMNS)) / 8).to(dtype)
    count = {"median": 2 - whole % 2, "trimmed": whole - 2 * held, "meamed": whole - held}[rule]
    if count < 1:
        return
    kept, nearest = kept_of(rule, held / whole)
    ours, theirs = torch.empty(COLUMNS, dtype=dtype), torch.empty(COLUMNS, dtype=dtype)
    weights, share, shares = np.array(sizes) / whole, np.zeros(7), np.zeros(whole)
    passes.weighted_mean(X, np.arange(7), None, weights, kept, nearest, ours, share)
    repeated = np.arange(7).repeat(sizes)
    passes.central_mean(X, repeated, None, count, nearest, theirs, shares)
    assert (ours - theirs).abs().max() <= 4 * TOLERANCE[dtype]
    expected = np.bincount(repeated, weights=shares / shares.sum())
    assert share / share.sum() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rule", ["median", "trimmed", "meamed"])
def test_trimmed_weight_does_not_count_at_all(rule: str, dtype: torch.dtype) -> None:
    """A rounding error of a weight, times a huge value, would."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        weights = rng.random(7)
        weights /= weights.sum()
        bad = np.argsort(weights)[-2:]
        held = float(weights[bad].sum())
        if held > 0.49:
            continue
        kept, nearest = kept_of(rule, held)
        X = torch.from_numpy(rng.normal(size=(7, COLUMNS))).to(dtype)
        X[bad] = 1e17
        out = torch.empty(COLUMNS, dtype=dtype)
        passes.weighted_mean(X, np.arange(7), None, weights, kept, nearest, out)
        assert out.abs().max() < 10


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rule", ["mean", "median", "trimmed", "meamed"])
def test_equal_values_are_their_mean_to_the_bit(rule: str, dtype: torch.dtype) -> None:
    row = torch.from_numpy(np.random.default_rng(3).normal(size=COLUMNS)).to(dtype)
    X, weights = row.repeat(7, 1), np.arange(1, 8) / 28
    kept, nearest = kept_of(rule, 0.4)
    out = torch.empty(COLUMNS, dtype=dtype)
    for module in (passes, plain):
        module.weighted_mean(X, np.arange(7), None, weights, kept, nearest, out)
        assert torch.equal(out, row)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_noticed(bad: float) -> None:
    X = torch.zeros(7, COLUMNS)
    X[3, 7] = bad
    out, weights = torch.empty(COLUMNS), np.arange(1, 8) / 28
    for rule in ("mean", "median", "trimmed", "meamed"):
        kept, nearest = kept_of(rule, 0.4)
        peak = passes.weighted_mean(X, np.arange(7), None, weights, kept, nearest, out)
        assert not np.isfinite(peak)


def test_a_share_that_rounding_hides_is_the_median() -> None:
    rng = np.random.default_rng(4)
    X = torch.from_numpy(rng.normal(size=(7, COLUMNS))).float()
    weights = np.arange(1, 8) / 28
    median, nearly = torch.empty(COLUMNS), torch.empty(COLUMNS)
    passes.weighted_mean(X, np.arange(7), None, weights, 0.0, False, median)
    passes.weighted_mean(X, np.arange(7), None, weights, 2e-9, False, nearly)
    assert torch.equal(median, nearly)
