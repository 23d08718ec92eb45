"""Vectors whose squares underflow: rules are as right for them as for others."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import inputs
import numpy as np
import pytest
import torch
from members import EVERYTHING, F, N
from torch import Tensor

import byzantium as bz
from byzantium._kernels import torch_passes as plain
from byzantium.guarantees import guarantee
from byzantium.vectors import mixed_points
from byzantium.vectors import points as points_module
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix

EQUIVARIANT = [member for member in EVERYTHING if "scale" not in member.fails]
ROBUST = [
    member
    for member in EQUIVARIANT
    if member.robust and not isinstance(member.rule.stages[0], bz.Resampling)
]
# From where squares are safe to where few bits of each number are left.
EXPONENTS = [449, 500, 540, 565, 700, 1000, 1030, 1060]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def times(X: Tensor, exponent: int) -> Tensor:
    """X 2^exponent, rounded but once, also where that power is no float64."""
    return torch.from_numpy(np.ldexp(X.numpy(), exponent))


def attacked(size: float, exponent: int, d: int = 12, seed: int = 0) -> Tensor:
    """Honest rows of size 1, and F rows that are so many times larger; all times 2^-exponent."""
    X = inputs.gaussian(N, d, seed)
    rows = [0, N // 2][:F]  # the first row is measured first; that of the middle follows in a tie
    X[rows] = times(inputs.gaussian(F, d, seed + 1), 0) * size
    return times(X, -exponent)


@pytest.fixture(params=["compiled", "plain"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        for module in (points_module, mixed_points):
            monkeypatch.setattr(module, "backend", lambda matrix: plain)


def assert_scaled(rule: bz.Aggregator, larger: bz.Aggregator, Y: Tensor, exponent: int) -> None:
    """rule(Y) is larger(Y 2^exponent) 2^-exponent, but for the last bits of tiny numbers."""
    X = times(Y, exponent)
    expected = larger(X, seeded())
    found = times(rule(Y, seeded()), exponent)
    rounded = N * math.ldexp(1, exponent - 1074)
    size = max(float(X.norm(dim=1).median()), float(expected.abs().max()))
    assert float((found - expected).abs().max()) <= 1e-11 * size + rounded, rule


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("size", [1e3, 1e6, 1e12, 1e100])
def test_the_size_of_vectors_does_not_matter(size: float, exponent: int) -> None:
    Y = attacked(size, exponent)
    for member in EQUIVARIANT:
        assert_scaled(member.fresh(), member.fresh(), Y, exponent)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("exponent", [565, 700, 1000, 1030])
@pytest.mark.parametrize("size", [1e90, 1e120, 1e148])
def test_it_does_not_matter_how_far_away_bad_vectors_are(size: float, exponent: int) -> None:
    """So far that no unit has squares for all: only their direction counts."""
    far = attacked(1e120, 0)
    bad = far.norm(dim=1) > 1e100
    Y = times(far, -exponent)
    Y[bad] = far[bad] * 1e-120 / 12 * size
    for member in ROBUST:
        expected = member.fresh()(far, seeded())
        found = times(member.fresh()(Y, seeded()), exponent)
        rounded = N * math.ldexp(1, exponent - 1074)
        assert float((found - expected).abs().max()) <= 1e-9 + rounded, member.rule


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("exponent", [540, 565, 1000])
def test_lengths_that_are_parameters_are_lengths_in_any_unit(exponent: int) -> None:
    def small(length: float) -> float:
        return math.ldexp(length, -exponent)

    rules: list[Callable[[Callable[[float], float]], bz.Aggregator]] = [
        lambda of: bz.CenteredClipping(radius=of(3.0), steps=3),
        lambda of: bz.GeometricMedian(steps=8, smoothing=of(0.5), start="zero"),
        lambda of: bz.GeometricMedian(steps=8, smoothing=of(0.5)),
        lambda of: bz.GeometricMedian(smoothing=of(2.0)),
        lambda of: bz.Clipping(radius=of(3.0)) >> bz.Krum(f=F),
        lambda of: bz.Clipping(radius=of(3.0)) >> bz.Median(),
    ]
    for rule in rules:
        tiny, usual = rule(small), rule(float)
        for size in (1e3, 1e6, 1e100):  # a centre is remembered from call to call
            assert_scaled(tiny, usual, attacked(size, exponent), exponent)


def test_a_length_far_above_all_distances_gives_the_mean() -> None:
    for exponent in (565, 1000, 1060):
        Y = attacked(1e6, exponent)
        for rule in (bz.GeometricMedian(smoothing=1e9), bz.GeometricMedian(steps=3, smoothing=0.1)):
            assert torch.allclose(times(rule(Y), exponent), times(Y, exponent).mean(dim=0))


def promising() -> Iterator[bz.Aggregator]:
    """Every pipeline of ours that promises something, whatever it draws."""
    for member in EVERYTHING:
        random = isinstance(member.rule.stages[0], bz.Bucketing | bz.Resampling)
        if not random and (guarantee(member.rule, N, F).kappa or math.inf) < math.inf:
            yield member.fresh()


def kappa_of(rule: bz.Aggregator, Y: Tensor, honest: list[int], exponent: int) -> float:
    """|out - mu|^2 / sigma^2, in numbers whose squares do not underflow; in the last 12 columns."""
    out, X = times(rule(Y, seeded())[-12:], exponent), times(Y[honest, -12:], exponent)
    mean = X.mean(dim=0)
    return float((out - mean).square().sum() / (X - mean).square().sum(dim=1).mean())


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("exponent", [500, 538, 565, 700, 1000, 1030])
@pytest.mark.parametrize("common", [False, True], ids=["alone", "beside a common part"])
def test_what_is_proved_holds(common: bool, exponent: int) -> None:
    """Also where one attacker is near and the other is as far away as can be."""
    rules = list(promising())
    assert len(rules) >= 10
    bad = [0, N // 2]
    honest = [i for i in range(N) if i not in bad]
    for near in (1e3, 1e6, 1e12, 1e100):
        for far in (None, 1e149):
            Y = attacked(near, exponent)
            if far is not None:
                Y[bad[1]] = far * inputs.gaussian(1, 12, 5)[0] / 12
            if common:  # equal to the bit in the honest rows
                Y = torch.cat([torch.ones(N, 2, dtype=Y.dtype), Y], dim=1)
                Y[bad[1], :2] = torch.tensor([-1.0, 1.0])
            for rule in rules:
                promise = guarantee(rule, N, F).kappa
                assert promise is not None
                assert kappa_of(rule, Y, honest, min(exponent, 1000)) <= promise + 1e-6, rule


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("spread", [1e-20, 1e-35])
def test_what_is_proved_holds_beside_a_common_part_equal_to_the_bit(
    spread: float, dtype: torch.dtype
) -> None:
    """Seen from an attacker at the other side, honest rows and those near them are equal."""
    X = torch.ones(N, 40, dtype=torch.float64)
    X[:, 1:] = spread * inputs.gaussian(N, 39)
    X[0, 1:] = 1e3 * spread
    X[N // 2] = 0
    X[N // 2, 0] = -1  # the norm of all others: their median is the first reference
    honest = [i for i in range(1, N) if i != N // 2]
    for rule in promising():
        promise = guarantee(rule, N, F).kappa
        assert promise is not None
        # The common part is the same in the result, and not compared.
        out = rule(X.to(dtype), seeded()).double()[1:] / spread
        rows = X.to(dtype).double()[honest, 1:] / spread
        variance = float((rows - rows.mean(dim=0)).square().sum(dim=1).mean())
        error = float((out - rows.mean(dim=0)).square().sum())
        assert error <= (promise + 1e-6) * variance, rule


@pytest.mark.parametrize(("d", "seed"), [(3, 19), (5, 8), (1, 0), (12, 0)])
def test_the_geometric_median_has_weights_at_1e_162(d: int, seed: int) -> None:
    X = 1e-162 * inputs.gaussian(25, d, seed)
    X[-5:] *= 1e6
    assert_scaled(bz.GeometricMedian(), bz.GeometricMedian(), X, 538)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("size", [1e6, 1e100, 1e290])
def test_a_report_explains_the_aggregate(size: float) -> None:
    Y = attacked(size, 700)
    for member in EVERYTHING:
        report = member.fresh().explain(Y, seeded())
        assert float(report.weights.sum()) + report.remainder == pytest.approx(1)
        assert torch.equal(report.aggregate, member.fresh()(Y, seeded()))
        if isinstance(member.rule.stages[-1], bz.Weighting):
            combined = (report.weights[:, None] * times(Y, 700)).sum(dim=0)
            found = times(report.aggregate, 700)
            assert torch.allclose(found, combined, rtol=1e-9, atol=1e-9), member.rule


@pytest.mark.usefixtures("passes")
def test_unusable_rows_are_set_aside_among_tiny_ones() -> None:
    """Then norms are known, and their squares have underflowed."""
    for member in EQUIVARIANT:
        usual = attacked(1e3, 0)
        usual[0] = torch.nan
        tiny = times(usual, -700)
        expected = member.fresh().explain(usual, seeded())
        found = member.fresh().explain(tiny, seeded())
        assert found.rejected == expected.rejected == (0,)
        close = torch.allclose(times(found.aggregate, 700), expected.aggregate, rtol=1e-11)
        assert close, member.rule


@pytest.mark.usefixtures("passes")
def test_few_attackers_cannot_make_a_unit_that_harms_others() -> None:
    """They sit on an honest row, or next to it: half of the rows and one are almost equal."""
    for near in (0.0, 5e-324, 1e-310, 1e-200):
        X = inputs.gaussian(5, 6)
        honest, X[:2] = X[2:], X[2] + near
        mean = honest.mean(dim=0)
        variance = float((honest - mean).square().sum(dim=1).mean())
        for rule in (bz.GeometricMedian(), bz.AgnosticClipping(f=2), bz.MinimumDiameter(f=2)):
            error = float((rule(X) - mean).square().sum())
            promise = guarantee(rule, 5, 2).kappa
            assert promise is not None
            assert error <= (promise + 1e-9) * variance


@pytest.mark.parametrize("other", [0.0, 5e-324, 1e-310])
def test_one_attacker_among_idle_workers_silences_nobody(other: float) -> None:
    """Half of the workers have nothing to say; with the attacker they are a majority of tiny rows.

    Clipping has no f, but promises something for a tenth of bad vectors: the others must count.
    """
    X = inputs.gaussian(N, 6)
    X[1 : N // 2 + 1] = 0
    X[0] = 0
    expected = bz.CenteredClipping(radius=1)(X)
    assert float(expected.norm()) > 0.1
    X[0, 3] = other
    assert torch.allclose(bz.CenteredClipping(radius=1)(X), expected, rtol=1e-12)


def test_no_power_of_krum_takes_a_tiny_distance_for_none() -> None:
    for size in (1e-40, 1e-90, 1e-120, 1e-170):
        for power in (2, 4, 8, 1000):
            X = torch.zeros(9, 2, dtype=torch.float64)
            X[:2, 1] = size * torch.tensor([1.0, 2.0], dtype=X.dtype)
            weights = bz.Krum(f=2, m=4, power=power).explain(X).weights
            assert (weights[:2] == 0).all(), (size, power)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("size", [1e-170, 1e-250, 1e-300, 1e-315])
@pytest.mark.parametrize("far", [0.0, 1.0, 1e149])
def test_a_majority_of_equal_rows_is_told_from_others_near_it(far: float, size: float) -> None:
    """Rows that seem equal to it would take its place, because they come first."""
    X = torch.zeros(9, 3, dtype=torch.float64)
    X[:2, 1] = size * torch.tensor([1.0, 2.0], dtype=X.dtype)
    X[2, 2] = far
    for rule in (bz.Krum(f=3), bz.GeometricMedian(), bz.AgnosticClipping(f=3)):
        assert torch.equal(rule(X), X[5]), rule


def test_equal_rows_are_the_result_whatever_one_attacker_is() -> None:
    for row in (0.0, 1.0, 1e-170, 5e-324, 1e149):
        for bad in (0.0, 1.0, 1e-170, 5e-324, 1e149):
            X = torch.full((9, 3), row, dtype=torch.float64)
            X[4, 1] = bad
            for rule in (bz.Krum(f=1), bz.GeometricMedian(), bz.MinimumDiameter(f=1)):
                # Of the smallest numbers, each product with a weight is rounded.
                assert float((rule(X) - X[0]).abs().max()) <= 9 * 5e-324, (rule, row, bad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_smallest_numbers_of_other_dtypes_need_no_other_unit(dtype: torch.dtype) -> None:
    """Their squares are those of float64."""
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    counts = (8 * inputs.gaussian(N, 12)).round()
    counts[0] *= 100
    X = (counts * smallest).to(dtype)
    assert torch.equal(X.double(), counts * smallest)
    points = SourcePoints(Matrix(X))
    distances = torch.from_numpy(Geometry.of(points).squared_distances) / smallest**2
    truth = torch.stack([(counts - row).square().sum(dim=1) for row in counts])
    assert points.unit == 1
    assert torch.allclose(distances, truth, rtol=1e-12)


def test_other_forms_are_read_in_the_same_unit() -> None:
    Y = attacked(1e6, 600)
    expected = bz.Krum(f=F)(Y)
    rows = [{"a": row[:5].reshape(5, 1).clone(), "b": row[5:].clone()} for row in Y]
    found: dict[str, Any] = bz.Krum(f=F)(rows)
    assert torch.equal(torch.cat([found["a"].reshape(-1), found["b"]]), expected)
    base = torch.zeros(Y.shape[1], dtype=Y.dtype)
    assert torch.equal(bz.Krum(f=F)(list(Y), base=base), expected)
    mixed = bz.NearestNeighborMixing(f=F)
    assert torch.equal(times(mixed(Y), 600), mixed(times(Y, 600)))


def test_weights_follow_from_a_gram_matrix_of_tiny_vectors() -> None:
    X = inputs.gaussian(N, 30)
    X[0] *= 1e3
    for rule in (bz.Krum(f=F), bz.GeometricMedian(), bz.AgnosticClipping(f=F)):
        usual, tiny = rule.weigh(X @ X.T), rule.weigh((X @ X.T) * 2.0**-930)
        assert torch.allclose(usual, tiny, atol=1e-6)


def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each reading of the vectors."""
    seen: list[int] = []
    pieces = Matrix.pieces

    def counted(self: Matrix, rows: Any) -> Any:
        seen.append(len(rows))
        return pieces(self, rows)

    monkeypatch.setattr(Matrix, "pieces", counted)
    return seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("exponent", [0, 60])
def test_usual_vectors_are_read_as_often_as_ever(
    exponent: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to measure, and once to combine; also where half of the rows but one are equal."""
    X = times(inputs.gaussian(N, 30), -exponent).to(dtype)
    X[: N // 2] = X[0].clone()
    seen = readings(monkeypatch)
    for rule in (bz.Krum(f=F), bz.GeometricMedian(), bz.AgnosticClipping(f=F)):
        seen.clear()
        copy.deepcopy(rule)(X)
        assert len(seen) == 2, rule
