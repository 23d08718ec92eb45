"""Centred clipping without a radius, and buckets of even sizes."""

from __future__ import annotations

import inputs
import numpy as np
import pytest
import reference
import torch

import byzantium as bz


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mixing", [None, bz.Bucketing(s=3)], ids=repr)
def test_with_nobody_bad_it_is_the_mean_to_the_bit(
    mixing: bz.Mixing | None, dtype: torch.dtype
) -> None:
    for n in (1, 2, 5, 24, 33):
        X = (inputs.gaussian(n, 301, seed=n) + 3).to(dtype)
        if mixing is not None and n < 3:
            continue
        pair: list[bz.Aggregator] = [bz.AgnosticClipping(f=0), bz.Mean()]
        left, right = (rule if mixing is None else mixing >> rule for rule in pair)
        generators = (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1))
        assert torch.equal(left(X, generators[0]), right(X, generators[1]))
        assert torch.equal(
            left.explain(X, generators[0]).aggregate, right.explain(X, generators[1]).aggregate
        )


@pytest.mark.parametrize("f", [1, 5, 8, 12])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e8])
def test_what_all_honest_say_is_the_result_to_the_bit(f: int, size: float) -> None:
    for dtype in (torch.float32, torch.float64):
        X = inputs.gaussian(1, 40).expand(25, 40).to(dtype).clone()
        honest = X[0].clone()
        X[3 : 3 + f] += (size * inputs.gaussian(f, 40, seed=2)).to(dtype)
        assert torch.equal(bz.AgnosticClipping(f=f)(X), honest)


def test_the_radius_follows_the_vectors_over_forty_orders_of_magnitude() -> None:
    X = inputs.gaussian(25, 9)
    X[:5] += 4
    plain = bz.AgnosticClipping(f=5)(X)
    for scale in (1e-20, 1e20):
        assert torch.allclose(bz.AgnosticClipping(f=5)(scale * X) / scale, plain, rtol=1e-12)


@pytest.mark.parametrize("f", [1, 5, 8, 12])
@pytest.mark.parametrize("kind", ["gaussian", "two camps", "line", "far", "nearly one"])
def test_it_is_where_centred_clipping_comes_to_rest(kind: str, f: int) -> None:
    """Also where the minimiser is hard to find: flat sums, rows nearly equal, rows far away."""
    n, d = 25, 4
    X = inputs.gaussian(n, d, seed=f)
    if kind == "two camps":
        X[: n // 2] += 30
    elif kind == "line":
        X[:, 1:] = 0
    elif kind == "far":
        X[:f] *= 1e7
    elif kind == "nearly one":
        X[f:] *= 1e-9
    found = bz.AgnosticClipping(f=f)(X).numpy()
    A, h = X.numpy(), n - f
    s2 = min(sum(sorted(reference.squared_distance(x, y) for y in A)[:h]) / h for x in A)
    radius = 1.25 * h / (2 * np.sqrt(f * (n - 2 * f))) * np.sqrt(s2)
    moved, _ = reference.centered_clipping(A, radius, 1, found)
    assert np.linalg.norm(moved - found) < 1e-9 * radius


@pytest.mark.parametrize(("n", "s"), [(25, 12), (25, 2), (24, 3), (7, 4), (5, 5), (9, 1)])
def test_balanced_buckets_are_as_many_and_their_sizes_differ_by_at_most_one(n: int, s: int) -> None:
    X = inputs.gaussian(n, 3)
    report = (bz.Bucketing(s=s, balanced=True) >> bz.Mean()).explain(X)
    groups = [row.nonzero()[:, 0] for row in report.mixing]
    sizes = sorted(len(group) for group in groups)
    assert len(groups) == -(-n // s) == bz.Bucketing(s=s, balanced=True).rows(n)
    assert sizes[-1] - sizes[0] <= 1
    assert sizes[-1] <= s
    assert sorted(torch.cat(groups).tolist()) == list(range(n))
    for row, group in zip(report.mixing, groups, strict=True):
        assert torch.allclose(row[group], torch.full((len(group),), 1 / len(group)).double())


def test_where_s_divides_n_balanced_buckets_are_the_same_buckets() -> None:
    X = inputs.gaussian(24, 3)
    made = [
        bz.Bucketing(s=4, balanced=balanced)(X, torch.Generator().manual_seed(3))
        for balanced in (False, True)
    ]
    assert torch.equal(*made)


def test_buckets_as_they_were_keep_their_name() -> None:
    assert repr(bz.Bucketing(s=2)) == repr(bz.Bucketing(s=2, balanced=False)) == "Bucketing(s=2)"
    assert bz.parse("Bucketing(s=2, balanced=True)") == bz.Bucketing(s=2, balanced=True)
