"""Nonsense is rejected before any rule, counted as Byzantine, and named; for every pipeline."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import Any

import inputs
import members
import pytest
import torch
from members import EVERYTHING, MIXINGS, F, N
from torch import Tensor

import byzantium as bz

NONSENSE = {
    "nan": [torch.nan],
    "+inf": [torch.inf],
    "-inf": [-torch.inf],
    "mixture": [torch.nan, torch.inf, -torch.inf, 1.0],
    "absurd": [3e19],
}


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def spoiled(rows: list[int], kind: str, everywhere: bool = True) -> Tensor:
    X = inputs.heterogeneous(N, 40).float()
    values = torch.tensor(NONSENSE[kind])
    columns = torch.arange(40) if everywhere else torch.tensor([17])
    for row in rows:
        X[row, columns] = values[torch.arange(len(columns)) % len(values)]
    return X


@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("rows", [[5], [0, N - 1]], ids=str)
@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_the_rule_goes_on_with_the_rest_and_a_smaller_f(
    member: members.Rule, rows: list[int], kind: str
) -> None:
    X = spoiled(rows, kind)
    rule = member.fresh()
    report = rule.explain(X, seeded())
    assert report.rejected == tuple(rows)
    assert (report.weights[rows] == 0).all()
    assert float(report.weights.sum()) + report.remainder == pytest.approx(1)

    stages = [stage.with_fewer_bad(len(rows)) for stage in member.fresh().stages]
    if isinstance(stages[0], bz.Hierarchy):  # its groups keep their members, and all have results
        ends = stages[0].sizes(N).cumsum().tolist()
        sizes = [
            end - start - sum(start <= row < end for row in rows)
            for start, end in itertools.pairwise([0, *ends])
        ]
        stages = [replace(stages[0], groups=tuple(sizes)), member.fresh().stages[-1]]
    reduced: Any = stages[-1] if len(stages) == 1 else stages[0] >> stages[-1]  # type: ignore[operator]
    remaining = X[[i for i in range(N) if i not in rows]]
    expected = reduced(remaining, seeded())
    assert torch.allclose(report.aggregate, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["nothing", *NONSENSE])
@pytest.mark.parametrize("mixing", [bz.Bucketing(s=2), bz.Resampling(s=2)], ids=repr)
def test_trying_before_admission_changes_neither_results_nor_what_is_drawn(
    mixing: bz.Mixing, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejected rows included, and with so many columns that sums are formed in registers."""
    X = inputs.heterogeneous(N, 40_000).float()
    if kind != "nothing":
        X[3, 17] = NONSENSE[kind][0]
    results = []
    for tried in (True, False):
        if not tried:
            monkeypatch.setattr(type(mixing), "oblivious", False)
        generator = seeded()
        aggregates = [(mixing >> bz.Median())(X, generator) for _ in range(2)]
        results.append((torch.stack(aggregates), generator.get_state()))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert results[0][0].isfinite().all()


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_one_bad_number_rejects_its_row_in_half_precision_too(member: members.Rule) -> None:
    X = spoiled([4], "nan", everywhere=False)
    for dtype in (torch.float16, torch.float32, torch.float64):
        report = member.fresh().explain(X.to(dtype), seeded())
        assert report.rejected == (4,)
        assert report.aggregate.isfinite().all()


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_more_than_f_raises_and_names_them(member: members.Rule) -> None:
    stages = member.rule.stages
    allowed = min((stage.bad for stage in stages if stage.bad is not None), default=N // 2)
    bad = list(range(allowed + 1))
    with pytest.raises(ValueError, match=f"but {allowed + 1} are unusable") as error:
        member.fresh()(spoiled(bad, "nan"))
    assert repr(member.rule) in str(error.value)
    assert "workers 0, 1" in str(error.value)


@pytest.mark.parametrize("mix", MIXINGS, ids=members.name)
def test_mixings_alone_reject_too(mix: members.Mix) -> None:
    assert mix.mixing(spoiled([3], "mixture"), seeded()).isfinite().all()


def test_rejection_never_makes_a_pipeline_too_small() -> None:
    """Sizes are judged before: f workers that send NaN must not be able to stop the training."""
    rule = bz.Bucketing(s=2) >> bz.Krum(f=5)
    for bad in range(6):
        X = inputs.gaussian(25)
        X[:bad] = torch.nan
        assert rule(X).isfinite().all()
    X = inputs.gaussian(3)
    X[0] = torch.nan
    assert (bz.Bucketing(s=3) >> bz.Mean())(X).isfinite().all()


def test_the_limit_of_the_norm_depends_on_the_dtype() -> None:
    X = inputs.gaussian(N)
    X[0] = 1e100
    assert bz.Median().explain(X).rejected == ()
    X[0] = 1e151
    assert bz.Median().explain(X).rejected == (0,)
    X = X.float()
    X[0] = 9e17 / X.shape[1] ** 0.5
    assert bz.Median().explain(X).rejected == ()


def test_rejection_is_logged_once_a_call(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="byzantium"):
        bz.Krum(f=F)(spoiled([3, 8], "nan"))
    assert [record.getMessage() for record in caplog.records] == [
        f"rejected 2 of {N} vectors: workers 3, 8 (not finite, or of norm above 1e+18)"
    ]


def test_a_failed_call_leaves_the_state_alone() -> None:
    rule = bz.CenteredClipping(radius=1.0)
    rule(inputs.gaussian(5))
    before = rule.state_dict()["center"]
    with pytest.raises(ValueError, match="not finite"):
        rule(torch.full((5, 7), torch.nan).double())
    assert torch.equal(rule.state_dict()["center"], before)
