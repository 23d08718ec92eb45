"""The guarantee of a pipeline for n vectors of which f are Byzantine, and its propositions."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from byzantium.core import ByzantiumError, validated
from byzantium.guarantees.bounds import Bound, Gap, bound, mixed, random_groups
from byzantium.guarantees.copies import Copies, check_below_half, copies_of, stages_for_copies
from byzantium.guarantees.groups import bound_of_groups
from byzantium.guarantees.measure import c_of, lower_bound
from byzantium.rules import (
    Aggregator,
    Bucketing,
    GeometricMedian,
    Hierarchy,
    Krum,
    Median,
    Mixing,
    Stage,
)
from byzantium.rules.admission import check_sizes
from byzantium.rules.shares import too_heavy

logger = logging.getLogger("byzantium")

# More vectors than anyone aggregates; the time of some bounds grows with n.
MOST = 1_000_000


@dataclass(frozen=True)
class Guarantee:
    r"""The guarantee of a pipeline: a bound on its error, or the reason why there is none.

    .. math:: E \|\mathrm{out} - \mu\|^2 \le \kappa \sigma^2 = c \delta \rho^2

    :math:`\mu` is the mean of the honest vectors, :math:`\sigma^2` their variance and
    :math:`\rho^2` the mean squared distance of two different ones; :math:`\delta = f/n`. The
    expectation is over random mixings, which the attackers do not know in advance. `print` shows
    all of it in sentences.

    - `pipeline`: the rule or pipeline.
    - `stages`: its stages, with all parameters resolved for n vectors.
    - `n`, `f`: how many vectors there are, and how many of them are Byzantine.
    - `reaching`, `bad`: how many vectors reach the rule at the end, and how many of these may be
      Byzantine.
    - `kappa`: the bound; None if nothing is promised.
    - `propositions`: the propositions of docs/guarantees.md that it follows from.
    - `gap`: why nothing is promised; "" if something is.
    - `promise`: for a rule with root data, what is promised, in words: it depends on the error of
      the root gradient, so that there is no kappa.
    - `published`: what the appendix of the bucketing paper states for the same pipeline; "" if it
      says nothing.
    - `copies`: with weights of the operator, how many equal vectors they stand for, and how many of
      these f vectors can be: the share that they hold is then :math:`\delta`.

    Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan: Fixing by Mixing, AISTATS 2023;
    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    >>> from byzantium import TrimmedMean
    >>> promise = guarantee(TrimmedMean(f=5), n=25, f=5)
    >>> promise.covered, round(promise.kappa, 3), round(promise.c, 3), promise.propositions
    (True, 0.333, 0.792, (3,))
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
    promise: str = ""
    copies: tuple[int, int] | None = None

    @property
    def covered(self) -> bool:
        """Whether anything is promised."""
        return not self.gap

    @property
    def delta(self) -> float:
        """The share of Byzantine vectors, f / n; with weights, of what they hold."""
        number, bad = self._counts
        return bad / number

    @property
    def _counts(self) -> tuple[int, int]:
        """How many vectors there are and are Byzantine, weights as copies."""
        return (self.n, self.f) if self.copies is None else self.copies

    @property
    def delta_max(self) -> float:
        """The rule at the end tolerates a share of Byzantine vectors below this number."""
        rule = self.stages[-1]
        assert isinstance(rule, Aggregator)
        return rule.delta_max

    @property
    def c(self) -> float | None:
        r"""The bound in the paper's units; None if nothing is promised, or f is 0.

        With weights, :math:`\rho^2` is that of two honest vectors drawn by weight,
        :math:`2 \sigma^2`.
        """
        return self._c_of(self.kappa) if self.kappa is not None and self.f else None

    def _c_of(self, kappa: float) -> float:
        return c_of(kappa, self.n, self.f) if self.copies is None else kappa / (2 * self.delta)

    @property
    def largest_heterogeneity(self) -> float:
        """The number that :math:`B^2` must stay below for descent; see `largest_heterogeneity`."""
        if self.kappa is None:
            return 0.0
        # Where kappa is f / (n - 2f), 1 / kappa may be rounded to a number above the limit.
        return min(1 / self.kappa, self.limit_of_any) if self.kappa else math.inf

    @property
    def limit_of_any(self) -> float:
        """The number that :math:`B^2` must stay below for any rule to promise descent."""
        number, bad = self._counts
        return max(0, number - 2 * bad) / bad if bad else math.inf

    def plateau(self, heterogeneity: float) -> float | None:
        r"""The value to which the squared gradient falls, up to a constant factor (Theorem 2).

        It is :math:`c \delta \zeta^2`; `heterogeneity` is :math:`\zeta^2`, how much the gradients
        of honest workers differ. None if nothing is promised.
        """
        return None if self.kappa is None else (self.c or 0) * self.delta * heterogeneity

    @property
    def most_relative(self) -> float | None:
        r"""The bound on :math:`B^2` in Theorem 4, :math:`1 / (60 c \delta)`.

        If honest gradients differ by at most :math:`B^2` times the squared gradient, and that is
        below this number, the gradient vanishes in training. None if nothing is promised.
        """
        if self.kappa is None:
            return None
        return 1 / (60 * self.c * self.delta) if self.c else math.inf

    def __str__(self) -> str:
        rule = self.stages[-1]
        mixings = " >> ".join(map(repr, self.stages[:-1]))
        built = "" if rule.bad is None else f"is built for {rule.bad} Byzantine vectors and "
        most = Fraction(self.delta_max).limit_denominator(100)
        below = f"tolerates less than {most} of all" if most else "tolerates none"
        held = ""
        if self.copies is not None:
            verb = "hold" if self.f > 1 else "holds"
            largest = f"the {self.f} largest" if self.f > 1 else "the largest"
            held = f" ({largest} {verb} {100 * self.delta:.3g} % of the weight)" if self.f else ""
        return "\n".join(
            (
                f"{self.pipeline!r} for {self.n} vectors, {self.f} of them Byzantine{held}: "
                f"delta = {self.delta:.3g}",
                (f"{mixings} leaves {self.reaching} vectors" if mixings else "all reach the rule")
                + f", at most {self.bad} of them Byzantine; {rule!r} {built}{below}",
                self._promise(),
            )
        )

    def _promise(self) -> str:
        if self.promise:
            return f"covered: {self.promise}"
        if self.kappa is None:
            return f"not covered: {self.gap}"
        numbers = ", ".join(map(str, self.propositions))
        plural = "s" * (len(self.propositions) > 1)
        source = f" (docs/guarantees.md, Proposition{plural} {numbers})" if numbers else ""
        if self.c is None:
            return f"covered: squared error <= {self.kappa:.3g} sigma^2{source}"
        least = self._c_of(lower_bound(*self._counts))
        also = f"; {self.published}" if self.published else ""
        return (
            f"covered: squared error <= {self.c:.3g} delta rho^2 = {self.kappa:.3g} sigma^2"
            f"{source}; no rule can promise less than {least:.3g} delta rho^2{also}"
        )


