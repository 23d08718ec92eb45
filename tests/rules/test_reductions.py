"""Pairs that must agree."""

from __future__ import annotations

import math

import inputs
import pytest
import torch
from members import F, N

import byzantium as bz

PAIRS = [
    (bz.TrimmedMean(f=0), bz.Mean()),
    (bz.MeaMed(f=0), bz.Mean()),
    (bz.Bulyan(f=0), bz.Mean()),
    (bz.MinimumDiameter(f=0), bz.Mean()),
    (bz.SpectralFilter(f=0), bz.Mean()),
    (bz.AgnosticClipping(f=0), bz.Mean()),
    (bz.AgnosticClipping(f=F, b=1e9), bz.Mean()),
    (bz.Krum(f=0, m=N), bz.Mean()),
    (bz.CenteredClipping(radius=math.inf), bz.Mean()),
    (bz.CenteredClipping(radius=math.inf, steps=3), bz.Mean()),
    (bz.GeometricMedian(steps=1, smoothing=1e9), bz.Mean()),
    (bz.GeometricMedian(smoothing=1e9), bz.Mean()),
    (bz.GeometricMedian(steps=300), bz.GeometricMedian()),
    (bz.GeometricMedian(start="zero"), bz.GeometricMedian()),
    (bz.TrimmedMean(f=(N - 1) // 2), bz.Median()),
    (bz.Bucketing(s=N) >> bz.Median(), bz.Mean()),
    (bz.NearestNeighborMixing(f=0) >> bz.Krum(f=F), bz.Mean()),
    (bz.AdaptiveClipping(f=0) >> bz.Krum(f=F), bz.Krum(f=F)),
    (bz.Clipping(radius=math.inf) >> bz.Krum(f=F), bz.Krum(f=F)),
    (bz.Resampling(s=1) >> bz.GeometricMedian(), bz.GeometricMedian()),
    *((bz.Bucketing(s=1) >> rule, rule) for rule in (bz.Krum(f=F), bz.Median(), bz.MeaMed(f=F))),
    *((bz.Bucketing(s=s) >> bz.Mean(), bz.Mean()) for s in (1, N)),
    (bz.Bucketing(s=1, balanced=True) >> bz.Krum(f=F), bz.Krum(f=F)),
    (bz.Bucketing(s=N, balanced=True) >> bz.Median(), bz.Mean()),
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=repr)
@pytest.mark.parametrize("kind", ["gaussian", "heterogeneous", "outliers at 1e8"])
def test_pairs_agree(left: bz.Aggregator, right: bz.Aggregator, kind: str) -> None:
    X = inputs.INPUTS[kind](N)
    left.reset()
    assert torch.allclose(left(X), right(X), rtol=1e-9, atol=1e-6 if "1e8" in kind else 1e-9)


def test_composition_is_associative() -> None:
    a, b, c = bz.Bucketing(s=2), bz.AdaptiveClipping(f=F), bz.NearestNeighborMixing(f=F)
    rule = bz.Krum(f=F)
    assert ((a >> b) >> c) >> rule == a >> (b >> (c >> rule)) == (a >> b) >> (c >> rule)
    assert (a >> b) >> c == a >> (b >> c)
    assert repr(a >> b >> rule) == ("Bucketing(s=2) >> AdaptiveClipping(f=2) >> Krum(f=2)")
    assert len({(a >> b) >> rule, a >> (b >> rule)}) == 1


def test_a_chain_of_mixings_mixes_what_the_first_left() -> None:
    X = inputs.heterogeneous(N)
    first, second = bz.Bucketing(s=2), bz.NearestNeighborMixing(f=1)

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(7)

    chained = (first >> second)(X, seeded())
    assert torch.allclose(chained, second(first(X, seeded())))


def test_krum_of_clipped_rows_sees_the_clipped_rows() -> None:
    X = inputs.outliers(N)
    clipped = bz.AdaptiveClipping(f=F)(X)
    assert torch.allclose((bz.AdaptiveClipping(f=F) >> bz.Mean())(X), clipped.mean(dim=0))
    assert torch.allclose((bz.AdaptiveClipping(f=F) >> bz.Median())(X), bz.Median()(clipped))
