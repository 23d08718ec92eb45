"""The search for the input on which a rule has the largest error.

An input is n rows of which the first f are bad: rules break ties by the lowest index, so ties go to
the attackers. How much an input hurts is its kappa, the squared error in units of the honest
variance, averaged over draws of the random mixings.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.core import ByzantiumError
from byzantium.rules import Aggregator, Mixing, Weighting
from byzantium.rules.admission import check_sizes
from byzantium.vectors import Geometry, Matrix
from byzantium.vectors.points import SourcePoints

Array = NDArray[np.float64]

# Where honest rows differ by less than this (squared, relative to the largest), all is rounding.
LOST = 1e-10
# Rows with larger numbers may be rejected, so that the rule itself must be called.
HUGE = 1e100
# On how many inputs and draws it is tried whether a rule is random, and works by coordinate.
PROBED = 4
# How many variations of an input are tried at a time.
OFFSPRING = 16
# The smallest step of a hill climb, in units of the honest spread.
SMALLEST = 1e-6


def kappas(rows: Array, outs: Array, f: int) -> Array:
    r"""The kappa, :math:`\|\mathrm{out} - \mu\|^2 / \sigma^2`, of results (draws, d) for some rows.

    NaN where rounding hides how much the honest rows differ.
    """
    honest = rows[f:]
    mean = honest.mean(axis=0)
    variance = float(((honest - mean) ** 2).sum(axis=1).mean())
    h = len(honest)
    if not 2 * h / (h - 1) * variance >= LOST * float((honest**2).sum(axis=1).max()) > 0:
        return np.full(len(outs), np.nan)
    squares: Array = ((outs - mean) ** 2).sum(axis=1)
    return squares / variance


def _drawn(draws: int, seed: int) -> list[int]:
    """The seed of each draw."""
    seeds: list[int] = np.random.default_rng(seed).integers(2**62, size=draws).tolist()
    return seeds


class Trial:
    """A rule on trial: its error on inputs, and how many were tried.

    - `draws`: on how many draws of random mixings each input is tried; the same draws for all
      inputs, so that they can be compared. The worst of many inputs may seem so by the luck of
      these draws: `fresh` gives a trial with others.
    - `tried`: how many inputs were tried so far.
    """

    def __init__(self, rule: Aggregator, n: int, f: int, draws: int = 8, seed: int = 0) -> None:
        self.rule = copy.deepcopy(rule)
        self.n, self.f = n, f
        self.tried = 0
        self._steps = [step for stage in check_sizes(rule.stages, n) for step in stage.expansion]
        self._short = isinstance(self._steps[-1], Weighting) and not any(
            step.needs_origin for step in self._steps
        )
        self._generator = torch.Generator()
        self._seeds = _drawn(PROBED, seed)
        probes = np.random.default_rng(0).normal(size=(PROBED, n, 2))
        for k, probe in enumerate(probes):
            probe[k % n] *= 1e3  # another row sticks out of each
        results = np.array([[self._called(p, seed) for p in probes] for seed in self._seeds])
        self.random = not all(np.array_equal(result, results[0]) for result in results)
        # A rule by coordinate gives many inputs their results in one call, side by side.
        beside = np.concatenate(list(probes), axis=1)
        self.by_column = all(
            np.allclose(self._called(beside, seed), result.reshape(-1))
            for seed, result in zip(self._seeds, results, strict=True)
        )
        self._seeds = _drawn(draws if self.random else 1, seed)

    @property
    def draws(self) -> int:
        return len(self._seeds)

    def fresh(self, draws: int, seed: int) -> Trial:
        """The same trial with other draws; they matter only with random mixings."""
        other = copy.copy(self)
        other._seeds = _drawn(draws if self.random else 1, seed)
        return other

    def _called(self, rows: Array, seed: int) -> Array:
        self.rule.reset()
        self._generator.manual_seed(seed)
        result: Array = self.rule(torch.from_numpy(rows), self._generator).numpy()
        return result

    def _weighed(self, rows: Array) -> Array:
        """(draws, d): the same without the checks of a call, and with one Gram matrix for all."""
        *mixings, rule = self._steps
        assert isinstance(rule, Weighting)
        points, results = SourcePoints(Matrix(torch.from_numpy(rows))), []
        for seed in self._seeds:
            self._generator.manual_seed(seed)
            geometry = Geometry.of(points)
            for mixing in mixings:
                assert isinstance(mixing, Mixing)
                geometry = geometry.mixed(mixing.matrix(geometry, self._generator))
            results.append(geometry.combine(rule.weights(geometry)).numpy())
        return np.array(results)

    def kappas(self, inputs: Array) -> Array:
        """(B, n, d) -> (B,): how much each input hurts; minus infinity if it does not count.

        Computed in the fastest way there is; `each` calls the rule as users do.
        """
        self.tried += len(inputs)
        # What may be rejected is for the rule itself to see. (The comparison is false for NaN.)
        usual = [bool(abs(rows).max() < HUGE) for rows in inputs]
        if self.by_column and all(usual):
            found = self._side_by_side(inputs)
        else:
            found = [
                kappas(rows, self._weighed(rows), self.f).mean()
                if self._short and short
                else self.each(rows).mean()
                for rows, short in zip(inputs, usual, strict=True)
            ]
        return np.nan_to_num(np.array(found), nan=-np.inf, posinf=np.inf)

    def _side_by_side(self, inputs: Array) -> list[float]:
        """The kappa of each input, by one call for all."""
        b, n, d = inputs.shape
        beside = np.ascontiguousarray(inputs.transpose(1, 0, 2).reshape(n, b * d))
        outs = np.array([self._called(beside, seed) for seed in self._seeds])
        results = outs.reshape(self.draws, b, d).transpose(1, 0, 2)
        return [kappas(rows, out, self.f).mean() for rows, out in zip(inputs, results, strict=True)]

    def each(self, rows: Array) -> Array:
        """(draws,), the kappa of one input for each; not a number where the rule refuses it."""
        try:
            outs = np.array([self._called(rows, seed) for seed in self._seeds])
        except ByzantiumError:
            return np.array([np.nan])
        return kappas(rows, outs, self.f)


@dataclass(frozen=True)
class Arrangement:
    """Rows that share some places: `rows` is `places[of]`.

    - `places`: (k, d), the places. With k = n and a place for each row it can be any input.
    - `of`: (n,), the index of the place of each row.
    """

    places: Array
    of: NDArray[np.int64]

    @classmethod
    def free(cls, rows: Array) -> Arrangement:
        """Every row at a place of its own."""
        return cls(rows, np.arange(len(rows)))

    @classmethod
    def clusters(cls, n: int, f: int, rng: np.random.Generator) -> Arrangement:
        """Up to four honest and two attacking clusters in the plane, at random."""
        honest, bad = int(rng.integers(1, 5)), int(rng.integers(1, 3))
        shares = rng.dirichlet(np.full(honest, 0.7))
        places = rng.normal(size=(honest + bad, 2)) * 10 ** rng.uniform(-1, 1, (honest + bad, 1))
        if rng.random() < 0.5:
            places[:, 1] = 0
        at = np.empty(n, dtype=np.int64)
        at[f:] = rng.choice(honest, n - f, p=shares)
        at[:f] = rng.integers(honest, honest + bad, f)
        if rng.random() < 0.3:  # the attackers copy one of the honest
            at[:f] = rng.integers(honest)
        return cls(places, at)

    @property
    def rows(self) -> Array:
        return self.places[self.of]

    def varied(self, size: float, rng: np.random.Generator) -> Arrangement:
        """A variation: some places moved by about `size`, and perhaps some rows to other places."""
        (k, d), n = self.places.shape, len(self.of)
        share = rng.choice((1.5 / (k * d), 0.5, 1.0))
        places = self.places + size * rng.normal(size=(k, d)) * (rng.random((k, d)) < share)
        at = self.of
        if rng.random() < 0.25:
            at = at.copy()
            for _ in range(rng.integers(1, 4)):
                at[rng.integers(n)] = rng.integers(k)
        return Arrangement(places, at)


@dataclass(frozen=True)
class Found:
    """An input, how much it hurts, and how it was made."""

    kappa: float
    rows: Array
    how: str


def climbed(
    trial: Trial,
    start: Arrangement,
    tries: int,
    rng: np.random.Generator,
    value: float | None = None,
) -> tuple[float, Arrangement]:
    """Hill climbing: of some variations the one that hurts most is kept, if it hurts more.

    The size of the variations follows the last one that helped, and shrinks while none does.
    """
    best = start
    if value is None:
        value = float(trial.kappas(best.rows[None])[0])
    end, step = trial.tried + tries, 0.5
    while trial.tried < end and step > SMALLEST:
        spread = float(best.rows[trial.f :].std())
        sizes = step * 10 ** rng.uniform(-1, 0.5, OFFSPRING)
        others = [best.varied(spread * size, rng) for size in sizes]
        values = trial.kappas(np.array([other.rows for other in others]))
        k = int(values.argmax())
        if values[k] > value:
            better = values[k] > value * (1 + 1e-4)
            best, value = others[k], float(values[k])
            step = float(sizes[k]) * (2 if better else 1)
        else:
            step *= 0.7
    return value, best
