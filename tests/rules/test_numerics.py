"""The numerics contract: right whatever the scale, the offset, the size and the layout."""

from __future__ import annotations

import inputs
import members
import pytest
import torch
from members import EVERYTHING, RULES, N
from references import counted_references
from torch import Tensor

import byzantium as bz
from byzantium._kernels import torch_passes as plain
from byzantium.vectors import mixed_points
from byzantium.vectors import points as points_module
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def gram_distances(X: Tensor) -> Tensor:
    points = SourcePoints(Matrix(X))
    return torch.from_numpy(Geometry.of(points).squared_distances)


def true_distances(X: Tensor) -> Tensor:
    X = X.double()
    return torch.stack([(X - x).square().sum(dim=1) for x in X])


def relative_error(X: Tensor, rows: int) -> float:
    """Of the distances between the first rows, which a rule would use."""
    ours, truth = gram_distances(X)[:rows, :rows], true_distances(X)[:rows, :rows]
    off_diagonal = ~torch.eye(rows, dtype=torch.bool)
    return float(((ours - truth).abs() / truth)[off_diagonal].max())


@pytest.fixture(params=["compiled", "plain"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        for module in (points_module, mixed_points):
            monkeypatch.setattr(module, "backend", lambda matrix: plain)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("attack", [None, 1e8, 1e17])
def test_distances_are_right_beside_a_large_common_part(attack: float | None) -> None:
    X = inputs.common_part(25).float()
    if attack:
        X[-5:] = attack * inputs.gaussian(5, X.shape[1]).float() / 30
    assert relative_error(X, 20) < 1e-5


@pytest.mark.usefixtures("passes")
def test_attackers_at_1e25_are_absurd_in_float32_and_harmless_in_float64() -> None:
    X = inputs.common_part(25)
    X[-5:] = 1e25
    assert relative_error(X, 20) < 1e-8
    assert bz.Krum(f=5).explain(X.float()).rejected == (20, 21, 22, 23, 24)


@pytest.mark.usefixtures("passes")
def test_distances_are_right_when_the_row_of_median_norm_is_an_attacker() -> None:
    """Sign flips have the norm of honest rows, and stand far from all of them."""
    X = inputs.common_part(25).float()
    X[::3] = -X[::3] * (1 + 1e-6 * inputs.gaussian(9, 1).float())
    honest = X[[i for i in range(25) if i % 3]]
    assert relative_error(torch.cat([honest, X[::3]]), len(honest)) < 1e-5


@pytest.mark.usefixtures("passes")
def test_equal_rows_are_told_from_different_ones() -> None:
    X = inputs.copies(23, 400).float() + 60
    same = (X[:, None] == X[None]).all(dim=2)
    distances = gram_distances(X)
    assert (distances[same] <= 1e-15 * distances.max()).all()
    assert (distances[~same] > 1).all()


def test_rows_equal_to_the_bit_have_distance_zero_to_the_bit() -> None:
    X = inputs.copies(23, 400).float() + 60
    same = (X[:, None] == X[None]).all(dim=2)
    assert (gram_distances(X)[same] == 0).all()


@pytest.mark.parametrize("noise", [0.0, 1e-4])
@pytest.mark.parametrize("attack", [1.0, 1e3, 1e9])
def test_attackers_that_collude_cost_no_second_reading(
    noise: float, attack: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They send equal vectors, or nearly: the common case must stay the fast one."""
    references = counted_references(monkeypatch)
    X = inputs.gaussian(25, 300).float()
    X[-5:] = attack * (X[3] + noise * inputs.gaussian(5, 300).float())
    bz.Krum(f=5)(X)
    assert len(references) == 1


def as_reference(row: Tensor, X: Tensor) -> Tensor:
    """The row, with the median norm of the others: what is measured first is measured from it."""
    norms = X.norm(dim=1).sort().values
    return row / row.norm() * (norms[len(X) // 2 - 1] + norms[len(X) // 2]) / 2


def test_an_attacker_as_the_reference_costs_one_more_reading_and_no_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = inputs.common_part(24)
    X = torch.cat([X, as_reference(-X[0], X)[None]])
    references = counted_references(monkeypatch)
    assert relative_error(X, 24) < 1e-9
    assert len(references) == 2
    assert references[0] == 24


@pytest.mark.usefixtures("passes")
def test_an_attacker_who_comes_first_costs_one_more_reading_and_no_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rule measures from the first row, until it knows better."""
    X = inputs.gaussian(25, 300).float()
    X[0] += 1e6
    last = bz.GeometricMedian().explain(X.roll(-1, 0))
    references = counted_references(monkeypatch)
    first = bz.GeometricMedian().explain(X)
    assert len(references) == 2
    assert references[0] == 0 != references[1]
    assert torch.allclose(first.weights.roll(-1), last.weights, rtol=1e-8)


@pytest.mark.parametrize(
    "rule", [bz.Krum(f=7), bz.NearestNeighborMixing(f=7) >> bz.Krum(f=7)], ids=repr
)
def test_the_first_rows_hide_nothing_however_far_away_they_are(rule: bz.Aggregator) -> None:
    """Seen from each of them, all that is much nearer to the honest rows coincides with them."""
    for seed in range(10):
        X = torch.cat([200 * torch.ones(7, 40), inputs.gaussian(18, 40, seed)])
        weights = rule.explain(X).weights
        for exponents in ([149, 141, 133, 125, 117, 109, 101], [149] * 7, range(17, 10, -1)):
            X[:7] = 10.0 ** torch.tensor(exponents, dtype=torch.float64)[:, None] / 7
            assert torch.equal(rule.explain(X).weights, weights)
        assert torch.equal(rule.explain(X.float()).weights, weights)


def test_rows_that_are_all_equal_but_the_reference_cost_no_second_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    X = inputs.common_part(1).expand(24, -1)
    X = torch.cat([X, -X[:1]])
    references = counted_references(monkeypatch)
    assert (gram_distances(X)[:24, :24] == 0).all()
    assert (gram_distances(X.flip(0))[1:, 1:] == 0).all()
    assert len(references) == 2


@pytest.mark.parametrize("offset", [1e8, 1e12])
def test_the_choice_of_the_reference_is_not_in_the_hands_of_attackers(offset: float) -> None:
    """Seen from -x, all the honest rows coincide, and so do attackers 500 spreads away."""
    for seed in range(40):
        honest = offset / 20 + offset * 1e-13 * inputs.gaussian(18, 400, seed)
        X = torch.cat([honest, honest[:5] + offset * 5e-11 * inputs.gaussian(5, 400, seed + 1)])
        X = torch.cat([X, as_reference(-X[0], X).expand(2, -1)])
        assert bz.Krum(f=7).explain(X).weights[:18].sum() == 1


@pytest.mark.parametrize("n", [3, 4, 8, 24, 25, 26, 27, 64, 100, 300])
def test_accuracy_does_not_depend_on_the_number_of_rows(n: int) -> None:
    X = inputs.gaussian(n, 60).float() + 20
    assert relative_error(X, n) < 1e-6
    assert torch.allclose(bz.Median()(X), X.quantile(0.5, dim=0), atol=1e-5)
    trimmed = X.sort(dim=0).values[n // 3 : n - n // 3].mean(dim=0)
    assert torch.allclose(bz.TrimmedMean(n // 3)(X), trimmed, atol=1e-5)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_accumulated_wider_and_returned_in_kind(
    member: members.Rule, dtype: torch.dtype
) -> None:
    X = inputs.heterogeneous(N).to(dtype)
    result = member.fresh()(X, seeded())
    assert result.dtype == dtype
    expected = member.fresh()(X.float(), seeded())
    assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
@pytest.mark.parametrize("d", [0, 1, 2, 257, 2049])
def test_any_number_of_columns(member: members.Rule, d: int) -> None:
    X = inputs.gaussian(N, d).float()
    report = member.fresh().explain(X, seeded())
    assert report.aggregate.shape == (d,)
    assert report.aggregate.isfinite().all()
    assert float(report.weights.sum()) + report.remainder == pytest.approx(1)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_the_layout_of_the_input_does_not_matter(member: members.Rule) -> None:
    X = inputs.heterogeneous(N, 30).float()
    expected = member.fresh()(X, seeded())
    wide = torch.full((2 * N, 90), torch.nan)
    wide[1::2, 30:60] = X
    for view in (X.T.contiguous().T, wide[1::2, 30:60], X[:, None].expand(N, 1, 30)[:, 0]):
        assert torch.allclose(member.fresh()(view, seeded()), expected, atol=1e-6)
    every_other = torch.stack([X, X], dim=2).flatten(1)[:, ::2]
    assert torch.allclose(member.fresh()(every_other, seeded()), expected, atol=1e-6)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_input_is_untouched_and_the_result_detached(member: members.Rule) -> None:
    X = inputs.heterogeneous(N).float().requires_grad_()
    before = X.detach().clone()
    rule = member.fresh()
    first = rule(X, seeded())
    assert not first.requires_grad
    first.zero_()  # the caller owns the result: neither input nor state may share its memory
    assert torch.equal(X.detach(), before)
    rule(X, seeded())
    assert torch.equal(X.detach(), before)


@pytest.mark.parametrize("member", RULES, ids=members.name)
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_extreme_scales_are_no_reason_to_fail(member: members.Rule, scale: float) -> None:
    if "scale" in member.fails:
        pytest.skip("this rule has a length of its own")
    X = inputs.heterogeneous(N)
    expected = scale * member.fresh()(X, seeded())
    result = member.fresh()((scale * X).float(), seeded()).double()
    assert (result - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("power", [1, 2, 3, 4, 40, 1000])
@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("exponent", [-500, -332, -160, 160, 332])
def test_krum_picks_the_same_rows_at_every_scale(power: float, m: int, exponent: int) -> None:
    """Scores that all underflow, or all overflow, would tie, and the first rows be picked."""
    rule = bz.Krum(f=3, m=m, power=power)
    for seed in range(5):
        X = inputs.gaussian(11, 5, seed)
        X[0] += 9
        X[-1] = 0.0
        expected = rule.explain(X).weights
        assert torch.equal(rule.explain(X * 2.0**exponent).weights, expected)
        assert float(expected[0]) == 0


def test_krum_tells_close_rows_apart_beside_some_so_far_away_that_they_overflow() -> None:
    X = inputs.gaussian(11, 5) * 2.0**-300
    X[0] += 2.0**-299
    expected = bz.Krum(f=3, power=4).explain(X).weights
    X[-3:] = 1e140 * inputs.gaussian(3, 5, seed=1)
    far = bz.Krum(f=3, power=4).explain(X).weights
    assert float(far[0]) == 0
    assert far[-3:].sum() == 0
    assert expected[-3:].sum() == 0
    assert torch.equal(bz.Krum(f=3, power=2).explain(X).weights > 0, far > 0)


@pytest.mark.parametrize("power", [2, 4])
def test_the_units_of_krum_change_no_bit_of_what_it_picks(power: float) -> None:
    for seed in range(200):
        X = inputs.heterogeneous(13, 6, seed)
        distances = gram_distances(X).sort(dim=1).values[:, 1:9]
        scores = (distances ** (power / 2)).sum(dim=1)
        picked = scores.numpy().argsort(kind="stable")[:3]
        weights = bz.Krum(f=3, m=3, power=power).explain(X).weights
        assert set(weights.nonzero()[:, 0].tolist()) == set(picked.tolist())


def test_the_sum_of_float32_rows_does_not_lose_a_small_row_to_a_trimmed_huge_one() -> None:
    """Trimming sorts and slices; as sum - largest - smallest the error would be 100 %."""
    X = torch.tensor([[1e8], [1.0], [1.25], [1.5], [-1e8]])
    assert bz.TrimmedMean(f=1)(X) == 1.25
    assert bz.MeaMed(f=2)(X) == 1.25
    assert bz.Median()(X) == 1.25