def check_counts(n: int, f: int, rooted: bool = False) -> None:
    """Raise an error unless something could be promised for n vectors of which f are Byzantine.

    - `rooted`: whether a root gradient is known, which tells honest vectors from a majority.
    """
    reached, words = (f, "n") if rooted else (2 * f, "half of n")
    if not 0 <= reached < n:
        raise ByzantiumError(
            f"f must be at least 0 and less than {words}, or nobody can tell who is honest, got "
            f"f={f}, n={n}"
        )
    if n > MOST:
        raise ByzantiumError(f"guarantees are for at most {MOST} vectors, got n={n}")


def guarantee(rule: Aggregator, n: int, f: int, weights: Any = None) -> Guarantee:
    """The guarantee of a pipeline for n vectors of which f are Byzantine.

    - `rule`: the rule or pipeline.
    - `n`: how many vectors there are, at most a million.
    - `f`: how many of them may be Byzantine, at least 0 and less than n / 2 (than n, for a rule
      with a root gradient). If in doubt, choose a larger f: if more than f are Byzantine, nothing
      holds, and f + 1 vectors far away move most rules anywhere; if fewer are, the bound is a
      little larger than necessary.
    - `weights`: n numbers that the operator vouches for, `rule(updates, weights=...)`. The promise
      is then about what the f largest hold of the weight. Vectors of weight 0 are not counted.

    >>> from byzantium import Bucketing, Krum, Resampling
    >>> guarantee(Bucketing(s=2) >> Krum(f=5), n=25, f=5).covered
    True
    >>> guarantee(Resampling(s=2) >> Krum(f=5), n=25, f=5).gap
    'Krum(f=5) is built for 5 Byzantine vectors, but may meet 10'
    >>> from byzantium import TrimmedMean
    >>> round(guarantee(TrimmedMean(f=1), n=4, f=1, weights=[4, 2, 2, 2]).delta, 3)
    0.4
    """
    validated("guarantee", "rule", rule, Aggregator)
    copies = None if weights is None else copies_of(weights, n, f)
    n = n if copies is None else copies.n
    check_counts(n, f, rule.needs_root)
    if copies is not None and copies.vouched is None:  # all weights are equal
        copies = None
    if copies is not None and not rule.needs_root:
        check_below_half(rule.stages[-1], f, copies)
    stages = check_sizes(rule.stages, n, copies and copies.vouched)
    reaching, bad = n, f
    for stage in stages[:-1]:
        assert isinstance(stage, Mixing)
        reaching, bad = stage.rows(reaching), stage.bad_outputs(bad)
    result, gap = Bound(math.inf, ()), ""
    last, promise = stages[-1], ""
    if len(stages) == 1 and (last.bad is None or last.bad >= f):  # with a root gradient
        promise = getattr(last, "promise", "")
    if not promise:
        try:
            if copies is None:
                result = _bound_of(stages, n, f)
            else:
                result = _bound_with_weights(stages, f, copies)
        except Gap as error:
            gap = str(error)
    kappa = None if gap or promise else result.kappa
    published = _published(stages, n, f) if copies is None else ""
    counts = None if copies is None else (copies.number, copies.bad)
    bounds = kappa, result.propositions, gap, published, promise, counts
    return Guarantee(rule, stages, n, f, reaching, bad, *bounds)


