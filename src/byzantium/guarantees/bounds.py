r"""Proved bounds on the errors of rules and mixings; docs/guarantees.md has the proofs.

A bound on a rule is a number kappa. It means: of n vectors choose any n - f, with mean :math:`\mu`
and variance :math:`\sigma^2`; whatever the other f are,
:math:`\|\mathrm{out} - \mu\|^2 \le \kappa \sigma^2`. For classes that are not listed here no
bound is known. Register a bound for a rule of your own in the same way::

    @bound.register
    def _(rule: MyRule, n: int, f: int) -> Bound: ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from byzantium import rules
from byzantium.guarantees.measure import lower_bound

Array = NDArray[np.float64]


class Gap(Exception):  # noqa: N818
    """The reason why there is no guarantee."""


@dataclass(frozen=True)
class Bound:
    """A proved bound on the error of a rule: a kappa, and the propositions it follows from.

    - `kappa`: the largest squared error, in units of the honest variance; infinite if the error of
      the rule is unbounded.
    - `propositions`: their numbers in docs/guarantees.md.

    >>> from byzantium import TrimmedMean
    >>> bound(TrimmedMean(f=5), 25, 5)
    Bound(kappa=0.3333333333333333, propositions=(3,))
    """

    kappa: float
    propositions: tuple[int, ...]


@singledispatch
def bound(rule: object, n: int, f: int) -> Bound | None:
    """The bound of a rule for n vectors of which f are Byzantine; None if no bound is known.

    >>> from byzantium import Mean, Median
    >>> bound(Median(), 25, 5).kappa, bound(Mean(), 25, 5).kappa
    (1.5, inf)
    """
    return None


@singledispatch
def mixed(mixing: object, n: int, f: int, following: float) -> Bound | None:
    """The bound of a mixing and what follows it; None if no bound is known.

    - `n`, `f`: how many vectors go into it, and how many of these are Byzantine.
    - `following`: the kappa of what follows the mixing, for the vectors that come out of it.

    >>> from byzantium import NearestNeighborMixing
    >>> mixed(NearestNeighborMixing(f=5), 25, 5, following=1.5).kappa
    5.0
    """
    return None


# -- rules -------------------------------------------------------------------------------------

bound.register(rules.Mean, lambda rule, n, f: Bound(math.inf if f else 0, ()))
bound.register(rules.TrimmedMean, lambda rule, n, f: Bound(lower_bound(n, f), (3,)))
bound.register(rules.Median, lambda rule, n, f: Bound(_of_median(n, f), (4,)))
bound.register(
    rules.MeaMed, lambda rule, n, f: Bound(4 * f / (n - f) * (1 + _of_median(n, f)), (7,))
)
bound.register(
    rules.MinimumDiameter,
    lambda rule, n, f: Bound(_squared_sum(2 * f**2 / (n - f), lower_bound(n, f)), (8,)),
)


@bound.register
def _(rule: rules.GeometricMedian, n: int, f: int) -> Bound | None:
    exact = rule.steps is None and not rule.smoothing
    return Bound(_of_median(n, f), (5,)) if exact else None


@bound.register
def _(rule: rules.Krum, n: int, f: int) -> Bound | None:
    h, g = n - f, n - 2 * f - 1
    scores = 2 * h * (h - 2) / ((h - 1) * g)
    return Bound(_squared_sum(scores, (f + 1) / g), (6,)) if rule.power == 2 else None


@bound.register
def _(rule: rules.Bulyan, n: int, f: int) -> Bound:
    if not f:
        return Bound(0, (9,))
    h, inside = n - f, -(-(n - 2 * f) // 2) - f
    median = (h - inside) / inside
    return Bound(_squared_sum(h / (n - 3 * f) * (1 + median), median), (9,))


@bound.register
def _(rule: rules.AgnosticClipping, n: int, f: int) -> Bound | None:
    kappa = agnostic(n, f, rule.b)
    return Bound(kappa, (2,)) if kappa < math.inf else None


def _of_median(n: int, f: int) -> float:
    return (n // 2) / (-(-n // 2) - f)


def _squared_sum(a: float, b: float) -> float:
    return (math.sqrt(a) + math.sqrt(b)) ** 2


# -- mixings -----------------------------------------------------------------------------------


@mixed.register
def _(mixing: rules.Bucketing, n: int, f: int, following: float) -> Bound | None:
    sizes = mixing.sizes(n).tolist()
    return random_groups(n - f, sorted(sizes)[: len(sizes) - f], following)


@mixed.register
def _(mixing: rules.Resampling, n: int, f: int, following: float) -> Bound | None:
    s = mixing.s
    return random_groups(s * (n - f), [s] * (n - s * f), following)


@mixed.register
def _(mixing: rules.NearestNeighborMixing, n: int, f: int, following: float) -> Bound:
    return Bound(8 * f / (n - f) * (following + 1), (11,))


def random_groups(population: int, sizes: Sequence[int], following: float) -> Bound | None:
    """The bound of averages of random groups and what follows them (Proposition 10).

    - `population`: how many honest vectors there are to draw from.
    - `sizes`: the sizes of the groups that certainly hold only honest vectors.
    - `following`: the kappa of what follows.
    """
    if not sizes:
        return None
    honest, share = len(sizes), sum(1 / size for size in sizes) / len(sizes)
    variance = population / (population - 1) if population > 1 else 0
    spread = variance * share * (honest - 1) / honest
    shift = variance * max(0.0, share / honest - 1 / population)
    return Bound(_squared_sum(following * spread, shift), (10,))


# -- groups with rules of their own -------------------------------------------------------------


class Groups(NamedTuple):
    """Groups of vectors, of which some are good: those with few bad vectors.

    - `sizes`: how many vectors each group has.
    - `f`: how many vectors are bad in all.
    - `threshold`: how many bad vectors a good group has at most.
    - `bad`: how many groups are not good, at most.
    - `inner`: for a size and a number of bad vectors, the kappa of the rule within groups.
    """

    sizes: tuple[int, ...]
    f: int
    threshold: int
    bad: int
    inner: Callable[[int, int], float]

    @property
    def good(self) -> list[tuple[int, int]]:
        """The sizes of good groups, each with every number of bad vectors."""
        most = min(self.threshold, self.f)
        return [(size, b) for size in set(self.sizes) for b in range(most + 1)]


def fixed_groups(groups: Groups, following: float) -> Bound:
    """The bound of groups and what follows them, whatever their members are (Proposition 16).

    - `following`: the kappa of what follows, for the groups' results of which `groups.bad` are bad.
    """
    left = len(groups.sizes) - groups.bad
    honest = sum(groups.sizes) - groups.f
    worst = max((groups.inner(size, b) + 1) / (size - b) for size, b in groups.good)
    return Bound(max(0.0, (following + 1) * honest / left * worst - 1), (16,))


def random_dealt_groups(groups: Groups, following: float) -> Bound:
    """The same for the mean over random members of the groups (Proposition 17)."""
    left = len(groups.sizes) - groups.bad
    honest = sum(groups.sizes) - groups.f
    variance = honest / (honest - 1) if honest > 1 else 0
    most, rest, inverse = min(groups.threshold, groups.f), groups.f, 0.0
    for size in sorted(groups.sizes)[:left]:  # 1 / (size - b) is convex in b
        taken = min(most, rest)
        share = taken / most if most else 0.0
        inverse += (1 - share) / size + share / (size - most)
        rest -= taken
    inverse /= left
    within = max(groups.inner(size, b) * (1 - 1 / (size - b)) for size, b in groups.good)
    between = following * variance * inverse * (left - 1) / left
    shift = variance * max(0.0, inverse / left - 1 / honest)
    root = math.sqrt((following + 1) * variance * within) + math.sqrt(between) + math.sqrt(shift)
    return Bound(root**2, (17,))


def chance_of_more_bad_groups(sizes: Sequence[int], f: int, threshold: int, most: int) -> float:
    """The chance that more than `most` groups are bad, if their members are drawn at random.

    - `sizes`: how many vectors each group has.
    - `f`: how many of all vectors are bad.
    - `threshold`: a group with more bad vectors than this is bad.
    - `most`: how many bad groups are tolerated.

    The counts of bad vectors are hypergeometric. One group after the other, the chances of all
    pairs of bad vectors and bad groups so far are added up: all terms are positive, so that even
    tiny chances have most of their digits.

    >>> round(chance_of_more_bad_groups([2, 2], f=2, threshold=1, most=0), 6)
    0.333333
    """
    n = sum(sizes)
    # chances[k, b]: of k bad groups (the last: more than `most`) that have b bad vectors together.
    # Each group's count is binomial; given that all of them add up to f, counts are hypergeometric.
    chances = np.zeros((most + 2, f + 1))
    chances[0, 0] = 1
    whole = np.zeros(f + 1)
    whole[0] = 1
    for size in sizes:
        counts = _binomial(size, f / n)[: f + 1]
        good, bad = counts.copy(), counts.copy()
        good[threshold + 1 :], bad[: threshold + 1] = 0, 0
        following = np.array([np.convolve(row, good)[: f + 1] for row in chances])
        for k, row in enumerate(chances):
            following[min(k + 1, most + 1)] += np.convolve(row, bad)[: f + 1]
        chances, whole = following, np.convolve(whole, counts)[: f + 1]
    return float(chances[-1, f] / whole[f])


def _binomial(size: int, share: float) -> Array:
    """The chances of 0, 1, ... successes in so many trials."""
    if share in (0, 1):
        return np.eye(size + 1)[round(share) * size]
    logs = [
        math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1)
        + k * math.log(share) + (size - k) * math.log1p(-share)
        for k in range(size + 1)
    ]  # fmt: skip
    return np.exp(logs)


# -- clipping without a radius -----------------------------------------------------------------


def agnostic(n: int, f: int, b: float) -> float:
    """The kappa of `AgnosticClipping(f, b)` (Proposition 2); infinite where the proof gives none.

    Let r = s / sigma, which is in (0, sqrt 2]. Three bounds on the error hold for each r, so their
    minimum holds, too; the kappa is the maximum of this minimum over all r. The first bound falls
    with r and then rises, the other two rise. So the maximum is at the end of the interval, or
    where the falling first bound meets the others, and is computed without a grid.

    >>> [round(agnostic(25, f, 1.25) / lower_bound(25, f), 2) for f in (1, 5, 8, 10, 12)]
    [1.41, 1.6, 2.17, 4.23, 6.89]
    """
    h, majority = n - f, n - 2 * f
    if not f:
        return 0.0
    if majority < 1 or b * b <= f / h:
        return math.inf
    radius = b * h / (2 * math.sqrt(f * majority))  # in units of s

    def first_bound(r: float) -> float:
        """From Proposition 1, for the honest vectors."""
        inside = majority / h - 1 / (2 * radius * r) ** 2
        return 2 * radius * r * (1 - math.sqrt(inside)) if inside >= 0 else math.inf

    # From Proposition 1, for the n - f vectors whose spread is s; in units of s.
    around = 2 * radius * (1 - math.sqrt(majority / h * (1 - f / (b * b * h))))
    inner = (1 + around**2) / (4 * radius)  # the mean length that clipping cuts off these
    cuts = np.arange(f + 1)  # how many of the other vectors are clipped
    share = cuts / h

    def other_bounds(r: float) -> float:
        near = around * r + math.sqrt(f / majority) * (r + 1)
        pushed = (f - cuts) / h * radius * r + inner * r
        # The largest e with e <= pushed + sqrt(share) sqrt(1 + e^2).
        far = (pushed + np.sqrt(share * (pushed**2 + 1 - share))) / (1 - share)
        return min(near, float(far.max()))

    end = math.sqrt(2)
    low, high = 0.0, min(1 / b, end)  # where the first bound falls
    if first_bound(high) > other_bounds(high):  # it is the larger one everywhere, until it rises
        low = high
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if first_bound(middle) > other_bounds(middle) else (low, middle)
    # Up to `high` the others are at most their value there; beyond it the first is at most that
    # value, until it rises; and then no bound is larger than at the end.
    worst = max(other_bounds(high), min(first_bound(end), other_bounds(end)))
    return worst**2
