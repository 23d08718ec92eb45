"""Every rule of the bench in its three forms: ours, straightforward torch, and byzfl."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any

import straightforward as plain
import torch
from torch import Tensor

import byzantium as bz

RADIUS = 100.0
MOST_SUBSETS = 200_000  # more than these and the rivals' minimum diameter would take minutes

Step = Callable[[Any], Any]


@dataclass(frozen=True)
class Part:
    """Functions that make a rule or mixing from the number f of Byzantine vectors."""

    ours: Callable[[int], Any]
    plain: Callable[[int], Step]
    byzfl: Callable[[Any, int], Step] | None = None


class CenterKeeper:
    """Straightforward centered clipping: the result is the next center."""

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.center: Tensor | None = None

    def __call__(self, vectors: list[Tensor]) -> Tensor:
        self.center = plain.centered_clipping(vectors, self.radius, self.center)
        return self.center


WEIGHTINGS = {
    "mean": Part(lambda f: bz.Mean(), lambda f: plain.mean, lambda b, f: b.Average()),
    "krum": Part(bz.Krum, lambda f: partial(plain.krum, f=f), lambda b, f: b.Krum(f)),
    "geometric": Part(
        lambda f: bz.GeometricMedian(),
        lambda f: plain.geometric_median,
        lambda b, f: b.GeometricMedian(),
    ),
    "clipping": Part(
        lambda f: bz.CenteredClipping(RADIUS),
        lambda f: CenterKeeper(RADIUS),
        lambda b, f: b.CenteredClipping(tau=RADIUS),
    ),
    "spectral": Part(
        bz.SpectralFilter,
        lambda f: partial(plain.spectral_filter, f=f),
        lambda b, f: b.CAF(f),
    ),
    "diameter": Part(
        bz.MinimumDiameter,
        lambda f: partial(plain.minimum_diameter, f=f),
        lambda b, f: b.MDA(f),
    ),
}
COORDINATE = {
    "median": Part(lambda f: bz.Median(), lambda f: plain.median, lambda b, f: b.Median()),
    "trimmed": Part(
        bz.TrimmedMean, lambda f: partial(plain.trimmed_mean, f=f), lambda b, f: b.TrMean(f)
    ),
    "meamed": Part(bz.MeaMed, lambda f: partial(plain.meamed, f=f), lambda b, f: b.Meamed(f)),
    "bulyan": Part(bz.Bulyan, lambda f: partial(plain.bulyan, f=f)),
}
MIXINGS = {
    "bucketing": Part(
        lambda f: bz.Bucketing(2),
        lambda f: partial(plain.bucketing, s=2),
        lambda b, f: b.Bucketing(2),
    ),
    "nearest": Part(
        bz.NearestNeighborMixing,
        lambda f: partial(plain.nearest_neighbor_mixing, f=f),
        lambda b, f: b.NNM(f),
    ),
    "adaptive": Part(
        bz.AdaptiveClipping,
        lambda f: partial(plain.adaptive_clipping, f=f),
        lambda b, f: b.ARC(f),
    ),
    "resampling": Part(lambda f: bz.Resampling(2), lambda f: partial(plain.resampling, s=2)),
}
RULES = WEIGHTINGS | COORDINATE
RANDOM = {"bucketing", "resampling"}


@dataclass(frozen=True)
class Entry:
    """A rule, perhaps behind a mixing, for n vectors of which f may be Byzantine."""

    rule: str
    mixing: str | None
    n: int

    @property
    def f(self) -> int:
        return max(1, self.n // 5)

    @property
    def rule_f(self) -> int:
        """How many Byzantine vectors the rule is built for: f, or fewer behind buckets."""
        n = (self.n + 1) // 2 if self.mixing == "bucketing" else self.n
        return max(1, min(self.f, (n - 3) // (4 if self.rule == "bulyan" else 2)))

    @property
    def name(self) -> str:
        return repr(self.ours())

    @property
    def is_weighting(self) -> bool:
        """Whether the result is one weighted sum of the rows."""
        return self.rule in WEIGHTINGS

    @property
    def floor(self) -> str:
        """The minimal work: see `floor_of`."""
        if self.rule == "bulyan":
            return "gram and mean"
        if self.rule in COORDINATE and self.mixing == "nearest":
            return "gram, mixing and mean"
        plain_mean = self.rule == "mean" and self.mixing is None
        return "mean" if plain_mean or self.rule in COORDINATE else "gram"

    @property
    def is_random(self) -> bool:
        return self.mixing in RANDOM

    @property
    def has_rivals(self) -> bool:
        return self.rule != "diameter" or comb(self.n, self.rule_f) <= MOST_SUBSETS

    def matches(self, pattern: str) -> bool:
        return re.search(pattern, self.name, re.IGNORECASE) is not None

    def ours(self) -> Any:
        rule = RULES[self.rule].ours(self.rule_f)
        return rule if self.mixing is None else MIXINGS[self.mixing].ours(self.f) >> rule

    def plain(self) -> Step:
        rule = RULES[self.rule].plain(self.rule_f)
        return rule if self.mixing is None else chain(MIXINGS[self.mixing].plain(self.f), rule)

    def byzfl(self, module: Any) -> Step | None:
        rule = RULES[self.rule].byzfl
        if rule is None:
            return None
        if self.mixing is None:
            return rule(module, self.rule_f)
        mixing = MIXINGS[self.mixing].byzfl
        return mixing and chain(mixing(module, self.f), rule(module, self.rule_f))


def chain(first: Step, then: Step) -> Step:
    return lambda vectors: then(first(vectors))


def entries(n: int, only: str = "") -> list[Entry]:
    """All rules and pipelines of the bench whose names match the pattern `only`."""
    alone = [(None, rule) for rule in RULES]
    bucketed = [("bucketing", rule) for rule in RULES if rule != "mean"]
    mixed = [("nearest", rule) for rule in (*WEIGHTINGS, "trimmed")]
    more = [("adaptive", "mean"), ("resampling", "krum")]
    every = [Entry(rule, mixing, n) for mixing, rule in alone + bucketed + mixed + more]
    return [entry for entry in every if entry.matches(only)]


def floor_of(kind: str, n: int) -> Callable[[Tensor], Tensor]:
    """The minimal work on matrices of n rows.

    - `kind`: the mean; a Gram product and a weighted sum ("gram"); a Gram product and the mean,
      perhaps with the mixed rows between them.
    """
    if kind == "mean":
        return lambda x: x.mean(0)
    weights, mixing = torch.full((n,), 1 / n), torch.full((n, n), 1 / n)

    def gram_and_mean(x: Tensor) -> Tensor:
        x @ x.T
        return (mixing @ x if "mixing" in kind else x).mean(0)

    if kind != "gram":
        return gram_and_mean

    def gram_and_sum(x: Tensor) -> Tensor:
        x @ x.T
        return weights @ x

    return gram_and_sum
