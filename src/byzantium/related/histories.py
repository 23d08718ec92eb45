"""Rules that remember what each worker sent in earlier rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ByzantiumError, OrInfinity, Positive, PositiveMeasure
from byzantium.related.memory import Remembering
from byzantium.rules import Weighting
from byzantium.rules.kinds import whole_rows
from byzantium.vectors import Geometry, Matrix
from byzantium.vectors.distances import Array
from byzantium.vectors.points import SourcePoints


class WorkerHistory(Remembering, Weighting):
    """A weighting that remembers which workers are good, and sums of what each of them sent."""

    remembers_workers: ClassVar[bool] = True
    delta_max: ClassVar[float] = 0  # no bound by how far honest vectors are apart

    def _state(self, geometry: Geometry) -> dict[str, Tensor]:
        """The state before a call, for the workers of the call."""
        raise NotImplementedError

    def _current(self, geometry: Geometry) -> dict[str, Tensor]:
        memory, source = self.memory, geometry.basis.source
        if not memory:
            return self._state(geometry)
        n = len(memory["good"])
        if n != source.n:
            raise ByzantiumError(
                f"{self!r} remembers {n} workers, got {source.n} vectors: all workers take part in "
                "each call; reset() forgets them"
            )
        return memory

    def _good_rows(self, geometry: Geometry) -> NDArray[np.bool_]:
        """(n,): which rows are those of good workers."""
        good: NDArray[np.bool_] = self._current(geometry)["good"].numpy()[geometry.workers]
        return good

    def _remaining(self, geometry: Geometry, good: Tensor) -> Tensor:
        """The workers who stay good, of whom `good` says so; a note names those who are dropped."""
        before, source = self._current(geometry)["good"], geometry.basis.source
        present = torch.zeros_like(before)
        present[geometry.workers] = True  # an unusable vector is dropped with its worker
        after = before & good & present
        if dropped := (before & ~after).nonzero()[:, 0].tolist():
            names = ", ".join(source.row_name(row) for row in dropped)
            geometry.note(f"{self!r} drops {names}; {int(after.sum())} of {len(after)} are left")
        return after


def sums_with(geometry: Geometry, sums: Tensor, rows: Tensor) -> Tensor:
    """Sums of vectors of all workers, (workers, d), with these rows added; rejected ones add 0."""
    sums = sums.clone()
    sums[geometry.workers] += rows.to(sums)
    return sums


def distances_between(rows: Tensor) -> Array:
    """(n, n): the distances of some vectors from each other."""
    geometry = Geometry.of(SourcePoints(Matrix(rows)))
    distances: Array = np.sqrt(geometry.squared_distances) * geometry.unit
    return distances


def most_central(distances: Array, radius: float) -> int:
    """The row that has the most others within a radius; of several, the first."""
    return int((distances <= radius).sum(axis=1).argmax())


@dataclass(frozen=True, repr=False)
class Safeguard(WorkerHistory):
    r"""The mean of the good workers; one that drifts away from them over a window is dropped.

    .. math:: \frac{1}{|\mathrm{good}_t|} \sum_{i \in \mathrm{good}_t} x_{i,t}, \quad
        \mathrm{good}_{t+1} = \{ i \in \mathrm{good}_t :
        \|A_i - A_\mathrm{med}\| \le \theta_A, \ \|B_i - B_\mathrm{med}\| \le \theta_B \}

    :math:`A_i` and :math:`B_i` are the sums of what worker i sent since the last multiple of `long`
    and of `short` rounds. By default :math:`A_\mathrm{med}` is the sum of that good worker whose
    distance r to more than half of all workers is smallest, and :math:`\theta_A` is `factor` times
    r. With `radius` the threshold is :math:`\theta = 2 \, \mathrm{radius} \sqrt{t}` for a sum over
    t rounds, and :math:`A_\mathrm{med}` has most sums within :math:`\theta / 2`: if the vectors of
    honest workers are independent and differ from their mean by at most V, a radius of a few V
    drops none of them. A log line and the report name whom it drops. (Two parts of the paper are
    omitted: the Gaussian noise that escapes saddle points, and the division of each vector of a sum
    by the number of good workers, which changes sums of all workers alike.)

    Nothing is promised for one call: a worker counts until it is dropped. Where workers hold
    different data, their sums drift apart by themselves, and honest workers are dropped.

    - `short`, `long`: the lengths of the windows in rounds, at least 1; `long` is no smaller.
    - `factor`: how many times r the threshold is, above 1.
    - `radius`: the distance that one round may add, above 0; None, the default, means `factor`.
    - `forgive`: whether all workers are good again when a long window ends.

    Allen-Zhu, Ebrahimianghazani, Li, Alistarh: Byzantine-Resilient Non-Convex Stochastic Gradient
    Descent, ICLR 2021.

    >>> rule = Safeguard(short=1, long=6)
    >>> updates = torch.tensor([[0.9], [1.0], [1.1], [9.0]])
    >>> rule(updates), rule(updates)
    (tensor([3.]), tensor([1.]))
    """

    short: Positive = 10
    long: Positive = 60
    factor: Annotated[float, Gt(1)] = 1.5
    radius: PositiveMeasure | None = None
    forgive: bool = False
    remembered: ClassVar[tuple[str, ...]] = ("round", "good", "short", "long")

    def check_parameters(self) -> None:
        if self.long < self.short:
            raise ByzantiumError(f"{self!r} needs long >= short")

    def _state(self, geometry: Geometry) -> dict[str, Tensor]:
        n, d = geometry.basis.source.n, geometry.basis.source.d
        zeros = torch.zeros(n, d, dtype=geometry.basis.dtype, device=geometry.basis.device)
        good = torch.ones(n, dtype=torch.bool)
        return {"round": torch.tensor(0), "good": good, "short": zeros, "long": zeros}

    def weights(self, geometry: Geometry) -> Array:
        good = np.flatnonzero(self._good_rows(geometry))
        return geometry.uniform_over(good if len(good) else np.arange(geometry.n))

    def advance(self, geometry: Geometry, aggregate: Tensor, weights: Array | None) -> None:
        state, rows = self._current(geometry), whole_rows(self, geometry)
        t = int(state["round"])
        good = state["good"].clone()
        sums = {}
        for name, length in (("short", self.short), ("long", self.long)):
            first = t % length == 0
            before = torch.zeros_like(state[name]) if first else state[name]
            sums[name] = sums_with(geometry, before, rows)
            good &= self._near(sums[name], state["good"], t % length + 1)
        good = self._remaining(geometry, good)
        if self.forgive and (t + 1) % self.long == 0:
            good = torch.ones_like(good)
        self._keep(round=torch.tensor(t + 1), good=good, **sums)

    def _near(self, sums: Tensor, good: Tensor, t: int) -> Tensor:
        """Which workers' sums over t rounds are near those of most; all where no majority is."""
        n, members = len(good), good.nonzero()[:, 0]
        near = torch.ones_like(good)
        if 2 * len(members) <= n:
            return near
        distances = distances_between(sums[members])
        if self.radius is None:
            reach = np.partition(distances, n // 2, axis=1)[:, n // 2]
            center = int(reach.argmin())
            threshold = self.factor * reach[center]
        else:
            threshold = 2 * self.radius * math.sqrt(t)
            center = most_central(distances, threshold / 2)
        if threshold > 0:  # more than half of the sums are equal: no threshold is known
            near[members] = torch.from_numpy(distances[center] <= threshold)
        return near


@dataclass(frozen=True, repr=False)
class ByzantineSGD(WorkerHistory):
    r"""The mean of the good workers; one whose vector or sum is far from most is dropped for good.

    .. math:: \mathrm{good}_t = \{ i \in \mathrm{good}_{t-1} : |A_i - A_\mathrm{med}| \le t_A,
        \|B_i - B_\mathrm{med}\| \le t_B, \ \|x_{i,t} - x_\mathrm{med}\| \le 4 v \}

    with :math:`B_i = \sum_{s \le t} x_{i,s}` and
    :math:`A_i = \sum_{s \le t} \langle x_{i,s}, D_s \rangle`. :math:`D_s` is the sum of the results
    before round s: for plain SGD with the rate :math:`\eta`, the way of the model is
    :math:`-\eta D_s`, so :math:`t_A` is the threshold of the paper divided by :math:`\eta`.
    :math:`A_\mathrm{med}` is the median; :math:`B_\mathrm{med}` and :math:`x_\mathrm{med}` have
    most others within :math:`t_B` and 2v. If nobody is left, the result is zero.

    - `v`: how far an honest vector is from the mean, at most; above 0.
    - `t_a`, `t_b`: the thresholds of the sums, above 0; they may be infinite. The paper takes
      :math:`t_B = 4 v \sqrt{T \log(16 n T / p)}` for T rounds and a failure probability p.

    What is promised assumes that all workers draw from the same data: then honest workers stay, and
    the training converges at the optimal rate. For one call nothing is promised: a vector at a
    distance of 4v counts, however near each other honest vectors are.

    Alistarh, Allen-Zhu, Li: Byzantine Stochastic Gradient Descent, NeurIPS 2018.

    >>> rule = ByzantineSGD(v=0.2, t_a=10, t_b=2)
    >>> rule(torch.tensor([[0.9], [1.0], [1.1], [9.0]]))
    tensor([1.])
    """

    v: PositiveMeasure
    t_a: Annotated[float, Gt(0), OrInfinity]
    t_b: Annotated[float, Gt(0), OrInfinity]
    remembered: ClassVar[tuple[str, ...]] = ("good", "projections", "sums", "results")

    @property
    def needs_origin(self) -> bool:
        return True

    @property
    def center(self) -> Tensor | None:
        """The sum of the results, (d,); None before the first call."""
        return self.memory.get("results")

    def _state(self, geometry: Geometry) -> dict[str, Tensor]:
        points = geometry.basis
        zeros = torch.zeros(points.source.n, points.d, dtype=points.dtype, device=points.device)
        return {
            "good": torch.ones(points.source.n, dtype=torch.bool),
            "projections": torch.zeros(points.source.n, dtype=torch.float64),
            "sums": zeros,
            "results": zeros[0],
        }

    def _projections(self, geometry: Geometry) -> Tensor:
        """(workers,): the sums of inner products with the way so far, these rows included."""
        projections = self._current(geometry)["projections"].clone()
        about = geometry.gram_about(geometry.origin)[: geometry.n, geometry.center]
        projections[geometry.workers] += torch.from_numpy(about) * geometry.unit**2
        return projections

    def weights(self, geometry: Geometry) -> Array:
        rows, workers = whole_rows(self, geometry), geometry.workers
        projections = self._projections(geometry)[workers].numpy()
        sums = sums_with(geometry, self._current(geometry)["sums"], rows)[workers]
        of_sums = distances_between(sums)
        of_rows = np.sqrt(geometry.squared_distances) * geometry.unit
        keep = self._good_rows(geometry)
        keep = keep & (abs(projections - np.median(projections)) <= self.t_a)
        keep &= of_sums[most_central(of_sums, self.t_b)] <= self.t_b
        keep &= of_rows[most_central(of_rows, 2 * self.v)] <= 4 * self.v
        if not keep.any():
            return geometry.at(geometry.origin)
        return geometry.uniform_over(np.flatnonzero(keep))

    def advance(self, geometry: Geometry, aggregate: Tensor, weights: Array | None) -> None:
        assert weights is not None
        state, rows = self._current(geometry), geometry.rows()
        good = torch.zeros_like(state["good"])
        good[geometry.workers] = torch.from_numpy(weights[: geometry.n] > 0)
        self._keep(
            good=self._remaining(geometry, good),
            projections=self._projections(geometry),
            sums=sums_with(geometry, state["sums"], rows),
            results=state["results"] + aggregate.to(state["results"]),
        )