def _bound_of(stages: Sequence[Stage], n: int, f: int) -> Bound:
    """The bound of some stages, from the bound of those that follow the first."""
    stage, *following = stages
    if stage.bad is not None and stage.bad < f:
        raise Gap(f"{stage!r} is built for {stage.bad} Byzantine vectors, but may meet {f}")
    if stage.bad is not None and stage.bad > f:
        rest = _bound_of(stages, n, stage.bad)
        return _joint_bound(random_groups(n - f, [1] * (n - stage.bad), rest.kappa), rest, stage)
    if isinstance(stage, Hierarchy):

        def within(size: int, bad: int) -> Bound:
            return _bound_of(check_sizes(stage.inner.stages, size), size, bad)

        return bound_of_groups(
            stage, n, f, within, lambda bad: _bound_of(following, stage.rows(n), bad)
        )
    if isinstance(stage, Mixing):
        rest = _bound_of(following, stage.rows(n), stage.bad_outputs(f))
        return _joint_bound(mixed(stage, n, f, rest.kappa), rest, stage)
    assert isinstance(stage, Aggregator)
    if f and f >= stage.delta_max * n:
        most = Fraction(stage.delta_max).limit_denominator(100)
        limit = f"less than {most} of its vectors Byzantine" if most else "no Byzantine vectors"
        raise Gap(f"{stage!r} tolerates {limit}, but may meet {f} of {n}")
    result = bound(stage, n, f)
    if result is None:
        raise Gap(f"no bound is known for {stage!r}")
    return result


