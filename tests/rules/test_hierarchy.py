"""Two levels: a rule within each group of vectors, and a rule over the groups' results."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import inputs
import low_rank
import numpy as np
import pytest
import reference
import torch
from reference import Array

import byzantium as bz
from byzantium import related
from byzantium.rules.admission import check_sizes
from byzantium.runs import Run
from byzantium.vectors import LowRank
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints

INNER: list[tuple[bz.Aggregator, Callable[[Array], Array]]] = [
    (bz.Mean(), lambda X: reference.mean(X)[0]),
    (bz.Krum(f=1), lambda X: reference.krum(X, 1)[0]),
    (bz.GeometricMedian(), lambda X: reference.geometric_median(X)[0]),
    (bz.AgnosticClipping(f=1), lambda X: reference.agnostic_clipping(X, 1)[0]),
    (bz.MinimumDiameter(f=1), lambda X: reference.minimum_diameter(X, 1)[0]),
    (bz.SpectralFilter(f=1), lambda X: reference.spectral_filter(X, 1)[0]),
    (
        bz.NearestNeighborMixing(f=1) >> bz.GeometricMedian(),
        lambda X: reference.geometric_median(reference.nearest_neighbor_mixing(X, 1)[0])[0],
    ),
    (  # the origin is among the points of each group
        bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
        lambda X: reference.weiszfeld(X, 8, 0.1, np.zeros(X.shape[1]))[0],
    ),
    (
        bz.AdaptiveClipping(f=1) >> bz.Mean(),
        lambda X: reference.mean(reference.adaptive_clipping(X, 1))[0],
    ),
]
NO_RULE: Any = bz.Bucketing(2)
SIZES = (5, 6, 5, 7)
N = sum(SIZES)


@pytest.mark.parametrize(
    ("inner", "slow"),
    INNER,
    ids=lambda one: repr(one)[:40] if isinstance(one, bz.Aggregator) else "",
)
@pytest.mark.parametrize("outer", [bz.GeometricMedian(), bz.Median()], ids=repr)
def test_it_is_the_outer_rule_of_the_results_of_the_inner_one(
    inner: bz.Aggregator, slow: Callable[[Array], Array], outer: bz.Aggregator
) -> None:
    X = inputs.heterogeneous(N, 9)
    X[2] *= 1e6
    results = torch.from_numpy(reference.hierarchy(X.numpy(), SIZES, slow))
    report = (bz.Hierarchy(SIZES, inner) >> outer).explain(X)
    assert torch.allclose(bz.Hierarchy(SIZES, inner)(X), results, rtol=1e-7, atol=1e-7)
    assert torch.allclose(report.aggregate, outer(results), rtol=1e-7, atol=1e-7)
    # The weights are those of the workers, through both levels.
    assert report.mixing.shape == (4, N)
    assert torch.allclose(report.mixing @ X, results, rtol=1e-7, atol=1e-7)
    assert float(report.weights.sum()) + report.remainder == pytest.approx(1)
    if isinstance(outer, bz.GeometricMedian):
        assert torch.allclose(report.weights @ X, report.aggregate, rtol=1e-7, atol=1e-7)


def test_groups_in_order_have_sizes_that_differ_by_at_most_one() -> None:
    X = inputs.gaussian(11, 3)
    mixing = (bz.Hierarchy(3, bz.Mean()) >> bz.Mean()).explain(X).mixing
    assert [(row > 0).nonzero().flatten().tolist() for row in mixing] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]
    ]  # fmt: skip


def test_random_groups_of_means_are_balanced_buckets() -> None:
    X = inputs.gaussian(23, 6)
    groups = bz.Hierarchy(6, bz.Mean(), deal="random") >> bz.Median()
    buckets = bz.Bucketing(s=4, balanced=True) >> bz.Median()
    for seed in range(3):
        ours, theirs = (
            rule.explain(X, torch.Generator().manual_seed(seed)) for rule in (groups, buckets)
        )
        assert torch.allclose(ours.mixing, theirs.mixing)
        assert torch.allclose(ours.aggregate, theirs.aggregate)


def test_three_levels() -> None:
    X = inputs.gaussian(24, 4)
    region = bz.Hierarchy(3, bz.GeometricMedian()) >> bz.GeometricMedian()
    rule = bz.Hierarchy(2, region) >> bz.Mean()
    assert torch.allclose(rule(X), (region(X[:12]) + region(X[12:])) / 2)
    assert bz.parse(repr(rule)) == rule


def test_behind_another_mixing_groups_are_of_mixed_vectors() -> None:
    X = inputs.gaussian(24, 4)
    mixed = bz.NearestNeighborMixing(f=2)(X)
    rule = bz.NearestNeighborMixing(f=2) >> bz.Hierarchy(4, bz.Krum(f=1)) >> bz.Median()
    assert torch.allclose(rule(X), (bz.Hierarchy(4, bz.Krum(f=1)) >> bz.Median())(mixed))


def test_low_rank_updates_are_grouped_as_their_products_are() -> None:
    updates = low_rank.updates(12)
    rule = bz.Hierarchy(3, bz.GeometricMedian()) >> bz.GeometricMedian()
    ours = rule.explain(LowRank(updates)).weights
    assert torch.allclose(ours, rule.explain(low_rank.matrix(updates)).weights, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bz.Hierarchy(3, bz.Median()), "A rule by coordinate can be the outer one"),
        (lambda: bz.Hierarchy(3, bz.Bulyan(f=1)), "does not give a weight to each vector"),
        (lambda: bz.Hierarchy(3, bz.CenteredClipping(1)), "keeps a state from call to call"),
        (lambda: bz.Hierarchy(3, related.Safeguard(2, 6)), "keeps a state from call to call"),
        (lambda: bz.Hierarchy(3, bz.RootMatching(f=1)), "can be the outer rule: Hierarchy"),
        (lambda: bz.Hierarchy(3, NO_RULE), "Hierarchy needs an Aggregator for inner"),
        (lambda: bz.Hierarchy((), bz.Mean()), "at least one group"),
        (lambda: bz.Hierarchy((3, 0), bz.Mean()), "needs groups >= 1, got groups=0"),
        (lambda: bz.Hierarchy(30, bz.Mean())(torch.ones(9, 2)), "at least groups = 30 vectors"),
        (lambda: bz.Hierarchy((3, 4), bz.Mean())(torch.ones(9, 2)), "of 7 vectors in all, got 9"),
        (
            lambda: bz.Hierarchy(3, bz.Krum(f=1))(torch.ones(9, 2)),
            r"in a group of 3, Krum\(f=1\) needs at least 2f \+ 3 = 5 vectors, got 3",
        ),
        (lambda: bz.Hierarchy(3, bz.Mean()).bad_outputs(2), "until a pipeline is called"),
    ],
)
def test_what_cannot_be_is_one_sentence(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence):
        make()


def test_weights_are_refused_and_so_are_vectors_without_weight() -> None:
    """Without the vectors of weight 0, the others would be in other groups."""
    rule, X = bz.Hierarchy(3, bz.Mean()) >> bz.Median(), torch.ones(9, 2)
    with pytest.raises(bz.ByzantiumError, match="takes no weights; AgnosticClipping"):
        rule(X, weights=range(9))
    with pytest.raises(bz.ByzantiumError, match="takes no weights"):
        rule(X, weights=[1] * 8 + [0])
    assert torch.equal(rule(X, weights=[2] * 9), rule(X))


def test_in_a_run_the_f_of_the_outer_rule_counts_groups() -> None:
    groups = "Hierarchy(groups=5, inner=GeometricMedian())"
    run = Run(n=25, f=5, rule=f"{groups} >> TrimmedMean(f=1)")
    assert run.gap() == ""
    assert "TrimmedMean(f=1) is built for 1" in run.varied(f=6).gap()
    with pytest.raises(bz.ByzantiumError, match=r"f=1\) says f=1 and the run says f=5"):
        Run(n=25, f=5, rule=f"NearestNeighborMixing(f=1) >> {groups} >> Median()")


# -- rejected vectors ------------------------------------------------------------------------------


def test_as_many_vectors_may_be_unusable_as_the_outer_rule_and_the_groups_tolerate() -> None:
    rule = bz.Hierarchy(5, bz.Krum(f=1)) >> bz.TrimmedMean(f=1)  # f = 3: (1 + 1) (1 + 1) - 1
    for rows in ([0, 1, 2], [0, 5, 10], [3, 9, 24]):
        X = inputs.gaussian(25, 4)
        X[rows] = torch.nan
        report = rule.explain(X)
        assert report.rejected == tuple(rows)
        assert len(report.mixing) == 5
        assert float(report.weights[rows].abs().sum()) == 0
    X[[7, 8]] = torch.inf
    with pytest.raises(bz.TooManyRejected, match="its f = 3 of 25 vectors, but 5 are unusable"):
        rule(X)


@pytest.mark.parametrize("deal", ["order", "random"])
def test_no_pattern_of_unusable_vectors_stops_a_hierarchy(deal: Any) -> None:
    rule = bz.Hierarchy(3, bz.Krum(f=1), deal=deal) >> bz.TrimmedMean(f=1)
    for rows in list(itertools.combinations(range(15), 3))[::25]:
        X = inputs.gaussian(15, 3)
        X[list(rows)] = torch.nan
        report = rule.explain(X, torch.Generator().manual_seed(1))
        assert report.aggregate.isfinite().all()
        # In order, all others are where they were.
        groups = [(row > 0).nonzero().flatten() // 5 for row in report.mixing]
        assert deal == "random" or all((one == k).all() for k, one in enumerate(groups))


def test_the_result_of_a_group_with_nobody_left_is_the_mean_of_all() -> None:
    X = inputs.gaussian(9, 3)
    X[3:6] = torch.nan
    rule = bz.Hierarchy(3, bz.GeometricMedian()) >> bz.GeometricMedian()
    assert torch.allclose(
        rule.explain(X).mixing[1, [0, 1, 2, 6, 7, 8]], torch.ones(()).double() / 6
    )


# -- size ------------------------------------------------------------------------------------------


def test_ten_thousand_vectors_need_no_ten_thousand_squared_numbers() -> None:
    """The Gram matrix of all would be 800 MB; torch's own memory is counted by `Matrix.nbytes`."""
    n, rule = 10_000, bz.Hierarchy(100, bz.AgnosticClipping(f=20)) >> bz.GeometricMedian()
    X = torch.randn(n, 20, generator=torch.Generator().manual_seed(0))
    tracemalloc.start()
    report = rule.explain(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6
    assert torch.allclose(report.weights.float() @ X, report.aggregate, atol=1e-5)


def test_only_rows_of_the_group_are_measured() -> None:
    X = inputs.gaussian(12, 4)
    points = SourcePoints(bz.vectors.as_source(X), norms=X.norm(dim=1).numpy())
    geometry = Geometry.of(points)
    (stage,) = check_sizes([bz.Hierarchy(3, bz.GeometricMedian())], 12)
    assert isinstance(stage, bz.Hierarchy)
    mixed = geometry.mixed(stage.matrix(geometry, None)).computed()
    assert mixed.gram.shape == (3, 3)
    assert points._gram is None
