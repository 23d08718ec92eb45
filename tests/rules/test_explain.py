"""The report says how much each worker counted."""

from __future__ import annotations

import inputs
import pytest
import torch

import byzantium as bz


def test_weights_of_coordinate_wise_rules_are_shares_of_coordinates() -> None:
    X = torch.tensor([[1.0, 5.0, 2.0, 0.0], [2.0, 4.0, 2.0, 1.0], [3.0, 3.0, 9.0, 2.0]])
    # Columns: worker 1 alone, worker 1 alone, workers 0 and 1 share, worker 1 alone.
    assert bz.Median().explain(X).weights.tolist() == [0.125, 0.875, 0.0]
    assert bz.TrimmedMean(f=0).explain(X).weights.tolist() == pytest.approx([1 / 3] * 3)


def test_ties_share_equally() -> None:
    X = torch.tensor([[7.0], [7.0], [7.0], [7.0], [1.0]])
    assert bz.Median().explain(X).weights.tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]
    assert bz.MeaMed(f=1).explain(X).weights.tolist() == [0.25, 0.25, 0.25, 0.25, 0.0]


def test_shares_are_pulled_back_through_the_mixing() -> None:
    X = inputs.gaussian(6, 50)
    report = (bz.Bucketing(s=2) >> bz.Median()).explain(X, torch.Generator().manual_seed(1))
    buckets = report.mixing > 0
    for bucket in buckets:
        assert (
            report.weights[bucket].max() == report.weights[bucket].min()
        )  # both members of a bucket count alike
    assert float(report.weights.sum()) == pytest.approx(1)


def test_a_selection_counts_one_worker_and_a_bucket_its_members() -> None:
    X = inputs.gaussian(25)
    assert bz.Krum(f=5).explain(X).effective_workers == pytest.approx(1)
    bucketed = (bz.Bucketing(s=2) >> bz.Krum(f=5)).explain(X, torch.Generator().manual_seed(0))
    assert bucketed.effective_workers == pytest.approx(2)
    assert bz.Mean().explain(X).effective_workers == pytest.approx(25)


def test_the_remainder_lies_on_the_centre_or_the_origin() -> None:
    X = torch.tensor([[10.0], [10.0], [10.0]])
    report = bz.CenteredClipping(radius=1.0).explain(X)
    assert report.remainder == pytest.approx(0.9)
    assert report.aggregate.item() == pytest.approx(1)
    clipped = (bz.AdaptiveClipping(f=1) >> bz.Mean()).explain(torch.tensor([[1.0], [2.0], [8.0]]))
    assert clipped.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 12])
    assert clipped.remainder == pytest.approx(1 / 4)
    plain = bz.Krum(f=1).explain(inputs.gaussian(9))
    assert plain.remainder == 0


def test_the_mixing_tells_who_was_in_which_bucket() -> None:
    report = (bz.Bucketing(s=2) >> bz.Mean()).explain(inputs.gaussian(5))
    assert report.mixing.shape == (3, 5)
    assert sorted((report.mixing > 0).sum(dim=1).tolist()) == [1, 2, 2]
    assert (report.mixing > 0).sum(dim=0).tolist() == [1] * 5


def test_buckets_are_fresh_in_each_call_and_follow_the_generator() -> None:
    X = inputs.gaussian(25)
    rule = bz.Bucketing(s=2) >> bz.Median()
    a, b = (rule.explain(X).mixing for _ in range(2))
    assert not torch.equal(a, b)
    torch.manual_seed(0)
    c = rule.explain(X).mixing
    torch.manual_seed(0)
    d = rule.explain(X).mixing
    assert not torch.equal(c, d), "an attacker who knows the global seed must not know the buckets"
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    e, f = (rule.explain(X, generator).mixing for generator in generators)
    assert torch.equal(e, f)
