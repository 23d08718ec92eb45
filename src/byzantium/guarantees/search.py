"""The search for the input on which a rule has the largest error.

An input is n rows of which the first f are Byzantine: rules break ties by the lowest index, so the
attackers win ties. The kappa of an input is the squared error on it, in units of the honest
variance, averaged over draws of the random mixings.
"""

from __future__ import annotations

import copy
import itertools
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

# If honest rows differ by less than this (squared, relative to the largest), it is rounding.
MIN_SPREAD = 1e-10
# Rows with larger numbers may be rejected, so that the rule itself must be called.
HUGE = 1e100
# How many inputs and draws show whether a rule is random, and whether it works by coordinate.
PROBES = 4
# How many variations of an input are tried at a time.
OFFSPRING = 16
# The smallest step of a hill climb, in units of the honest spread.
MIN_STEP = 1e-6


def kappas(rows: Array, outs: Array, f: int) -> Array:
    r"""The kappa, :math:`\|\mathrm{out} - \mu\|^2 / \sigma^2`, of results (draws, d) for some rows.

    NaN where rounding hides how much the honest rows differ.
    """
    honest = rows[f:]
    mean = honest.mean(axis=0)
    variance = float(((honest - mean) ** 2).sum(axis=1).mean())
    h = len(honest)
    if not 2 * h / (h - 1) * variance >= MIN_SPREAD * float((honest**2).sum(axis=1).max()) > 0:
        return np.full(len(outs), np.nan)
    return ((outs - mean) ** 2).sum(axis=1) / variance


def _draw_seeds(draws: int, seed: int) -> list[int]:
    """The seed of each draw."""
    return np.random.default_rng(seed).integers(2**62, size=draws).tolist()


class Trial:
    """The errors of a rule on inputs, and how many inputs were tried.

    - `draws`: on how many draws of random mixings each input is tried; the same draws for all
      inputs, so that they can be compared. The worst of many inputs may seem so by the luck of
      these draws: `with_draws` gives a trial with others.
    - `tried`: how many inputs were tried so far.
    """

    def __init__(self, rule: Aggregator, n: int, f: int, draws: int = 8, seed: int = 0) -> None:
        self.rule = copy.deepcopy(rule)
        self.n, self.f = n, f
        self.tried = 0
        self._steps = [step for stage in check_sizes(rule.stages, n) for step in stage.expansion]
        self._has_shortcut = isinstance(self._steps[-1], Weighting) and not any(
            step.needs_origin for step in self._steps
        )
        self._generator = torch.Generator()
        self._seeds = _draw_seeds(PROBES, seed)
        probes = np.random.default_rng(0).normal(size=(PROBES, n, 2))
        for k, probe in enumerate(probes):
            probe[k % n] *= 1e3  # another row sticks out of each
        results = np.array([[self._call_rule(p, seed) for p in probes] for seed in self._seeds])
        self.random = not all(np.array_equal(result, results[0]) for result in results)
        # A rule by coordinate gives many inputs their results in one call, side by side.
        beside = np.concatenate(list(probes), axis=1)
        self.by_column = all(
            np.allclose(self._call_rule(beside, seed), result.reshape(-1))
            for seed, result in zip(self._seeds, results, strict=True)
        )
        self._seeds = _draw_seeds(draws if self.random else 1, seed)

    def with_draws(self, draws: int, seed: int) -> Trial:
        """The same trial with other draws; they matter only with random mixings."""
        other = copy.copy(self)
        other._seeds = _draw_seeds(draws if self.random else 1, seed)
        return other

    def arranged(self, rows: Array) -> Array:
        """The rows in the order in which the rule gets them.

        The first f are at the places where they do most harm, if places matter.
        """
        mixings = [step for step in self._steps if isinstance(step, Mixing)]
        # Up to the first mixing that changes their number, row i that comes out is that of row i.
        first = next(itertools.dropwhile(lambda step: step.rows(self.n) == self.n, mixings), None)
        places = None if first is None else first.worst_places(self.n, self.f)
        if places is None:
            return rows
        arranged = np.empty_like(rows)
        arranged[places] = rows[: self.f]
        arranged[np.delete(np.arange(self.n), places)] = rows[self.f :]
        return arranged

    def _call_rule(self, rows: Array, seed: int) -> Array:
        self.rule.reset()
        self._generator.manual_seed(seed)
        arranged = torch.from_numpy(self.arranged(rows))
        return self.rule(arranged, self._generator).numpy()

    def _combine_directly(self, rows: Array) -> Array:
        """The results, (draws, d), without the checks of a call, and with one Gram matrix."""
        *mixings, rule = self._steps
        assert isinstance(rule, Weighting)
        points, results = SourcePoints(Matrix(torch.from_numpy(self.arranged(rows)))), []
        for seed in self._seeds:
            self._generator.manual_seed(seed)
            geometry = Geometry.of(points)
            for mixing in mixings:
                assert isinstance(mixing, Mixing)
                geometry = geometry.mixed(mixing.matrix(geometry, self._generator))
            results.append(geometry.combine(rule.weights(geometry)).numpy())
        return np.array(results)

    def kappas(self, inputs: Array) -> Array:
        """The kappa of each input, (B, n, d) -> (B,); minus infinity if an input is not valid.

        Computed in the fastest way there is; `kappas_by_draw` calls the rule as users do.
        """
        self.tried += len(inputs)
        # Rows that may be rejected need the rule itself. (The comparison is false for NaN.)
        usual = [bool(abs(rows).max() < HUGE) for rows in inputs]
        if self.by_column and all(usual):
            means = self._side_by_side(inputs)
        else:
            means = [
                kappas(rows, self._combine_directly(rows), self.f).mean()
                if self._has_shortcut and small
                else self.kappas_by_draw(rows).mean()
                for rows, small in zip(inputs, usual, strict=True)
            ]
        return np.nan_to_num(np.array(means), nan=-np.inf, posinf=np.inf)

    def _side_by_side(self, inputs: Array) -> list[float]:
        """The kappa of each input, by one call for all."""
        b, n, d = inputs.shape
        beside = np.ascontiguousarray(inputs.transpose(1, 0, 2).reshape(n, b * d))
        outs = np.array([self._call_rule(beside, seed) for seed in self._seeds])
        results = outs.reshape(len(outs), b, d).transpose(1, 0, 2)
        return [kappas(rows, out, self.f).mean() for rows, out in zip(inputs, results, strict=True)]

    def kappas_by_draw(self, rows: Array) -> Array:
        """The kappa of one input on each draw, (draws,); NaN if the rule refuses the input."""
        try:
            outs = np.array([self._call_rule(rows, seed) for seed in self._seeds])
        except ByzantiumError:
            return np.array([np.nan])
        return kappas(rows, outs, self.f)


