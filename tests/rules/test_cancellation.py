"""No f workers pass unmeasured: what a rule measures is what it uses, whatever cancels on the way.

+v and -v in one bucket cancel in the average; were distances composed from those of v and -v alone,
rounding would hide whatever else the two had added. The reference mixes step by step, as our passes
do, and applies the rule to the mixed rows by direct differences.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import reference
import torch
from reference import Array
from references import counted_references
from torch import Tensor

import byzantium as bz
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.mixed_points import MixedPoints
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix

N, F, D = 27, 3, 12
LARGEST = {torch.float32: 1e18, torch.float64: 1e150}
# The part of the honest spread by which a result may differ.
TOLERANCE = 1e-6


# -- the reference -----------------------------------------------------------------------------


def sum_in_order(shares: Sequence[tuple[float, Array]], twice: bool) -> Array:
    """As the passes add: in float64, and float64 itself in twice its precision."""
    high, low = np.zeros((2, len(shares[0][1])))
    for share, row in shares:
        product = share * row
        before, high = high, high + product
        added = high - before
        low = low + ((before - (high - added)) + (product - added))
        low = low + rounded_off(share, row, product)
    excess = math.fsum([share for share, _ in shares] + [-1])
    return high + (low - excess * high) if twice else high


def rounded_off(a: float, b: Array, product: Array) -> Array:
    """What was rounded off a product, exactly (Dekker)."""

    def split(x: Array) -> tuple[Array, Array]:
        high = 134217729.0 * x - (134217729.0 * x - x)
        return high, x - high

    (a1, a2), (b1, b2) = split(np.asarray(a)), split(b)
    return ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def averages(n: int, groups: Sequence[Sequence[int]]) -> Array:
    """The matrix whose rows average groups of rows."""
    return np.array([[list(group).count(k) / len(group) for k in range(n)] for group in groups])


def times(P: Array, X: Array, twice: bool) -> Array:
    return np.array([sum_in_order([(row[k], X[k]) for k in row.nonzero()[0]], twice) for row in P])


def permuted(n: int, s: int, generator: torch.Generator, copies: int = 1) -> list[list[int]]:
    order = [k % n for k in torch.randperm(n * copies, generator=generator).tolist()]
    return [order[k : k + s] for k in range(0, len(order), s)]


def mixed(
    mixing: bz.Mixing, X: Array, generator: torch.Generator, twice: bool
) -> tuple[Array, float]:
    """The mixed rows, and how clear the decisions were."""
    n = len(X)
    if isinstance(mixing, bz.Bucketing):
        return times(averages(n, permuted(n, mixing.size, generator)), X, twice), np.inf
    if isinstance(mixing, bz.Resampling):
        copies = permuted(n, mixing.s, generator, mixing.s)
        return times(averages(n, copies), X, twice), np.inf
    if isinstance(mixing, bz.NearestNeighborMixing):
        squares = [[reference.squared_distance(x, y) for y in X] for x in X]
        order = [sorted(range(n), key=lambda j: (row[j], j)) for row in squares]
        # From far enough away, whom one is nearest to is rounding, and does not matter.
        far = 1e14 * np.median(squares)
        margins = (
            reference.smallest_gap(
                row, reference.swaps(X, nearest[: n - mixing.f], nearest[n - mixing.f :])
            )
            for row, nearest in zip(squares, order, strict=True)
            if np.median(row) <= far
        )
        groups = [nearest[: n - mixing.f] for nearest in order]
        return times(averages(n, groups), X, twice), min(margins)
    assert isinstance(mixing, bz.AdaptiveClipping)
    return reference.adaptive_clipping(X, mixing.f), np.inf


def leftover_force(X: Array, z: Array) -> float:
    """The norm of the smallest subgradient of the sum of distances, in long double."""
    wide, point = X.astype(np.longdouble), z.astype(np.longdouble)
    lengths = np.sqrt(((wide - point) ** 2).sum(axis=1))
    away = lengths > 1e-12 * (np.linalg.norm(z) + np.median(lengths))
    force = ((wide - point)[away] / lengths[away, None]).sum(axis=0)
    return float(np.sqrt((force**2).sum())) - int((~away).sum())


def rules(f: int, radius: float) -> dict[bz.Aggregator, Callable[[Array], reference.Result]]:
    zero = np.zeros(D)
    return {
        bz.Krum(f=f): lambda Y: reference.krum(Y, f),
        bz.Krum(f=f, m=2): lambda Y: reference.krum(Y, f, 2),
        bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"): lambda Y: reference.weiszfeld(
            Y, 8, 0.1, zero
        ),
        bz.CenteredClipping(radius, steps=2): lambda Y: reference.centered_clipping(
            Y, radius, 2, zero
        ),
        bz.Median(): reference.median,
        bz.TrimmedMean(f=f): lambda Y: reference.trimmed_mean(Y, f),
        bz.MinimumDiameter(f=f): lambda Y: reference.minimum_diameter(Y, f),
        bz.SpectralFilter(f=f): lambda Y: reference.spectral_filter(Y, f),
    }


SINGLE: list[tuple[bz.Mixing, ...]] = [
    (bz.Bucketing(s=2),),
    (bz.Bucketing(s=3),),
    (bz.Resampling(s=2),),
    (bz.NearestNeighborMixing(f=F),),
    (bz.AdaptiveClipping(f=F),),
]
CHAINS = SINGLE + [
    first + second
    for first, second in itertools.product(SINGLE, SINGLE)
    if sum(mixing.rows(N) < N for mixing in first + second) < 2
    # Behind resampling more than F rows are bad, and these two are built for F.
    and not (first == SINGLE[2] and second in (SINGLE[3], SINGLE[4]))
]


def bad_rows(mixings: Sequence[bz.Mixing]) -> int:
    """How many rows F attackers spoil at most."""
    copies = [mixing.s for mixing in mixings if isinstance(mixing, bz.Resampling)]
    return F * int(np.prod(copies or [1]))


# -- the attacks -------------------------------------------------------------------------------


def cancelling(dtype: torch.dtype, random: np.random.Generator) -> tuple[Tensor, float]:
    """Honest rows, and groups of attackers whose huge parts cancel, exactly or nearly."""
    honest = random.standard_normal((N - F, D)) + random.choice([0, 1, 1e3])
    size = 10 ** random.uniform(2, np.log10(LARGEST[dtype]) - 0.7)
    direction = random.standard_normal(D) * (random.random(D) < random.choice([0.3, 0.8]))
    huge = size * direction / max(float(np.linalg.norm(direction)), 1e-3)
    parts = {2: [1, -1], 3: [1, 1, -2], 4: [1, -1, 1, -1]}[int(random.choice([2, 3, 4]))]
    shares = np.resize(parts, F) * (1 + random.choice([0, 1e-15, 1e-8]) * random.random(F))
    hidden = 10 ** random.uniform(0, np.log10(size)) * random.standard_normal(D)
    where = random.random(D) < 0.5
    attack = shares[:, None] * huge + np.where(where | (direction == 0), hidden, 0)
    X = torch.from_numpy(np.concatenate([honest, attack])).to(dtype)
    spread = float(np.sqrt(((honest - honest.mean(axis=0)) ** 2).sum(axis=1).mean()))
    return X[torch.from_numpy(random.permutation(N))], spread


def compare(mixings: Sequence[bz.Mixing], dtype: torch.dtype, seed: int) -> int:
    """Against the reference, with every rule; how many comparisons it was."""
    X, spread = cancelling(dtype, np.random.default_rng(seed))
    draws = torch.Generator().manual_seed(seed)
    Y, margin = X.double().numpy(), np.inf
    for k, mixing in enumerate(mixings):
        Y, clear = mixed(mixing, Y, draws, twice=k > 0 or dtype == torch.float64)
        margin = min(margin, clear)
    f = bad_rows(mixings)
    if margin < 1e-5 or len(Y) < 2 * f + 1:
        return 0
    chain = mixings[0]
    for mixing in mixings[1:]:
        chain = chain >> mixing
    compared = 0
    for rule, slow in rules(f, radius=2 * spread).items():
        if len(Y) < rule.min_vectors()[0]:
            continue
        if isinstance(rule, bz.MinimumDiameter) and (len(Y) > 14 or f > 4):
            continue  # the slow reference looks at every subset
        if isinstance(rule, bz.SpectralFilter) and isinstance(
            mixings[-1], bz.NearestNeighborMixing
        ):
            continue  # of rows that are nearly equal it weighs all or all but one down
        expected, margin = slow(Y)
        if margin < 1e-5:
            continue
        result = (chain >> rule)(X, torch.Generator().manual_seed(seed)).double().numpy()
        rounding = 4 * torch.finfo(dtype).eps * np.abs(expected).max()
        if len(mixings) > 1 and rule.knows_weights != "always":
            # Two mixings in one sum round what attackers send otherwise; it stays in the range.
            rounding += 3 * spread
        if isinstance(rule, bz.SpectralFilter):
            # Of attackers that are nearly tied, rounding decides whether one more step is due, and
            # that takes from the honest ones the square of their size over the attackers'.
            rounding += 9 * TOLERANCE * spread
        error = float(np.linalg.norm(result - expected))
        assert error <= TOLERANCE * spread + rounding, (chain >> rule, seed, error)
        compared += 1
    if dtype == torch.float64:
        z = (chain >> bz.GeometricMedian())(X, torch.Generator().manual_seed(seed)).numpy()
        assert leftover_force(Y, z) <= 1e-6 * len(Y), (chain, seed)
        compared += 1
    return compared


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("mixings", SINGLE, ids=repr)
def test_what_cancels_on_the_way_is_measured(
    mixings: tuple[bz.Mixing, ...], dtype: torch.dtype
) -> None:
    assert sum(compare(mixings, dtype, seed) for seed in range(4)) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("mixings", CHAINS, ids=repr)
def test_what_cancels_on_the_way_is_measured_behind_every_chain(
    mixings: tuple[bz.Mixing, ...], dtype: torch.dtype
) -> None:
    compared = sum(compare(mixings, dtype, seed) for seed in range(60))
    assert compared >= 100 or mixings in (SINGLE[1] + SINGLE[2], SINGLE[2] + SINGLE[1])


def test_attackers_that_cancel_in_a_bucket_do_not_pass_unmeasured() -> None:
    """The worst of it: |v| = 1e16 hides 3e6 from every distance that is composed, in float32."""
    pipelines = [
        "Krum(f=5)",
        "GeometricMedian()",
        "GeometricMedian(steps=8, smoothing=0.1)",
        "CenteredClipping(radius=5.0)",
        "MinimumDiameter(f=5)",
        "AdaptiveClipping(f=5) >> Mean()",
        "NearestNeighborMixing(f=5) >> Median()",
        "NearestNeighborMixing(f=5) >> Krum(f=5)",
    ]
    for seed in range(20):
        draws = torch.Generator().manual_seed(seed)
        honest, huge = torch.randn(20, 10, generator=draws), torch.randn(10, generator=draws)
        huge[:2] = 0
        huge *= 1e16 / huge.norm()
        attack = torch.stack([huge, huge, huge, -huge, -huge])
        attack[:, 0] = 3e6
        X = torch.cat([honest, attack])
        for text in pipelines:
            rule = bz.parse(f"Bucketing(s=2) >> {text}")
            result = rule(X, torch.Generator().manual_seed(seed))
            assert isinstance(result, Tensor)
            assert result.norm() < 12, (text, seed)


# -- what it costs -----------------------------------------------------------------------------


def ordinary() -> dict[str, Callable[[Array, np.random.Generator], Array]]:
    """Four rows beside honest ones that are no reason to read anything twice."""

    def far(size: float, together: bool = False) -> Callable[[Array, np.random.Generator], Array]:
        def attack(honest: Array, random: np.random.Generator) -> Array:
            rows = size * random.standard_normal((4, honest.shape[1]))
            return rows[[0] * 4] if together else rows

        return attack

    return {
        "honest": far(1),
        "mimics": lambda honest, random: honest[[3] * 4],
        "inner product": lambda honest, random: np.tile(-2 * honest.mean(axis=0), (4, 1)),
        "a little is enough": lambda honest, random: np.tile(
            honest.mean(axis=0) - 1.5 * honest.std(axis=0), (4, 1)
        ),
        "at 1e2": far(1e2),
        "at 1e7": far(1e7),
        "at 1e12": far(1e12),
        "together at 1e7": far(1e7, together=True),
        "together at 1e12": far(1e12, together=True),
    }


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize(
    "mixing", [bz.Bucketing(s=2), bz.Bucketing(s=3), bz.NearestNeighborMixing(f=5)], ids=repr
)
@pytest.mark.parametrize("attack", ordinary())
def test_ordinary_rounds_read_the_vectors_once(
    attack: str, mixing: bz.Mixing, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = counted_references(monkeypatch)
    for seed in range(10):
        random = np.random.default_rng(seed)
        honest = random.standard_normal((23, 200))
        rows = np.concatenate([honest, ordinary()[attack](honest, random)])
        (mixing >> bz.GeometricMedian())(torch.from_numpy(rows + offset))
    assert len(references) == 10


def test_attackers_that_cancel_cost_one_more_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    references = counted_references(monkeypatch)
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((24, 200)))
    for size in (1e6, 1e9, 1e16, 1e100):
        X[-1] = size * X[3]
        X[-2] = -X[-1]
        references.clear()
        report = (bz.Bucketing(s=12) >> bz.AdaptiveClipping(f=0) >> bz.Mean()).explain(X)
        assert len(references) == 1 + len(report.notes)
        references.clear()
        report = (bz.Resampling(s=3) >> bz.Krum(f=6)).explain(X)
        assert len(references) == 1 + len(report.notes) <= 2


def test_nothing_is_copied_where_mixed_rows_are_measured() -> None:
    """They are made in blocks of columns, the same each time."""
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((10, 70_000)))
    X[1] = -1e30 * X[0]
    X[0] *= 1e30
    halves = np.kron(np.eye(5), np.full((1, 2), 0.5))
    geometry = Geometry.of(SourcePoints(Matrix(X))).mixed(halves)
    expected = [X[2 * k : 2 * k + 2].mean(dim=0) for k in range(5)]
    distances = [[float((a - b).square().sum()) for a in expected] for b in expected]
    assert np.allclose(geometry.squared_distances, distances, rtol=1e-12)
    assert isinstance(geometry.basis, MixedPoints)
    blocks = [block for _, block, _ in geometry.basis.pieces()]
    again = [block for _, block, _ in geometry.basis.pieces()]
    assert all(torch.equal(a, b) for a, b in zip(blocks, again, strict=True))


# -- the geometric median, and half precision ---------------------------------------------------


@pytest.mark.parametrize("size", [1e3, 1e9, 1e14, 1e15, 1e16, 1e18, 1e60, 9e149])
def test_the_geometric_median_is_exact_beside_attackers_of_any_size(size: float) -> None:
    """The sum of distances is flat to rounding there; the gradient that is left must not be."""
    for seed in range(25):
        random = np.random.default_rng(seed)
        n, d = int(random.integers(5, 26)), int(random.integers(2, 30))
        X = random.standard_normal((n, d))
        f = (n - 1) // (2 + seed % 3)
        X[n - f :] *= size / np.linalg.norm(X[n - f :], axis=1, keepdims=True)
        if seed % 4 == 0:
            X[n - f :] = X[-1]
        z = bz.GeometricMedian()(torch.from_numpy(X)).numpy()
        assert leftover_force(X, z) < 1e-6, seed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_does_not_overflow_at_its_limit(dtype: torch.dtype) -> None:
    largest = min(torch.finfo(dtype).max, 1e17)
    for seed in range(5):
        X = torch.randn(N, D, generator=torch.Generator().manual_seed(seed))
        X[:F] = largest * X[:F].sign() / (1 if dtype == torch.float16 else D)
        for mixings in SINGLE:
            for rule in [*rules(bad_rows(mixings), 3.0), bz.GeometricMedian()]:
                if mixings[0].rows(N) < rule.min_vectors()[0]:
                    continue
                result = (mixings[0] >> rule)(X.to(dtype), torch.Generator().manual_seed(seed))
                assert result.isfinite().all()
                assert result.float().norm() < 30, (mixings, rule)
