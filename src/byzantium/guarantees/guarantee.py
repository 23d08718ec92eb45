"""What a pipeline promises for n vectors of which f are bad, and from what that follows."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from byzantium.aggregation import (
    Aggregator,
    Bucketing,
    GeometricMedian,
    Krum,
    Median,
    Mixing,
    Stage,
    check_sizes,
)
from byzantium.core import ByzantiumError
from byzantium.guarantees.bounds import Bound, bound, drawn, mixed
from byzantium.guarantees.measure import c_of, lower_bound

logger = logging.getLogger("byzantium")

# More vectors than anyone aggregates; some bounds look at each.
MOST = 1_000_000


@dataclass(frozen=True)
class Guarantee:
    """A promise: E |out - mu|^2 <= kappa sigma^2 = c delta rho^2, or why there is none.

    mu, sigma^2 and rho^2 are of the honest vectors, as in `measure`; the expectation is over random
    mixings, which whoever sends the f others does not know in advance.

    pipeline:     the pipeline, and `stages`, its steps as they are for n vectors.
    reaching:     how many vectors reach the rule at its end; at most `bad` of them are bad.
    kappa:        None where nothing is promised.
    propositions: those of docs/guarantees.md from which it follows.
    gap:          why nothing is promised; "" where something is.
    published:    what the paper's appendix has for the same pipeline, if anything.
    """

    pipeline: Aggregator
    stages: tuple[Stage, ...]
    n: int
    f: int
    reaching: int
    bad: int
    kappa: float | None
    propositions: tuple[int, ...]
    gap: str
    published: str = ""

    @property
    def covered(self) -> bool:
        return self.kappa is not None

    @property
    def delta(self) -> float:
        return self.f / self.n

    @property
    def delta_max(self) -> float:
        """The share of bad vectors that the rule at the end must meet less than."""
        rule = self.stages[-1]
        assert isinstance(rule, Aggregator)
        return rule.delta_max

    @property
    def c(self) -> float | None:
        """The paper's c; None where nothing is promised, or nobody is bad."""
        return c_of(self.kappa, self.n, self.f) if self.kappa is not None and self.f else None

    def plateau(self, heterogeneity: float) -> float | None:
        """By Theorem 2, what the squared gradient falls to, up to a factor: c delta zeta^2."""
        return None if self.kappa is None else (self.c or 0) * self.delta * heterogeneity

    @property
    def most_relative(self) -> float | None:
        """1 / (60 c delta): for a B^2 below it, Theorem 4 lets the gradient vanish."""
        if self.kappa is None:
            return None
        return 1 / (60 * self.c * self.delta) if self.c else math.inf

    def __str__(self) -> str:
        rule = self.stages[-1]
        mixings = " >> ".join(map(repr, self.stages[:-1]))
        built = "" if rule.bad is None else f"is built for {rule.bad} and "
        most = Fraction(self.delta_max).limit_denominator(100)
        below = f"stands less than {most} of them" if most else "stands none"
        return "\n".join(
            (
                f"{self.pipeline!r} for {self.n} vectors, {self.f} of them bad: "
                f"delta = {self.delta:.3g}",
                (f"{mixings} leaves {self.reaching} vectors" if mixings else "all vectors reach it")
                + f", at most {self.bad} of them bad; {rule!r} {built}{below}",
                self._promise(),
            )
        )

    def _promise(self) -> str:
        if self.kappa is None:
            return f"not covered: {self.gap}"
        listed = ", ".join(map(str, self.propositions))
        by = f" (docs/guarantees.md, Proposition {listed})" if listed else ""
        if self.c is None:
            return f"covered: squared error <= {self.kappa:.3g} sigma^2{by}"
        least = c_of(lower_bound(self.n, self.f), self.n, self.f)
        also = f"; {self.published}" if self.published else ""
        return (
            f"covered: squared error <= {self.c:.3g} delta rho^2 = {self.kappa:.3g} sigma^2{by}; "
            f"no rule promises less than {least:.3g} delta rho^2{also}"
        )


