"""What a pipeline promises for n vectors of which f are bad, and which proofs that follows from."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from byzantium.core import ByzantiumError, validated
from byzantium.guarantees.bounds import Bound, bound, drawn, mixed
from byzantium.guarantees.measure import c_of, lower_bound
from byzantium.rules import Aggregator, Bucketing, GeometricMedian, Krum, Median, Mixing, Stage
from byzantium.rules.admission import check_sizes

logger = logging.getLogger("byzantium")

# More vectors than anyone aggregates; the time of some bounds grows with n.
MOST = 1_000_000


@dataclass(frozen=True)
class Guarantee:
    r"""What a pipeline promises: a bound on its error, or the reason why there is none.

    .. math:: E \|\mathrm{out} - \mu\|^2 \le \kappa \sigma^2 = c \delta \rho^2

    :math:`\mu` is the mean of the honest vectors, :math:`\sigma^2` their variance and
    :math:`\rho^2` the mean squared distance of two different ones; :math:`\delta = f/n`. The
    expectation is over random mixings, which the attackers do not know in advance. `print` shows
    all of it in sentences.

    - `pipeline`: the rule or pipeline.
    - `stages`: its steps, with all parameters known for n vectors.
    - `n`, `f`: how many vectors there are, and how many of them are bad.
    - `reaching`, `bad`: how many vectors reach the rule at the end, and how many of these may be
      bad.
    - `kappa`: the bound; None if nothing is promised.
    - `propositions`: the propositions of docs/guarantees.md that it follows from.
    - `gap`: why nothing is promised; "" if something is.
    - `published`: what the appendix of the bucketing paper states for the same pipeline; "" if it
      says nothing.

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

    @property
    def covered(self) -> bool:
        """Whether anything is promised."""
        return self.kappa is not None

    @property
    def delta(self) -> float:
        """The share of bad vectors, f / n."""
        return self.f / self.n

    @property
    def delta_max(self) -> float:
        """The rule at the end tolerates a share of bad vectors below this number."""
        rule = self.stages[-1]
        assert isinstance(rule, Aggregator)
        return rule.delta_max

    @property
    def c(self) -> float | None:
        """The bound in the paper's units; None if nothing is promised, or f is 0."""
        return c_of(self.kappa, self.n, self.f) if self.kappa is not None and self.f else None

    def plateau(self, heterogeneity: float) -> float | None:
        r"""What the squared gradient falls to in training, up to a constant factor (Theorem 2).

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
        built = "" if rule.bad is None else f"is built for {rule.bad} bad vectors and "
        most = Fraction(self.delta_max).limit_denominator(100)
        below = f"tolerates less than {most} of all" if most else "tolerates none"
        return "\n".join(
            (
                f"{self.pipeline!r} for {self.n} vectors, {self.f} of them bad: "
                f"delta = {self.delta:.3g}",
                (f"{mixings} leaves {self.reaching} vectors" if mixings else "all reach the rule")
                + f", at most {self.bad} of them bad; {rule!r} {built}{below}",
                self._promise(),
            )
        )

    def _promise(self) -> str:
        if self.kappa is None:
            return f"not covered: {self.gap}"
        listed = ", ".join(map(str, self.propositions))
        many = "s" * (len(self.propositions) > 1)
        by = f" (docs/guarantees.md, Proposition{many} {listed})" if listed else ""
        if self.c is None:
            return f"covered: squared error <= {self.kappa:.3g} sigma^2{by}"
        least = c_of(lower_bound(self.n, self.f), self.n, self.f)
        also = f"; {self.published}" if self.published else ""
        return (
            f"covered: squared error <= {self.c:.3g} delta rho^2 = {self.kappa:.3g} sigma^2{by}; "
            f"no rule can promise less than {least:.3g} delta rho^2{also}"
        )


def guarantee(rule: Aggregator, n: int, f: int) -> Guarantee:
    """What a pipeline promises for n vectors of which f are bad.

    - `rule`: the rule or pipeline.
    - `n`: how many vectors there are, at most a million.
    - `f`: how many of them may be bad, at least 0 and less than n / 2. Rather too large than too
      small: if more than f are bad, nothing holds, and f + 1 vectors far away move most rules
      anywhere; if fewer are, the promise is a little worse than it could be.

    >>> from byzantium import Bucketing, Krum, Resampling
    >>> guarantee(Bucketing(s=2) >> Krum(f=5), n=25, f=5).covered
    True
    >>> guarantee(Resampling(s=2) >> Krum(f=5), n=25, f=5).gap
    'Krum(f=5) is built for 5 bad vectors, but may meet 10'
    """
    validated("guarantee", "rule", rule, Aggregator)
    if not 0 <= 2 * f < n:
        raise ByzantiumError(
            f"f must be at least 0 and less than half of n, or nobody can tell who is honest, got "
            f"f={f}, n={n}"
        )
    if n > MOST:
        raise ByzantiumError(f"guarantees are for at most {MOST} vectors, got n={n}")
    stages = check_sizes(rule.stages, n)
    reaching, bad = n, f
    for stage in stages[:-1]:
        assert isinstance(stage, Mixing)
        reaching, bad = stage.rows(reaching), stage.bad_outputs(bad)
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
    """Why nothing is promised."""


def _followed(stages: Sequence[Stage], n: int, f: int) -> Bound:
    """The bound of these steps: that of the first, from the bound of those that follow it."""
    stage, *behind = stages
    if stage.bad is not None and stage.bad < f:
        raise _Gap(f"{stage!r} is built for {stage.bad} bad vectors, but may meet {f}")
    if stage.bad is not None and stage.bad > f:  # fewer are bad than it is built for
        built = _followed(stages, n, stage.bad)
        return _joined(drawn(n - f, [1] * (n - stage.bad), built.kappa), built, stage)
    if isinstance(stage, Mixing):
        rest = _followed(behind, stage.rows(n), stage.bad_outputs(f))
        return _joined(mixed(stage, n, f, rest.kappa), rest, stage)
    assert isinstance(stage, Aggregator)
    if f and f >= stage.delta_max * n:
        most = Fraction(stage.delta_max).limit_denominator(100)
        said = f"less than {most} of its vectors bad" if most else "no bad vectors"
        raise _Gap(f"{stage!r} tolerates {said}, but may meet {f} of {n}")
    found = bound(stage, n, f)
    if found is None:
        raise _Gap(f"no bound is known for {stage!r}")
    return found


def _joined(found: Bound | None, rest: Bound, stage: Stage) -> Bound:
    if found is None:
        raise _Gap(f"no bound is known for {stage!r} and what follows it")
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
            f"the paper's appendix prints c = {printed:.3g}{times_d}, but its last step gives "
            f"{printed / (1 / 2 - share):.3g}{times_d}"
        )
    return ""


def reckoned(rule: Aggregator) -> int | None:
    """How many bad vectors a pipeline expects: the largest f in it; None if it has none."""
    return max((stage.bad for stage in rule.stages if stage.bad is not None), default=None)


def gap(rule: Aggregator | None, n: int, f: int) -> str:
    """Why a pipeline promises nothing for n vectors of which f are bad; "" if there is a promise.

    Unlike `guarantee` it has an answer for any numbers, and raises nothing.

    - `rule`: the rule or pipeline; None asks whether there is a reason that holds for all of them.
    - `n`: how many vectors there are.
    - `f`: how many of them may be bad.

    >>> from byzantium import Krum, Mean
    >>> gap(Krum(f=5), n=25, f=5)
    ''
    >>> gap(Mean(), n=25, f=5)
    'Mean() tolerates no bad vectors, but may meet 5 of 25'
    """
    if 0 < n <= 2 * f:
        return f"{f} of {n} may be bad, and where half or more are, nobody can tell who is honest"
    if rule is None:
        return ""
    try:
        return guarantee(rule, n, f).gap
    except ByzantiumError as error:
        return str(error)


# What was logged: rule, n and f; without the rule where the reason holds for all rules.
_SAID: set[tuple[str, int, int]] = set()


def announce(rule: Aggregator | None, n: int, f: int | None = None, *, again: bool = False) -> None:
    """Log what a pipeline promises, once in a process; as a warning if it promises nothing.

    - `rule`: the rule or pipeline; None if it is not known yet: then only a reason why no rule
      promises anything is logged.
    - `n`: how many vectors it will be given.
    - `f`: how many of them may be bad; by default the largest f in the pipeline. If it has none,
      nothing is logged.
    - `again`: log it even if it was logged before.

    >>> from byzantium import Krum
    >>> announce(Krum(f=5), n=25)
    """
    f = reckoned(rule) if f is None and rule is not None else f
    if f is None:
        return
    always = gap(None, n, f)
    said = "" if always else repr(rule), n, f
    if said in _SAID and not again:
        return
    _SAID.add(said)
    if always:
        logger.warning("no guarantee: %s", always)
    elif rule is not None:
        if why := gap(rule, n, f):
            logger.warning("no guarantee: %r for %d vectors, %d of them bad: %s", rule, n, f, why)
        else:
            logger.info("%s", guarantee(rule, n, f))
