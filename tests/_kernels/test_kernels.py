"""Networks sort, and kernels do what the formulas say: for all sizes, layouts, processors."""

from __future__ import annotations

import itertools
import math
import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import inputs
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import byzantium as bz
from byzantium._kernels import compiled_passes as compiled
from byzantium._kernels import compiler as machine
from byzantium._kernels import schedule, subset_sums
from byzantium._kernels import torch_passes as plain
from byzantium._kernels.compiler import Processor
from byzantium._kernels.networks import Network, in_order, middle

WIDE = 90_001  # columns that are worth several threads
WIDTHS = (0, 1, 15, 16, 17, 31, 2049)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
EPSILON = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

pytestmark = pytest.mark.usefixtures("two_threads")


# -- networks ----------------------------------------------------------------------------------


def outputs(network: Network, values: tuple[int, ...]) -> list[int]:
    """A network, run by hand."""
    wires: list[int | None] = list(values)
    for part in network.parts:
        local = [wires[wire] for wire in part.wires]
        for a, b in part.pairs:
            x, y = local[a], local[b]
            assert x is not None
            assert y is not None, "a comparator reads what nobody kept"
            local[a], local[b] = min(x, y), max(x, y)
        for wire, wanted, value in zip(part.wires, part.wanted, local, strict=True):
            wires[wire] = value if wanted else None
    found = [value for value in (wires[wire] for wire in network.wires) if value is not None]
    assert len(found) == len(network.wires)
    return found


@pytest.mark.parametrize("most", [2, 5])
@pytest.mark.parametrize("n", range(1, 11))
def test_networks_bring_out_the_wanted_ranks_of_all_zeros_and_ones(n: int, most: int) -> None:
    """The zero-one principle: a network that sorts these sorts everything."""
    for values in itertools.product((0, 1), repeat=n):
        ordered = sorted(values)
        assert outputs(in_order(n, most=most), values) == ordered
        for first in range(n):
            for last in range(first + 1, n + 1):
                network = middle(n, first, last, most)
                assert sorted(outputs(network, values)) == ordered[first:last]