@dataclass(frozen=True)
class Arrangement:
    """Rows at a few points: `rows` is `points[index]`.

    - `points`: (k, d), the points. With k = n and a point for each row it can be any input.
    - `index`: (n,), the index of the point of each row.
    """

    points: Array
    index: NDArray[np.int64]

    @classmethod
    def free(cls, rows: Array) -> Arrangement:
        """Every row at a point of its own."""
        return cls(rows, np.arange(len(rows)))

    @classmethod
    def clusters(cls, n: int, f: int, rng: np.random.Generator) -> Arrangement:
        """Up to four clusters of honest rows and two of attackers in the plane, at random."""
        honest = int(rng.integers(1, 5))
        k = honest + int(rng.integers(1, 3))
        shares = rng.dirichlet(np.full(honest, 0.7))
        points = rng.normal(size=(k, 2)) * 10 ** rng.uniform(-1, 1, (k, 1))
        if rng.random() < 0.5:
            points[:, 1] = 0
        index = np.empty(n, dtype=np.int64)
        index[f:] = rng.choice(honest, n - f, p=shares)
        index[:f] = rng.integers(honest, k, f)
        if rng.random() < 0.3:  # the attackers copy one of the honest
            index[:f] = rng.integers(honest)
        return cls(points, index)

    @property
    def rows(self) -> Array:
        return self.points[self.index]

    def variation(self, size: float, rng: np.random.Generator) -> Arrangement:
        """A variation: some points moved by about `size`, and perhaps some rows to other points."""
        (k, d), n = self.points.shape, len(self.index)
        share = rng.choice((1.5 / (k * d), 0.5, 1.0))
        points = self.points + size * rng.normal(size=(k, d)) * (rng.random((k, d)) < share)
        index = self.index
        if rng.random() < 0.25:
            index = index.copy()
            for _ in range(rng.integers(1, 4)):
                index[rng.integers(n)] = rng.integers(k)
        return Arrangement(points, index)


@dataclass(frozen=True)
class Candidate:
    """An input, its kappa, and a description of how it was made."""

    kappa: float
    rows: Array
    how: str


def hill_climb(
    trial: Trial,
    start: Arrangement,
    tries: int,
    rng: np.random.Generator,
    kappa: float,
) -> tuple[float, Arrangement]:
    """Hill climbing from a start with a known kappa: the best kappa, and its arrangement.

    Of some variations the one with the largest kappa is the next start, if its kappa is larger. The
    size of the variations follows the last one that helped, and shrinks while none does.
    """
    best = start
    end, step = trial.tried + tries, 0.5
    while trial.tried < end and step > MIN_STEP:
        spread = float(best.rows[trial.f :].std())
        sizes = step * 10 ** rng.uniform(-1, 0.5, OFFSPRING)
        others = [best.variation(spread * size, rng) for size in sizes]
        kappas = trial.kappas(np.array([other.rows for other in others]))
        k = int(kappas.argmax())
        if kappas[k] > kappa:
            much_better = kappas[k] > kappa * (1 + 1e-4)
            best, kappa = others[k], float(kappas[k])
            step = float(sizes[k]) * (2 if much_better else 1)
        else:
            step *= 0.7
    return kappa, best
