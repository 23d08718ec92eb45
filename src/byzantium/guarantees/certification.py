"""Certification by attack: how far a search can lead a pipeline astray."""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from byzantium.aggregation import Aggregator, check_sizes
from byzantium.core import ByzantiumError, cached_property
from byzantium.guarantees import families
from byzantium.guarantees.guarantee import guarantee
from byzantium.guarantees.measure import c_of, lower_bound
from byzantium.guarantees.search import Arrangement, Array, Found, Trial, climbed

logger = logging.getLogger("byzantium")

Watch = Callable[[int, int, str], None]
Stop = Callable[[], bool]

# A c above this counts as unbounded: what is bounded for n vectors is at most about n^2.
UNBOUNDED = 1e6
# How many inputs one search tries, each on so many draws of random mixings.
BUDGET, DRAWS = 10_000, 8
# On how many fresh draws the best inputs of a search meet again, and the winner is measured.
AGAIN, MEASURED = 64, 512
# The shares of the budget that go at most to known inputs, and to these and random beginnings; the
# rest is for improving the best. And the share of each hill that is climbed.
KNOWN, BEGUN, CLIMBS = 0.4, 0.7, 20
# How many inputs are kept; from how many random beginnings each hill is chosen.
KEPT, BEGINNINGS = 8, 24
# The difference of two kappas, beside one of them, that is none.
SAME = 1e-6
# How many inputs are tried side by side.
TOGETHER = 32
IMPROVED = ", improved"


@dataclass(frozen=True, eq=False)
class Finding:
    """The worst input that one search found.

    c:         how far it leads the rule astray; of random mixings the mean over draws that the
               search did not know.
    error:     the standard error of this mean; 0 where nothing is random.
    rows:      (n, d), the input; its first f rows are bad.
    how:       what made it.
    tried:     how many inputs the search tried.
    """

    c: float
    error: float
    rows: Array
    how: str
    tried: int