@pytest.mark.parametrize("n", [3, 6, 9])
def test_ranks_that_are_only_summed_need_not_be_in_order(n: int) -> None:
    for summed in itertools.combinations(range(n), n // 2):
        network = in_order(n, summed)
        for values in itertools.product((0, 1), repeat=n):
            found, ordered = outputs(network, values), sorted(values)
            assert all(found[k] == ordered[k] for k in range(n) if k not in summed)
            assert sum(found) == sum(ordered)


@pytest.mark.parametrize("n", [25, 101, 300])
def test_parts_of_networks_are_small_and_few_in_kind(n: int) -> None:
    network = in_order(n, most=24)
    assert all(len(part.wires) <= 24 for part in network.parts)
    assert len({part.pairs for part in network.parts}) < 15  # each kind is to be compiled
    comparators = sum(len(part.pairs) for part in network.parts)
    assert comparators == len(in_order(n).parts)
    assert sum(len(part.wires) == 2 for part in network.parts) < comparators / 2


def test_pruning_leaves_out_what_the_median_does_not_need() -> None:
    assert len(in_order(25).parts) == 138
    assert len(middle(25, 12, 13).parts) == 113
    assert len(middle(25, 5, 20).parts) == 97
    assert len(middle(25, 0, 25).parts) == 0  # the mean needs no order


# -- order statistics --------------------------------------------------------------------------


def expected_mean(X: Array, kept: int, nearest: bool) -> Array:
    """By definition, column by column, rounded once."""
    n, values = len(X), np.sort(X, axis=0)
    low = np.full(X.shape[1], (n - kept) // 2)
    if nearest:
        median = (values[(n - 1) // 2] + values[n // 2]) / 2
        low = (values[kept:] - median < median - values[: n - kept]).sum(axis=0)
    windows = (values[start : start + kept, c].tolist() for c, start in enumerate(low))
    return np.array([float(sum(map(Fraction, window)) / kept) for window in windows])


def central_mean(
    X: Tensor, kept: int, nearest: bool, mixing: Array | None = None, rows: Integers | None = None
) -> tuple[Array, float]:
    """The means, and the largest magnitude of the rows, if it is known."""
    out = torch.full((X.shape[1],), torch.nan, dtype=X.dtype)
    rows = np.arange(len(X)) if rows is None else rows
    peak = compiled.central_mean(X, rows, mixing, kept, nearest, out)
    return out.double().numpy(), peak


def assert_right(X: Tensor, kept: int, nearest: bool) -> None:
    found, peak = central_mean(X, kept, nearest)
    wide = X.double().numpy()
    expected = expected_mean(wide, kept, nearest)
    assert (abs(found - expected) <= EPSILON[X.dtype] / 2 * abs(expected) * 1.001).all()
    assert peak == abs(wide).max(initial=0)


# What makes the kinds of code: the most rows for straight-line code, the most wires of a part.
CODES = {"straight": (80, 24), "parts": (0, 24), "comparators": (0, 2)}


@pytest.fixture(params=CODES)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of code, for inputs of any size."""
    monkeypatch.setattr(compiled, "SMALL", 1)
    set_code(request.param, monkeypatch)


def set_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_STRAIGHT", CODES[kind][0])
    monkeypatch.setattr(compiled, "MOST_PART", CODES[kind][1])


def rules(n: int) -> list[tuple[int, bool]]:
    """The median, trimmed means, the mean, and values nearest the median."""
    middles = {2 - n % 2, n - 2 * (n // 5), n - 2 * (n // 3), n}
    nearest = {n - n // 5, n - n // 3, max(1, n // 4)}
    return [(kept, False) for kept in sorted(middles)] + [(kept, True) for kept in sorted(nearest)]


@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("n", [*range(1, 71), 101, 130, 300])
def test_any_number_of_rows(n: int) -> None:
    """A rule and a dtype for each, or there would be minutes of compiling."""
    kept, nearest = rules(n)[n % len(rules(n))]
    X = inputs.gaussian(n, 33, seed=n)
    assert_right(X.float() if n % 2 else X, kept, nearest)


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("n", [2, 7, 13, 25])
def test_any_rule(n: int, dtype: torch.dtype) -> None:
    X = inputs.gaussian(n, 50).to(dtype)
    for kept, nearest in rules(n):
        assert_right(X, kept, nearest)


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nearest", [False, True])
def test_any_number_of_columns(width: int, dtype: torch.dtype, nearest: bool) -> None:
    assert_right(inputs.gaussian(9, width).to(dtype), 5, nearest)


@DTYPES
@pytest.mark.parametrize("kept", [1, 9, 17])
@pytest.mark.parametrize("nearest", [False, True])
def test_all_kinds_of_code_agree_to_the_bit(
    kept: int, nearest: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = inputs.gaussian(25, 15_007).to(dtype)
    results = []
    for kind in CODES:
        set_code(kind, monkeypatch)
        results.append(central_mean(X, kept, nearest))
    for means, peak in results[1:]:
        assert np.array_equal(means, results[0][0])
        assert peak == results[0][1]


# -- whose values they are ---------------------------------------------------------------------


def expected_shares(X: Array, kept: int, nearest: bool) -> Array:
    """By definition: of a value that several rows have, each has its share of what is central."""
    n, shares = len(X), [Fraction(0)] * len(X)
    for column in X.T.tolist():
        ordered = sorted(column)
        low = (n - kept) // 2
        if nearest:
            median = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
            low = sum(
                b - median < median - a for a, b in zip(ordered, ordered[kept:], strict=False)
            )
        window = ordered[low : low + kept]
        for i, x in enumerate(column):
            shares[i] += Fraction(window.count(x), kept * column.count(x))
    return np.array(list(map(float, shares)))


def shares(X: Tensor, kept: int, nearest: bool, mixing: Array | None = None) -> Array:
    """And the means are what they are without them."""
    out, n = torch.full((X.shape[1],), torch.nan, dtype=X.dtype), len(X)
    found = np.zeros(n if mixing is None else len(mixing))
    peak = compiled.central_mean(X, np.arange(n), mixing, kept, nearest, out, found)
    means, other = central_mean(X, kept, nearest, mixing)
    assert np.array_equal(out.double().numpy(), means)
    assert peak == pytest.approx(other, rel=EPSILON[X.dtype])
    return found


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("n", [1, 2, 7, 25])
def test_the_rows_whose_values_are_central_are_found(n: int, dtype: torch.dtype) -> None:
    """Also where many are equal, as are zeros of two signs."""
    X, different = inputs.gaussian(n, 70).to(dtype), n * 3
    for levels in (different, 2, 1):
        values = X if levels == different else (X * levels / 3).round() * 0.25
        for kept, nearest in rules(n):
            expected = expected_shares(values.double().numpy(), kept, nearest)
            found = shares(values, kept, nearest)
            assert np.allclose(found, expected, rtol=1e-13, atol=1e-13)
            assert found.sum() == pytest.approx(70)


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nearest", [False, True])
def test_mixed_rows_count_as_if_they_had_been_made(
    width: int, dtype: torch.dtype, nearest: bool
) -> None:
    X = (inputs.gaussian(13, width) * 2).round().to(dtype)
    mixing = np.kron(np.eye(6), [0.5, 0.5]) @ np.eye(12, 13)
    made = compiled.mixed(X, np.arange(13), mixing).to(dtype)
    found = shares(X, 2, nearest, mixing)
    assert np.allclose(found, expected_shares(made.double().numpy(), 2, nearest), rtol=1e-13)


@DTYPES
@pytest.mark.usefixtures("code")
def test_rows_may_lie_anywhere_and_some_may_not_take_part(dtype: torch.dtype) -> None:
    everything = torch.full((40, 1000), torch.nan, dtype=dtype)
    X = everything[3:, 17:818]
    rows = np.array([30, 2, 5, 8, 9, 33, 36, 0])
    X[rows] = inputs.gaussian(8, 801).to(dtype)
    found, peak = central_mean(X, 4, False, rows=rows)
    expected, other = central_mean(X[rows], 4, False)
    assert np.array_equal(found, expected)
    assert peak == other
    assert everything[:, :17].isnan().all()
    assert everything[:, 818:].isnan().all()


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nearest", [False, True])
def test_mixed_rows_are_sorted_as_if_they_had_been_made(
    width: int, dtype: torch.dtype, nearest: bool
) -> None:
    X, rows = inputs.gaussian(13, width).to(dtype), np.arange(13)
    mixing = np.random.default_rng(0).dirichlet(np.ones(13), size=9)
    mixing[:, 5] = 0
    mixing /= mixing.sum(axis=1, keepdims=True)
    X[5] = torch.nan  # nobody's share: it is not even read
    made = compiled.mixed(X, rows, mixing).to(dtype)
    found, peak = central_mean(X, 5, nearest, mixing)
    expected, _ = central_mean(made, 5, nearest)
    assert np.array_equal(found, expected)
    assert peak == math.inf  # it is not known


def averages(sizes: list[int], n: int, seed: int = 0) -> Array:
    """The matrix that averages random groups of these sizes."""
    order = iter(np.random.default_rng(seed).permutation(max(n, sum(sizes))) % n)
    mixing = np.zeros((len(sizes), n))
    for i, size in enumerate(sizes):
        for _ in range(size):
            mixing[i, next(order)] += 1 / size
    return mixing


def sums_in_order(X: Tensor, mixing: Array) -> Tensor:
    """Each sum by a loop over its rows, in float64; rounded to the dtype of the rows at the end."""
    wide, made = X.double().numpy(), np.zeros((len(mixing), X.shape[1]))
    for i, shares in enumerate(mixing):
        for j in np.flatnonzero(shares):
            made[i] += shares[j] * wide[j]
    return torch.from_numpy(made).to(X.dtype)


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("sizes", [[2] * 6 + [1], [5, 4, 4], [2] * 13, [13], [1] * 13], ids=str)
def test_sums_of_few_rows_are_sorted_as_if_they_had_been_made(
    sizes: list[int], width: int, dtype: torch.dtype, nearest: bool
) -> None:
    X, mixing = inputs.gaussian(13, width).to(dtype), averages(sizes, 13)
    made = compiled.mixed(X, np.arange(13), mixing).to(dtype)
    if dtype == torch.float32:
        assert torch.equal(made, sums_in_order(X, mixing))
    kept = 2 - len(sizes) % 2 if len(sizes) < 5 else len(sizes) - 4
    found, peak = central_mean(X, kept, nearest, mixing)
    assert np.array_equal(found, central_mean(made, kept, nearest)[0])
    assert peak == pytest.approx(float(X.abs().max()) if width else 0, rel=EPSILON[dtype])
    if width:
        X[3, width // 2] = math.nan
        assert math.isnan(central_mean(X, kept, nearest, mixing)[1])


@DTYPES
@pytest.mark.usefixtures("code")
def test_signed_zeros_and_huge_values_keep_their_place(dtype: torch.dtype) -> None:
    huge = 3e38 if dtype == torch.float32 else 1e150
    values = [-huge, -1.0, -0.0, 0.0, 1.0, huge, -0.0]
    columns = torch.tensor(list(itertools.islice(itertools.permutations(values), 500)), dtype=dtype)
    found, peak = central_mean(columns.T.contiguous(), 1, False)
    assert (found == 0).all()
    assert peak == columns.abs().max()
    found, _ = central_mean(columns.T.contiguous(), 3, False)
    assert (found == 0).all()


@DTYPES
@pytest.mark.usefixtures("code")
@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_wherever_it_is(
    value: float, nearest: bool, dtype: torch.dtype
) -> None:
    for column in (0, 31, 95, 99):
        for kept in (3, 7):
            X = inputs.gaussian(7, 100).to(dtype)
            X[4, column] = value
            X[2, 98] = math.inf  # NaN counts for more, and does not get lost beside it
            _, peak = central_mean(X, kept, nearest)
            assert math.isnan(peak) if math.isnan(value) else peak == math.inf


@pytest.mark.parametrize("rule", [bz.Median(), bz.TrimmedMean(f=2), bz.Mean()], ids=repr)
def test_norms_at_the_limit_are_told_from_those_above_it(rule: bz.Aggregator) -> None:
    """Where the largest number alone does not say it, the norms are computed."""
    X = inputs.gaussian(7, 10_000).float()
    X[3] = 0.99e16  # of norm 0.99e18
    X[2, 5] = 0.99e18
    assert rule.explain(X).rejected == ()
    assert torch.equal(rule(X), rule.explain(X).aggregate)
    X[3] *= 1.02
    assert rule.explain(X).rejected == (3,)
    assert torch.equal(rule(X), rule.explain(X).aggregate)


# -- sums --------------------------------------------------------------------------------------


def combine(X: Tensor, weights: Array, anchors: list[Tensor | None] | None = None) -> Array:
    out = torch.full((X.shape[1],), torch.nan, dtype=X.dtype)
    compiled.combine(X, np.arange(len(X)), anchors or [], weights, out)
    return out.double().numpy()


def assert_rounded_once(found: Array, X: Tensor, weights: Array) -> None:
    """Beside the weighted means in rational numbers; up or down where these lie half-way."""
    shares = [Fraction(w) for w in weights.tolist()]
    for ours, column in zip(found.tolist(), X.T.tolist(), strict=True):
        products = (w * Fraction(x) for w, x in zip(shares, column, strict=True))
        error = abs(Fraction(ours) - sum(products, Fraction(0)) / sum(shares))
        assert error <= Fraction(math.ulp(ours)) * Fraction(500_000_001, 10**9)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 25, 49])
def test_weighted_means_of_float64_are_rounded_but_once(n: int) -> None:
    X = 100 * inputs.gaussian(n, 65)
    for weights in (np.full(n, 1 / n), np.random.default_rng(n).dirichlet(np.ones(n))):
        assert_rounded_once(combine(X, weights), X, weights)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 25, 49])
def test_means_of_order_statistics_of_float64_are_rounded_but_once(n: int) -> None:
    X = 100 * inputs.gaussian(n, 65)
    for kept in (n, n - 2 * (n // 4)):
        assert np.array_equal(
            central_mean(X, kept, False)[0], expected_mean(X.numpy(), kept, False)
        )


def test_the_mean_of_one_four_and_seven_is_four() -> None:
    X = torch.tensor([[1.0], [4.0], [7.0]], dtype=torch.float64)
    assert bz.Mean()(X).item() == 4
    assert bz.TrimmedMean(f=0)(X).item() == 4


@DTYPES
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_over_any_number_of_columns(width: int, dtype: torch.dtype) -> None:
    X, rows = inputs.gaussian(7, width).to(dtype), np.arange(7)
    weights, centre = np.random.default_rng(0).dirichlet(np.ones(9)), inputs.gaussian(1, width)[0]
    anchors = [None, centre.to(dtype)]
    shares, points = weights[[0, 1, 2, 3, 4, 5, 6, 8]], torch.cat([X.double(), centre[None]])
    tolerance = 8 * EPSILON[dtype]
    expected = (torch.from_numpy(shares) @ points.to(dtype).double()).numpy()
    assert np.allclose(combine(X, weights, anchors), expected, rtol=tolerance, atol=tolerance)
    squares = compiled.squared_norms(X, rows)
    assert np.allclose(squares, X.double().square().sum(dim=1), rtol=1e-14, atol=0)
    for given in (rows, rows[:4]):  # of few rows, products are computed by other code
        ours = compiled.gram(X, given, anchors, 3)
        assert np.allclose(ours, plain.gram(X, given, anchors, 3), rtol=1e-12, atol=1e-12)
    moments = [[torch.empty(width, dtype=dtype) for _ in range(2)] for _ in range(2)]
    compiled.moments(X, rows, *moments[0])
    plain.moments(X, rows, *moments[1])
    for found, known in zip(*moments, strict=True):
        assert torch.allclose(found, known, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize("n", [2, 13, 60])
@pytest.mark.parametrize("width", [1, 17, 511, 513, 1300])
def test_products_of_many_rows_are_those_of_few(
    n: int, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any number of threads; and equal rows are at a distance of exactly zero."""
    X, rows = inputs.gaussian(n, width).to(dtype), np.arange(n)
    X[0] = X[n - 1]
    anchors = [None, inputs.gaussian(1, width, seed=5)[0].to(dtype)]
    expected = plain.gram(X, rows, anchors, n // 2)
    monkeypatch.setattr(compiled, "MANY", 1)
    found = compiled.gram(X, rows, anchors, n // 2)
    assert np.allclose(found, expected, rtol=1e-12, atol=1e-12 * width)
    assert np.array_equal(found, found.T)
    assert found.flags.c_contiguous
    assert (found[n // 2] == 0).all()
    assert found[0, 0] + found[n - 1, n - 1] - 2 * found[0, n - 1] == 0
    torch.set_num_threads(1)
    assert np.array_equal(compiled.gram(X, rows, anchors, n // 2), found)


@pytest.mark.parametrize("n", [5, 48, 49, 100])
@pytest.mark.parametrize("d", [1, 31, 65, 2049])
@pytest.mark.parametrize("nearest", [False, True])
def test_averages_of_many_rows_are_those_of_few(
    n: int, d: int, nearest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers, whose sums are exact: so all bits are the same, on any number of threads."""
    generator = np.random.default_rng(n)
    numbers = generator.integers(-999, 999, (n + 1, d))
    X = torch.from_numpy(numbers).float()
    among = generator.random((n - 1, n)) < 0.8
    among[:, 0] = True
    mixing, rows = among / among.sum(axis=1, keepdims=True), np.arange(n + 1)[::-1][:n].copy()
    mixed = torch.from_numpy(among @ numbers[rows] * mixing.max(axis=1)[:, None]).float()
    kept = n - 1 - 2 * (n // 5)
    monkeypatch.setattr(compiled, "MANY", 1)
    monkeypatch.setattr(subset_sums, "saves_work", lambda _: True)
    for count in torch.get_num_threads(), 1:
        torch.set_num_threads(count)
        out, supplied = torch.empty(d), np.zeros(n - 1)
        peak = compiled.central_mean(X, rows, mixing, kept, nearest, out)
        assert np.array_equal(out.double().numpy(), central_mean(mixed, kept, nearest)[0])
        assert peak == X[rows].abs().max()
        explained = torch.empty(d)
        compiled.central_mean(X, rows, mixing, kept, nearest, explained, supplied)
        assert torch.equal(out, explained)
        assert np.allclose(supplied, shares(mixed, kept, nearest))


def test_rows_without_weight_are_not_read() -> None:
    X = inputs.gaussian(5, 100)
    X[[0, 3]] = torch.nan
    weights = np.array([0, 0.25, 0.25, 0, 0.5])
    assert_rounded_once(combine(X, weights), X[[1, 2, 4]], weights[[1, 2, 4]])
    assert (combine(X, np.array([0.0, 0, 0, 0, 0, 1.0]), [None]) == 0).all()


@DTYPES
@pytest.mark.parametrize("parts", [[1, -1, 0], [1, 1, -2], [1, -1, 1, -1, 0, 0, 0]], ids=str)
def test_opposite_rows_cancel_to_the_bit(parts: list[int], dtype: torch.dtype) -> None:
    """Each alone is rounded, and what is left of that is huge beside the others."""
    n = len(parts)
    X = torch.tensor(parts, dtype=dtype)[:, None] * (1e17 * inputs.gaussian(1, 50).to(dtype))
    weights = np.full(n, 1 / n)
    assert (combine(X, weights) == 0).all()
    assert (compiled.mixed(X, np.arange(n), weights[None]) == 0).all()
    assert (central_mean(X, 1, False, weights[None])[0] == 0).all()


def test_a_far_row_of_tiny_weight_costs_the_others_nothing() -> None:
    X = inputs.gaussian(5, 50)
    X[2] *= 1e140
    weights = np.array([0.25, 0.25, 1e-170, 0.25, 0.25])
    assert_rounded_once(combine(X, weights), X, weights)


def test_weights_whose_rest_is_on_the_origin_are_not_divided_by_their_sum() -> None:
    X = torch.ones(2, 3, dtype=torch.float64)
    assert (combine(X, np.array([0.25, 0.25, 0.5]), [None]) == 0.5).all()
    mixing = np.array([[0.25, 0.25]])
    assert (compiled.mixed(X, np.arange(2), mixing) == 0.5).all()


@DTYPES
@pytest.mark.parametrize("n", [*range(1, 18), 24, 25, 26, 50])
def test_inner_products_are_right_symmetric_and_equal_for_equal_rows(
    n: int, dtype: torch.dtype
) -> None:
    X = inputs.gaussian(n, 1100).to(dtype) + 3
    X[n // 2 :: 3] = X[n // 2].clone()
    ours = compiled.gram(X, np.arange(n), [], 0)
    assert np.allclose(ours, plain.gram(X, np.arange(n), [], 0), rtol=1e-11, atol=1e-9)
    assert np.array_equal(ours, ours.T)
    assert len(np.unique(ours[n // 2 :: 3], axis=0)) == 1


@DTYPES
def test_moments_of_equal_rows_are_these_and_zero(dtype: torch.dtype) -> None:
    row = inputs.gaussian(1, 333).to(dtype)
    mean, deviation = (torch.empty(333, dtype=dtype) for _ in range(2))
    for n in (1, 2, 7, 49):
        compiled.moments(row.expand(n, -1), np.arange(n), mean, deviation)
        assert torch.equal(mean, row[0])
        assert (deviation == 0).all()


# -- threads and processors --------------------------------------------------------------------


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_changes_no_bit() -> None:
    X, rows = inputs.gaussian(25, WIDE).float(), np.arange(25)
    weights = np.random.default_rng(0).dirichlet(np.ones(25))
    results: list[list[Array | float]] = []
    for number in (1, 2, 5):
        torch.set_num_threads(number)
        found = [compiled.gram(X, rows, [], 3), compiled.squared_norms(X, rows)]
        results.append([*found, *central_mean(X, 15, False), combine(X, weights)])
    for others in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(others, results[0], strict=True))


def test_four_threads_may_aggregate_at_once() -> None:
    matrices = [inputs.gaussian(13, WIDE, seed=k).float() for k in range(4)]
    rules = (bz.Median(), bz.TrimmedMean(f=2), bz.MeaMed(f=2), bz.GeometricMedian())
    expected = [[rule(X) for rule in rules] for X in matrices]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = pool.map(lambda X: [rule(X) for rule in rules], matrices)
            for ours, theirs in zip(results, expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_four_threads_may_compile_at_once() -> None:
    """What nobody has compiled before: other numbers of rows."""
    matrices = [inputs.gaussian(n, WIDE).float() for n in (27, 29, 31, 33)] * 2
    with ThreadPoolExecutor(8) as pool:
        for X, found in zip(matrices, pool.map(bz.Median(), matrices), strict=True):
            assert torch.equal(found, X.median(dim=0).values)


@DTYPES
@pytest.mark.parametrize("name", ["haswell", "x86-64"])
def test_other_processors_compute_the_same(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with 16 registers of 32 bytes, and those with 16 bytes and no fused product."""
    if platform.machine() not in ("x86_64", "AMD64") or machine.HOST.vector < 64:
        pytest.skip("it takes a processor that can do what these do, and more")
    X, rows = inputs.gaussian(13, 15_007).to(dtype), np.arange(13)
    weights = np.random.default_rng(0).dirichlet(np.ones(13))
    mixing = np.random.default_rng(0).dirichlet(np.ones(13), size=7)

    def everything() -> list[Array]:
        means = [central_mean(X[:, :d], 9, False) for d in (100, 15_007)]
        mixed = [central_mean(X[:, :d], 5, True, mixing) for d in (100, 15_007)]
        return [*(m[0] for m in means + mixed), combine(X, weights)]

    def products() -> list[Array]:
        return [compiled.gram(X, rows[:n], [None], 3) for n in (4, 5, 13)]

    expected, expected_products = everything(), products()
    monkeypatch.setattr(machine, "HOST", Processor(name, "", 32))
    assert all(map(np.array_equal, everything(), expected))
    for found, known in zip(products(), expected_products, strict=True):
        assert np.allclose(found, known, rtol=1e-12, atol=1e-9)


@DTYPES
@pytest.mark.parametrize("d", [1023, 1025, 8 * 1024 - 1, 8 * 1024, 8 * 1024 + 10])
@pytest.mark.parametrize("straight", [True, False])
def test_all_columns_are_in_one_piece_or_another(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, d: int, straight: bool
) -> None:
    """Whatever their number, and whether the last piece is full, or hardly begun."""
    monkeypatch.setattr(schedule, "LEAST", 1)
    monkeypatch.setattr(compiled, "SMALL", 1 if straight else math.inf)
    X, rows = inputs.gaussian(9, d).to(dtype), np.arange(9)
    mixing = np.eye(9)[:7] / 2 + np.eye(9)[2:] / 2
    weights, out = np.linspace(0.01, 0.1, 9), [torch.empty(d, dtype=dtype) for _ in range(4)]
    for matrix, n in ((None, 9), (mixing, 7)):
        shares = np.zeros((2, n))
        for passes, result, share in ((compiled, out[0], shares[0]), (plain, out[1], shares[1])):
            passes.central_mean(X, rows, matrix, n - 2, False, result, share)
        assert torch.allclose(out[0], out[1], rtol=1e-5, atol=1e-6)
        assert np.allclose(shares[0], shares[1])
        compiled.central_mean(X, rows, matrix, n - 2, False, out[2])
        assert torch.equal(out[0], out[2])
    assert np.allclose(compiled.gram(X, rows, [None], 2), plain.gram(X, rows, [None], 2))
    assert np.allclose(compiled.squared_norms(X, rows), plain.squared_norms(X, rows))
    assert torch.allclose(compiled.mixed(X, rows, mixing), plain.mixed(X, rows, mixing))
    compiled.combine(X, rows, [], weights, out[0])
    assert torch.allclose(out[0].double(), torch.from_numpy(weights) @ X.double(), atol=1e-6)
    compiled.moments(X, rows, out[0], out[1])
    plain.moments(X, rows, out[2], out[3])
    assert torch.allclose(out[0], out[2], atol=1e-6)
    assert torch.allclose(out[1], out[3], atol=1e-6)