def guarantee(rule: Aggregator, n: int, f: int) -> Guarantee:
    """What a pipeline promises for n vectors of which f are bad.

    f is the most that may be bad. Where it is said too small, nothing holds: f + 1 vectors far away
    move most rules anywhere. Where it is said too large, a promise gets a little worse.

    >>> from byzantium import Bucketing, Krum, Resampling
    >>> guarantee(Bucketing(s=2) >> Krum(f=5), n=25, f=5).covered
    True
    >>> guarantee(Resampling(s=2) >> Krum(f=5), n=25, f=5).gap
    'Krum(f=5) is built for 5 bad vectors, and may meet 10'
    """
    if not 0 <= 2 * f < n:
        raise ByzantiumError(
            f"f must be less than half of n, or nobody can tell who is honest; got f={f}, n={n}"
        )
    if n > MOST:
        raise ByzantiumError(f"guarantees are for at most {MOST} vectors, got n={n}")
    stages = check_sizes(rule.stages, n)
    reaching, bad = n, f
    for stage in stages[:-1]:
        assert isinstance(stage, Mixing)
        reaching, bad = stage.rows(reaching), stage.spoiled(bad)
    try:
        found, gap = _followed(stages, n, f), ""
    except _Gap as error:
        found, gap = Bound(math.inf, ()), str(error)
    return Guarantee(
        rule,
        stages,
        n,
        f,
        reaching,
        bad,
        None if gap else found.kappa,
        found.propositions,
        gap,
        _published(stages, n, f),
    )


class _Gap(Exception):  # noqa: N818
    """Why a chain of propositions ends."""


def _followed(stages: Sequence[Stage], n: int, f: int) -> Bound:
    """The bound that follows for these steps, from that of the steps behind the first one."""
    stage, *behind = stages
    if stage.bad is not None and stage.bad < f:
        raise _Gap(f"{stage!r} is built for {stage.bad} bad vectors, and may meet {f}")
    if stage.bad is not None and stage.bad > f:  # fewer are bad than it is built for
        built = _followed(stages, n, stage.bad)
        return _joined(drawn(n - f, [1] * (n - stage.bad), built.kappa), built, stage)
    if isinstance(stage, Mixing):
        rest = _followed(behind, stage.rows(n), stage.spoiled(f))
        return _joined(mixed(stage, n, f, rest.kappa), rest, stage)
    assert isinstance(stage, Aggregator)
    if f and f >= stage.delta_max * n:
        most = Fraction(stage.delta_max).limit_denominator(100)
        said = f"less than {most} of them bad" if most else "no bad vectors"
        raise _Gap(f"{stage!r} stands {said}, and may meet {f} of {n}")
    found = bound(stage, n, f)
    if found is None:
        raise _Gap(f"no bound is known for {stage!r}")
    return found


def _joined(found: Bound | None, rest: Bound, stage: Stage) -> Bound:
    if found is None:
        raise _Gap(f"no bound is known behind {stage!r}")
    return Bound(found.kappa, tuple(sorted({*found.propositions, *rest.propositions})))


def _published(stages: Sequence[Stage], n: int, f: int) -> str:
    """The constants of the paper's appendix, for s = delta_max / delta."""
    if len(stages) != 2 or not isinstance(stages[0], Bucketing) or not f:
        return ""
    share, rule = stages[0].size * f / n, stages[1]
    if isinstance(rule, Krum) and share < 1 / 4:
        return f"the paper's appendix has c = {4 / (3 * (1 / 4 - share) * share):.3g}"
    if isinstance(rule, GeometricMedian | Median) and share < 1 / 2:
        printed = 1 / ((1 / 2 - share) * share)
        times_d = " d" if isinstance(rule, Median) else ""
        return (
            f"the paper's appendix prints c = {printed:.3g}{times_d}, and its last step gives "
            f"{printed / (1 / 2 - share):.3g}{times_d}"
        )
    return ""


def reckoned(rule: Aggregator) -> int | None:
    """How many bad vectors a pipeline reckons with: the largest f in it, if there is one."""
    return max((stage.bad for stage in rule.stages if stage.bad is not None), default=None)


_SAID: set[tuple[str, int, int]] = set()


def announce(rule: Aggregator, n: int, f: int | None = None) -> None:
    """Log what a pipeline promises, once in a process; a warning where it does not cover.

    f is the pipeline's own unless it is given; where it has none, there is nothing to say.
    """
    f = reckoned(rule) if f is None else f
    if f is None or (repr(rule), n, f) in _SAID:
        return
    _SAID.add((repr(rule), n, f))
    try:
        promise = guarantee(rule, n, f)
        gap = promise.gap
    except ByzantiumError as error:
        gap = str(error)
    if gap:
        logger.warning("%r for %d vectors, %d of them bad: not covered: %s", rule, n, f, gap)
    else:
        logger.info("%s", promise)