@contextmanager
def _silent() -> Iterator[None]:
    """Rules say what they reject or cannot prove; of a thousand attacks nobody wants to hear it."""
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def check(rule: Aggregator, n: int, f: int) -> None:
    """Raise a sentence unless a rule can be tried on n vectors of which f are bad."""
    if not 1 <= f < n - 1:
        raise ByzantiumError(
            f"to attack takes at least one bad and two honest vectors, got f={f} of n={n}"
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
    """Look for the input that hurts a rule most; None where it was stopped.

    First the families of `families`, then clusters in the plane from random beginnings, then all
    points of the best. It ends when `budget` inputs were tried, or one shows that c is unbounded.

    honest: more families of honest vectors, n or more of each.
    """
    check(rule, n, f)
    with _silent():
        search = _Search(Trial(rule, n, f, draws, seed), seed, budget, watch, stop)
        return search.finding() if search.run(honest or {}) else None


class _Search:
    """One search: the best inputs so far, and what is left of the budget."""

    def __init__(self, trial: Trial, seed: int, budget: int, watch: Watch, stop: Stop) -> None:
        self.trial, self.budget, self.watch, self.stop = trial, budget, watch, stop
        self.seed = seed
        self.rng = np.random.default_rng([seed, trial.n, trial.f])
        self.best: list[Found] = []

    def c(self, kappa: float) -> float:
        return c_of(kappa, self.trial.n, self.trial.f)

    def keep(self, found: Found) -> None:
        """Among the best; one that hurts as much as another is no news."""
        if found.kappa > 0 and not any(abs(1 - o.kappa / found.kappa) < SAME for o in self.best):
            self.best = sorted([*self.best, found], key=lambda one: -one.kappa)[:KEPT]

    @property
    def over(self) -> bool:
        unbounded = bool(self.best) and self.c(self.best[0].kappa) > UNBOUNDED
        return unbounded or self.trial.tried >= self.budget or self.stop()

    def tell(self) -> None:
        worst = f"c >= {self.c(self.best[0].kappa):.3g}" if self.best else ""
        self.watch(min(self.trial.tried, self.budget), self.budget, worst)

    def run(self, honest: Mapping[str, Array]) -> bool:
        """Whether it came to its end."""
        n, f, rng = self.trial.n, self.trial.f, self.rng
        self.look([*families.carrying(n, f), families.indistinct(n, f)])
        known = [*families.two_points(n, f), *families.attacked(n, f, rng, honest)]
        # Alike ones side by side can be tried together; which are left out is a matter of chance.
        some = rng.permutation(len(known))[: int(KNOWN * self.budget)]
        self.look(known[k] for k in sorted(some))
        for found in list(self.best[:2]):
            made = families.stretched(found.rows, f)
            self.look((f"{found.how}, {name}", rows) for name, rows in made)
        while not self.over and self.trial.tried < BEGUN * self.budget:
            self.begin(self.budget // CLIMBS)
        while not self.over:
            for found in list(self.best[: KEPT // 2]):
                if not self.over:
                    self.improve(found, self.budget // CLIMBS)
        return not self.stop()

    def look(self, inputs: Iterable[tuple[str, Array]]) -> None:
        """Try inputs, several of one shape at a time."""
        for _, group in itertools.groupby(inputs, key=lambda one: one[1].shape):
            alike = list(group)
            for start in range(0, len(alike), TOGETHER):
                if not self.over:
                    self.judge(alike[start : start + TOGETHER])

    def judge(self, inputs: Sequence[tuple[str, Array]]) -> None:
        kappas = self.trial.kappas(np.array([rows for _, rows in inputs]))
        for (name, rows), kappa in zip(inputs, kappas, strict=True):
            self.keep(Found(float(kappa), rows, name))
        self.tell()

    def begin(self, tries: int) -> None:
        """Improve the best of some random arrangements of clusters."""
        trial = self.trial
        starts = [Arrangement.clusters(trial.n, trial.f, self.rng) for _ in range(BEGINNINGS)]
        values = trial.kappas(np.array([start.rows for start in starts]))
        k = int(values.argmax())
        value, found = climbed(trial, starts[k], tries, self.rng, float(values[k]))
        self.keep(Found(value, found.rows, f"clusters, beginning at {trial.tried}"))
        self.tell()

    def improve(self, found: Found, tries: int) -> None:
        """Move all points of an input, each by itself."""
        start = Arrangement.free(found.rows)
        value, better = climbed(self.trial, start, tries, self.rng, found.kappa)
        self.keep(Found(value, better.rows, f"{found.how.removesuffix(IMPROVED)}{IMPROVED}"))
        self.tell()

    def finding(self) -> Finding:
        """The worst, measured as its users call the rule, on draws that the search did not know."""
        if not self.best:
            raise ByzantiumError(f"{self.trial.rule!r} refused all inputs")
        again = self.trial.fresh(AGAIN, self.seed + 1_000_003)
        # The input of the lower bound may have been outdone by luck alone.
        how, rows = families.indistinct(self.trial.n, self.trial.f)
        best = [*self.best, Found(0.0, rows, how)]
        worst = max(best, key=lambda one: _surely(again.each(one.rows)))
        each = self.trial.fresh(MEASURED, self.seed + 2_000_003).each(worst.rows)
        error = float(each.std()) / math.sqrt(len(each))
        tried = self.trial.tried
        return Finding(self.c(float(each.mean())), self.c(error), worst.rows, worst.how, tried)


def _surely(each: Array) -> float:
    """What a mean is surely not below: the largest of several means is so by luck, too."""
    return float(each.mean() - 2 * each.std() / math.sqrt(len(each)))


def breakdown(rule: Aggregator, n: int, draws: int = 32) -> int | None:
    """The smallest number of bad vectors among n that carries a rule away, as far as far points do.

    None where not even a majority does. (The breakdown point of Donoho and Huber is this over n.)

    >>> from byzantium import GeometricMedian, Mean, TrimmedMean
    >>> [breakdown(rule, 25) for rule in (Mean(), TrimmedMean(f=5), GeometricMedian())]
    [1, 6, 13]
    """
    trial = Trial(rule, n, 1, draws)

    def carried(bad: int) -> bool:
        trial.f = bad
        kappas = trial.kappas(np.array([rows for _, rows in families.carrying(n, bad)]))
        # Where nobody is bad, a rule with a radius may be as far away.
        return bool(kappas.max() > UNBOUNDED * max(1.0, kappas[0]))

    counts = range(1, min(n // 2 + 1, n - 2) + 1)
    with _silent():
        # One more bad vector can do all that it would do if it were honest.
        place = bisect.bisect_left(counts, True, key=carried)
    return counts[place] if place < len(counts) else None


@dataclass(frozen=True)
class Certificate:
    """What attacking a pipeline for n vectors of which f are bad has brought to light.

    findings:  the worst input of each search.
    breakdown: the number of bad vectors that is enough to carry it away; None if none is.
    """

    rule: Aggregator
    n: int
    f: int
    findings: tuple[Finding, ...]
    breakdown: int | None

    @property
    def worst(self) -> Finding:
        return max(self.findings, key=lambda finding: finding.c)

    @property
    def c(self) -> float:
        """The worst c found: the true one is at least as large."""
        return self.worst.c

    @property
    def kappa(self) -> float:
        return self.c / c_of(1, self.n, self.f)

    @property
    def unbounded(self) -> bool:
        return self.c > UNBOUNDED

    @property
    def least(self) -> float:
        """The c below which no rule gets."""
        return c_of(lower_bound(self.n, self.f), self.n, self.f)

    @cached_property
    def promised(self) -> float | None:
        """The c that is proved; None where none is known, or there is none."""
        if 2 * self.f >= self.n:
            return None
        return guarantee(self.rule, self.n, self.f).c

    def entry(self) -> dict[str, Any]:
        """All but the inputs, as JSON has it."""
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
        found = "unbounded" if self.unbounded else f"c >= {self.c:.3g}"
        if self.worst.error and not self.unbounded:
            found += f" (+- {self.worst.error:.1g})"
        tried = sum(finding.tried for finding in self.findings)
        carried = (
            "not even a majority carries it away"
            if self.breakdown is None
            else f"{self.breakdown} of {self.n} carry it away"
        )
        promised = "nothing is" if self.promised is None else f"c <= {self.promised:.3g} is"
        return (
            f"{self.rule!r}, {self.f} of {self.n} bad: {found}, {promised} proved; "
            f"no rule is below {self.least:.3g}\n"
            f"the worst of {tried} tries: {self.worst.how}\n"
            f"{carried}"
        )


def _short(number: float) -> float:
    """With four digits: what differs beyond them is chance."""
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
    """Attack a rule or pipeline with several searches, and say what the worst of them found.

    It takes seconds to a minute. What it finds is no proof: the true c may be larger. The same
    arguments give the same certificate. The parameters are those of `attack`.

    >>> from byzantium import TrimmedMean
    >>> print(certify(TrimmedMean(f=1), 5, 1, seeds=1, budget=500))
    TrimmedMean(f=1), 1 of 5 bad: c >= 0.625, c <= 0.625 is proved; no rule is below 0.625
    the worst of 513 tries: 1 of 4 honest at 1, bad at 0
    2 of 5 carry it away
    """
    findings = []
    for seed in range(seeds):

        def shown(done: int, total: int, note: str, before: int = seed * budget) -> None:
            watch(before + done, seeds * total, note)

        finding = attack(
            rule, n, f, budget=budget, draws=draws, seed=seed, honest=honest, watch=shown
        )
        assert finding is not None  # nobody stopped it
        findings.append(finding)
    return Certificate(rule, n, f, tuple(findings), breakdown(rule, n))
