"""Certification by attack: the largest error of a pipeline that a search for inputs can find."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from byzantium.core import ByzantiumError, cached_property, validated
from byzantium.guarantees import families
from byzantium.guarantees.guarantee import guarantee
from byzantium.guarantees.measure import c_of, lower_bound
from byzantium.guarantees.search import Arrangement, Array, Candidate, Trial, hill_climb
from byzantium.rules import Aggregator
from byzantium.rules.admission import check_sizes

logger = logging.getLogger("byzantium")

Watch = Callable[[int, int, str], None]
Stop = Callable[[], bool]

# A c above this counts as unbounded: one that is bounded for n vectors is at most about n^2.
UNBOUNDED = 1e6
# How many inputs one search tries, and on how many draws of random mixings each.
BUDGET, DRAWS = 10_000, 8
# On how many new draws the worst inputs of a search are compared again, and the worst is measured.
COMPARISON_DRAWS, MEASUREMENT_DRAWS = 64, 512
# The largest share of the budget for known inputs, and for these and random starts together; the
# rest is for improving the worst. Each hill climb gets a CLIMBS-th part of the budget.
KNOWN_SHARE, START_SHARE, CLIMBS = 0.4, 0.7, 20
# How many of the worst inputs are stored; of how many random starts the worst is improved.
MAX_CANDIDATES, STARTS = 8, 24
# Kappas that differ by less than this, relatively, count as equal.
EQUAL = 1e-6
# How many inputs are tried in one call.
BATCH = 32
IMPROVED = ", improved"


@dataclass(frozen=True, eq=False)
class Finding:
    """The input with the largest error that one search found, and this error.

    - `c`: the squared error in the units of the paper (see `Guarantee`). With random mixings it is
      the mean over draws that the search had not seen.
    - `error`: the standard error of this mean; 0 if nothing is random.
    - `rows`: (n, d), the input; its first f rows are Byzantine, unless `how` names others.
    - `how`: a description of the input.
    - `tried`: how many inputs the search tried.

    >>> from byzantium import TrimmedMean
    >>> finding = attack(TrimmedMean(f=1), 5, 1, budget=500)
    >>> finding.how, finding.rows.tolist()
    ('1 of 4 honest at 1, bad at 0', [[0.0], [0.0], [0.0], [0.0], [1.0]])
    """

    c: float
    error: float
    rows: Array
    how: str
    tried: int


@contextmanager
def _log_disabled() -> Iterator[None]:
    """Disable the log: rules log what they reject, and a search tries thousands of inputs."""
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def check(rule: Aggregator, n: int, f: int) -> None:
    """Raise a `ByzantiumError` unless a rule can be tried on n vectors of which f are Byzantine."""
    validated("an attack", "rule", rule, Aggregator)
    if not 1 <= f < n - 1:
        raise ByzantiumError(
            f"an attack needs at least one Byzantine and two honest vectors, got f={f} of n={n}"
        )
    if rule.needs_root:
        raise ByzantiumError(
            f"an attack needs a rule of the vectors alone: the error of {rule!r} depends on the "
            "error of the root gradient, which no search over vectors can know"
        )
    check_sizes(rule.stages, n)


def attack(
    rule: Aggregator,
    n: int,
    f: int,
    *,
    budget: int = BUDGET,
    draws: int = DRAWS,
    seed: int = 0,
    honest: Mapping[str, Array] | None = None,
    watch: Watch = lambda done, total, note: None,
    stop: Stop = lambda: False,
) -> Finding | None:
    """Search for the input on which a rule has the largest error; None if it was stopped.

    - `n`, `f`: how many vectors there are, and how many of them are Byzantine: at least 1, and at
      least two must be honest.
    - `budget`: how many inputs to try. The search ends earlier if one shows that c is unbounded.
    - `draws`: on how many draws of random mixings each input is tried.
    - `seed`: of the search; the same seed gives the same result.
    - `honest`: more families of honest vectors to try, by name; each a matrix of n or more rows.
    - `watch`: called repeatedly as watch(tried, budget, note), for a progress bar.
    - `stop`: called repeatedly; the search ends when it returns True.

    It tries inputs that are known to cause large errors (`guarantees.families`), then random
    clusters in the plane, and improves the worst ones by moving all of their points.

    >>> from byzantium import TrimmedMean
    >>> round(attack(TrimmedMean(f=1), 5, 1, budget=500).c, 3)
    0.625
    """
    check(rule, n, f)
    with _log_disabled():
        search = _Search(Trial(rule, n, f, draws, seed), seed, budget, watch, stop)
        return search.finding() if search.run(honest or {}) else None


class _Search:
    """One search: the worst inputs so far, and the budget."""

    def __init__(self, trial: Trial, seed: int, budget: int, watch: Watch, stop: Stop) -> None:
        self.trial, self.budget, self.watch, self.stop = trial, budget, watch, stop
        self.seed = seed
        self.rng = np.random.default_rng([seed, trial.n, trial.f])
        self.worst: list[Candidate] = []

    def c(self, kappa: float) -> float:
        return c_of(kappa, self.trial.n, self.trial.f)

    def add(self, new: Candidate) -> None:
        """Store an input if it is among the worst, and none of these has an equal kappa."""
        if new.kappa > 0 and not any(abs(1 - o.kappa / new.kappa) < EQUAL for o in self.worst):
            self.worst = sorted([*self.worst, new], key=lambda one: -one.kappa)[:MAX_CANDIDATES]

    @property
    def over(self) -> bool:
        unbounded = bool(self.worst) and self.c(self.worst[0].kappa) > UNBOUNDED
        return unbounded or self.trial.tried >= self.budget or self.stop()

    def report_progress(self) -> None:
        worst = f"c >= {self.c(self.worst[0].kappa):.3g}" if self.worst else ""
        self.watch(min(self.trial.tried, self.budget), self.budget, worst)

    def run(self, honest: Mapping[str, Array]) -> bool:
        """Search; whether it ran to its end, and was not stopped."""
        n, f, rng = self.trial.n, self.trial.f, self.rng
        self.try_inputs([*families.far_inputs(n, f), families.lower_bound_input(n, f)])
        candidates = [*families.two_point_inputs(n, f), *families.attack_inputs(n, f, rng, honest)]
        # Inputs of one shape are tried together, so they stay in order; a random part is omitted.
        some = rng.permutation(len(candidates))[: int(KNOWN_SHARE * self.budget)]
        self.try_inputs(candidates[k] for k in sorted(some))
        for one in list(self.worst[:2]):
            rescaled = families.rescaled_inputs(one.rows, f)
            self.try_inputs((f"{one.how}, {name}", rows) for name, rows in rescaled)
        while not self.over and self.trial.tried < START_SHARE * self.budget:
            self.try_clusters(self.budget // CLIMBS)
        while not self.over:
            for one in list(self.worst[: MAX_CANDIDATES // 2]):
                if not self.over:
                    self.improve(one, self.budget // CLIMBS)
        return not self.stop()

    def try_inputs(self, inputs: Iterable[tuple[str, Array]]) -> None:
        """Try inputs, several of one shape at a time."""
        for _, group in itertools.groupby(inputs, key=lambda one: one[1].shape):
            same_shape = list(group)
            for start in range(0, len(same_shape), BATCH):
                if self.over:
                    return
                batch = same_shape[start : start + BATCH]
                kappas = self.trial.kappas(np.array([rows for _, rows in batch]))
                for (name, rows), kappa in zip(batch, kappas, strict=True):
                    self.add(Candidate(float(kappa), rows, name))
                self.report_progress()

    def try_clusters(self, tries: int) -> None:
        """Improve the worst of some random arrangements of clusters."""
        trial = self.trial
        starts = [Arrangement.clusters(trial.n, trial.f, self.rng) for _ in range(STARTS)]
        values = trial.kappas(np.array([start.rows for start in starts]))
        k = int(values.argmax())
        kappa, end = hill_climb(trial, starts[k], tries, self.rng, float(values[k]))
        self.add(Candidate(kappa, end.rows, f"clusters, beginning at {trial.tried}"))
        self.report_progress()

    def improve(self, one: Candidate, tries: int) -> None:
        """Improve an input by moving each of its points separately."""
        start = Arrangement.free(one.rows)
        kappa, end = hill_climb(self.trial, start, tries, self.rng, one.kappa)
        self.add(Candidate(kappa, end.rows, f"{one.how.removesuffix(IMPROVED)}{IMPROVED}"))
        self.report_progress()

    def finding(self) -> Finding:
        """The worst input, measured by calling the rule as users do, on new draws."""
        if not self.worst:
            raise ByzantiumError(f"{self.trial.rule!r} refused all inputs that were tried")
        trial = self.trial.with_draws(COMPARISON_DRAWS, self.seed + 1_000_003)
        # Others may have seemed worse than the input of the lower bound by luck alone.
        how, rows = families.lower_bound_input(self.trial.n, self.trial.f)
        candidates = [*self.worst, Candidate(0.0, rows, how)]
        worst = max(candidates, key=lambda one: _lower_confidence(trial.kappas_by_draw(one.rows)))
        final = self.trial.with_draws(MEASUREMENT_DRAWS, self.seed + 2_000_003)
        kappas = final.kappas_by_draw(worst.rows)
        kappa, error = float(kappas.mean()), float(kappas.std()) / math.sqrt(len(kappas))
        rows, how = self.trial.arranged(worst.rows), worst.how
        places = np.flatnonzero(self.trial.arranged(np.arange(float(self.trial.n))) < self.trial.f)
        if places[-1] >= self.trial.f:
            how += f"; bad are rows {', '.join(map(str, places.tolist()))}"
        return Finding(self.c(kappa), self.c(error), rows, how, self.trial.tried)


def _lower_confidence(kappas: Array) -> float:
    """The mean minus two standard errors: the largest of several means is partly luck."""
    return float(kappas.mean() - 2 * kappas.std() / math.sqrt(len(kappas)))


def breakdown(rule: Aggregator, n: int, draws: int = 32) -> int | None:
    """The smallest number of Byzantine vectors among n that can move a rule arbitrarily far away.

    - `draws`: on how many draws of random mixings each input is tried.

    It is measured with vectors that are far away. None if not even a majority of Byzantine vectors
    suffices. (Divided by n it is the breakdown point of Donoho and Huber, 1983.)

    >>> from byzantium import GeometricMedian, Mean, TrimmedMean
    >>> [breakdown(rule, 25) for rule in (Mean(), TrimmedMean(f=5), GeometricMedian())]
    [1, 6, 13]
    """
    trial = Trial(rule, n, 1, draws)

    def breaks(f: int) -> bool:
        trial.f = f
        kappas = trial.kappas(np.array([rows for _, rows in families.far_inputs(n, f)]))
        # A rule with a radius may be that far away even if all vectors are honest.
        return bool(kappas.max() > UNBOUNDED * max(1.0, kappas[0]))

    counts = range(1, min(n // 2 + 1, n - 2) + 1)
    with _log_disabled():
        # Bisection: one more Byzantine vector never does less harm, for it could be honest.
        place = bisect.bisect_left(counts, True, key=breaks)
    return counts[place] if place < len(counts) else None


@dataclass(frozen=True)
class Certificate:
    """The results of several searches for the largest error of a pipeline. `print` shows a summary.

    - `findings`: the worst input of each search.
    - `breakdown`: how many Byzantine vectors can move it arbitrarily far away; None if no number
      can.

    >>> from byzantium import TrimmedMean
    >>> certificate = certify(TrimmedMean(f=1), 5, 1, seeds=1, budget=500)
    >>> round(certificate.c, 3), round(certificate.promised, 3), certificate.breakdown
    (0.625, 0.625, 2)
    """

    rule: Aggregator
    n: int
    f: int
    findings: tuple[Finding, ...]
    breakdown: int | None

    @property
    def worst(self) -> Finding:
        """The finding with the largest error."""
        return max(self.findings, key=lambda finding: finding.c)

    @property
    def c(self) -> float:
        """The largest c that was found: the true one is at least as large."""
        return self.worst.c

    @property
    def kappa(self) -> float:
        """The same in units of the honest variance; see `Guarantee`."""
        return self.c / c_of(1, self.n, self.f)

    @property
    def unbounded(self) -> bool:
        """Whether an input was found that shows that the error is unbounded."""
        return self.c > UNBOUNDED

    @property
    def least(self) -> float:
        """The smallest c that any rule can have."""
        return c_of(lower_bound(self.n, self.f), self.n, self.f)

    @cached_property
    def promised(self) -> float | None:
        """The proved upper bound on c; None if no bound is known, or there is none."""
        if 2 * self.f >= self.n:
            return None
        return guarantee(self.rule, self.n, self.f).c

    def entry(self) -> dict[str, Any]:
        """Everything except the inputs, as values for JSON."""
        return {
            "rule": repr(self.rule),
            "n": self.n,
            "f": self.f,
            "c": _short(self.c),
            "error": _short(self.worst.error),
            "unbounded": self.unbounded,
            "found_by": self.worst.how,
            "searches": [_short(finding.c) for finding in self.findings],
            "breakdown": self.breakdown,
            "promised": None if self.promised is None else _short(self.promised),
            "lower_bound": _short(self.least),
        }

    def __str__(self) -> str:
        result, bound = f"found c >= {self.c:.3g}", "no bound is proved"
        result += f" (+- {self.worst.error:.1g})" if self.worst.error else ""
        if self.unbounded:
            result = "the error is unbounded"
        if self.promised is not None:
            bound = f"proved c <= {self.promised:.3g}"
        inputs = sum(finding.tried for finding in self.findings)
        breakdown = "not even a majority of Byzantine vectors moves it arbitrarily far"
        if self.breakdown is not None:
            who = f"{self.breakdown} of {self.n} vectors, if Byzantine,"
            breakdown = f"{who} can move it arbitrarily far"
        return (
            f"{self.rule!r}, {self.f} of {self.n} Byzantine: {result}, {bound}; "
            f"no rule has c < {self.least:.3g}\n"
            f"the worst of {inputs} inputs: {self.worst.how}\n"
            f"{breakdown}"
        )


def _short(number: float) -> float:
    """A number with four digits: further digits are noise."""
    return float(f"{number:.4g}")


def certify(
    rule: Aggregator,
    n: int,
    f: int,
    *,
    seeds: int = 3,
    budget: int = BUDGET,
    draws: int = DRAWS,
    honest: Mapping[str, Array] | None = None,
    watch: Watch = lambda done, total, note: None,
) -> Certificate:
    """Search several times for the largest error of a rule or pipeline; see `attack`.

    - `seeds`: how many searches, each with a seed of its own.

    The other parameters are those of `attack`. It takes seconds to a minute. The result is not a
    proof: the true c may be larger. The same arguments give the same certificate.

    >>> from byzantium import TrimmedMean
    >>> print(certify(TrimmedMean(f=1), 5, 1, seeds=1, budget=500))
    TrimmedMean(f=1), 1 of 5 Byzantine: found c >= 0.625, proved c <= 0.625; no rule has c < 0.625
    the worst of 513 inputs: 1 of 4 honest at 1, bad at 0
    2 of 5 vectors, if Byzantine, can move it arbitrarily far
    """
    findings = []
    for seed in range(seeds):

        def watch_all(done: int, total: int, note: str, before: int = seed * budget) -> None:
            watch(before + done, seeds * total, note)

        limits: dict[str, Any] = {"budget": budget, "draws": draws, "seed": seed}
        finding = attack(rule, n, f, **limits, honest=honest, watch=watch_all)
        assert finding is not None  # nobody stopped it
        findings.append(finding)
    return Certificate(rule, n, f, tuple(findings), breakdown(rule, n))