def _bound_with_weights(stages: Sequence[Stage], f: int, copies: Copies) -> Bound:
    """The bound of some stages on weighted vectors: that of their copies (Proposition 15)."""
    *mixings, rule = stages
    assert isinstance(rule, Aggregator)
    assert copies.vouched is not None
    if any(isinstance(mixing, Bucketing) for mixing in mixings):
        raise Gap("no bound is known for buckets of weighted vectors")
    for stage in stages:
        if stage.bad is not None and stage.bad < f:
            raise Gap(f"{stage!r} is built for {stage.bad} Byzantine vectors, but may meet {f}")
    if f and not copies.held < rule.delta_max:
        raise Gap(too_heavy(rule, f, copies.vouched, rule.delta_max))
    result = _bound_of(stages_for_copies(stages, copies), copies.number, copies.bad)
    return Bound(result.kappa, (*result.propositions, 15) if result.propositions else ())


def _joint_bound(first: Bound | None, rest: Bound, stage: Stage) -> Bound:
    if first is None:
        raise Gap(f"no bound is known for {stage!r} and what follows it")
    return Bound(first.kappa, tuple(sorted({*first.propositions, *rest.propositions})))


def _published(stages: Sequence[Stage], n: int, f: int) -> str:
    """What the paper's appendix states for these stages, with s = delta_max / delta."""
    if len(stages) != 2 or not isinstance(stages[0], Bucketing) or not f:
        return ""
    share, rule = stages[0].size * f / n, stages[1]
    if isinstance(rule, Krum) and share < 1 / 4:
        return f"the paper's appendix has c = {4 / (3 * (1 / 4 - share) * share):.3g}"
    if isinstance(rule, GeometricMedian | Median) and share < 1 / 2:
        printed = 1 / ((1 / 2 - share) * share)
        times_d = " d" if isinstance(rule, Median) else ""
        return (
            f"the paper's appendix prints c = {printed:.3g}{times_d}, but its last step gives "
            f"{printed / (1 / 2 - share):.3g}{times_d}"
        )
    return ""


def gap(rule: Aggregator | None, n: int, f: int, weights: Any = None) -> str:
    """The reason why a pipeline has no guarantee for n and f; "" if it has one.

    Unlike `guarantee` it accepts any numbers, and raises nothing.

    - `rule`: the rule or pipeline; None asks for a reason that holds for all rules.

    >>> from byzantium import Krum, Mean
    >>> gap(Krum(f=5), n=25, f=5)
    ''
    >>> gap(Mean(), n=25, f=5)
    'Mean() tolerates no Byzantine vectors, but may meet 5 of 25'
    """
    if 0 < n <= 2 * f and (rule is None or not rule.needs_root):
        return f"{f} of {n} may be Byzantine; if half or more are, nobody can tell who is honest"
    if rule is None:
        return ""
    try:
        return guarantee(rule, n, f, weights).gap
    except ByzantiumError as error:
        return str(error)


# Log lines of this process: rule, n, f and weights; without the rule if the reason holds for all.
_LOGGED: set[tuple[str, int, int, str]] = set()


def announce(
    rule: Aggregator | None,
    n: int,
    f: int | None = None,
    *,
    again: bool = False,
    weights: Any = None,
) -> None:
    """Log the guarantee of a pipeline, once in a process; as a warning if there is none.

    - `rule`: the rule or pipeline; None if it is not known yet: then only a reason that holds for
      all rules is logged.
    - `f`: how many of them may be Byzantine; by default the largest f in the pipeline. If it has
      none, nothing is logged.
    - `again`: log it even if it was logged before.

    >>> from byzantium import Krum
    >>> announce(Krum(f=5), n=25)
    """
    if f is None and rule is not None:
        f = max((stage.bad for stage in rule.stages if stage.bad is not None), default=None)
    if f is None:
        return
    always = "" if rule is not None and rule.needs_root else gap(None, n, f)
    key = "" if always else repr(rule), n, f, "" if weights is None else repr(list(weights))
    if key in _LOGGED and not again:
        return
    _LOGGED.add(key)
    if always:
        logger.warning("no guarantee: %s", always)
    elif rule is not None:
        if reason := gap(rule, n, f, weights):
            sentence = "no guarantee: %r for %d vectors, %d of them Byzantine: %s"
            logger.warning(sentence, rule, n, f, reason)
        else:
            logger.info("%s", guarantee(rule, n, f, weights))
