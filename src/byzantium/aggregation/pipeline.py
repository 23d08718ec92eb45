"""The mechanism that every rule and mixing shares: checks, rejection, composition, reports.

A matrix's way through it: `admit` checks it and sets unusable rows aside, each mixing adds its
matrix to the geometry, and the rule at the end turns geometry and points into one vector.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import numpy as np
import torch
from torch import Tensor

from byzantium.aggregation.forks import fork_safe
from byzantium.aggregation.formula import Stateful
from byzantium.aggregation.geometry import Array, Geometry, GivenPoints, backend, row_norms
from byzantium.aggregation.order import shares
from byzantium.aggregation.plain import mixed_blocks
from byzantium.aggregation.stage import Stage

logger = logging.getLogger("byzantium")

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# A larger norm is nonsense rather than an update, and its square would leave the dtype's range.
LARGEST_NORM = {torch.float64: 1e150}
LARGEST_NORM_NARROW = 1e18


@dataclass(frozen=True)
class Report:
    """What one aggregation did.

    aggregate: (d,), what the call returns.
    weights:   (n,), how much each worker counted; zero for the rejected.
    remainder: what lies on the origin or on a centre; weights.sum() + remainder = 1.
    rejected:  the workers whose vectors were not finite, or absurdly large.
    mixing:    (m, n), of which workers' vectors the m vectors were made that the rule saw.
    notes:     what else one should know, in sentences.
    """

    aggregate: Tensor
    weights: Tensor
    remainder: float
    rejected: tuple[int, ...]
    mixing: Tensor
    notes: tuple[str, ...] = ()

    @property
    def effective_workers(self) -> float:
        """(sum w)^2 / sum w^2: 1 when one worker decides alone, n when all count alike."""
        return float(self.weights.sum() ** 2 / self.weights.square().sum())


def admit(
    stages: Sequence[Stage],
    updates: Tensor,
    centre: Tensor | None = None,
    norms: Array | None = None,
) -> tuple[GivenPoints, tuple[Stage, ...], tuple[int, ...]]:
    """Check a matrix against a pipeline and set unusable rows aside.

    Returns the points, the steps to take with what remains, and the rejected rows. Sizes are judged
    before anything is rejected: no worker can make a pipeline fail by being rejected, within f.
    """
    _check_matrix(updates)
    n = len(updates)
    check_sizes(stages, n)
    name = " >> ".join(map(repr, stages))
    updates = updates.detach()
    norms = row_norms(updates) if norms is None else norms
    largest = LARGEST_NORM.get(updates.dtype, LARGEST_NORM_NARROW)
    usable = norms <= largest  # false for NaN
    rejected = tuple(np.flatnonzero(~usable).tolist())
    if rejected:
        bounds = [stage.f for stage in stages if hasattr(stage, "f")]
        allowed = min(bounds, default=n // 2)
        reason = f"not finite, or of norm above {largest:g}"
        if len(rejected) > allowed:
            source = f"its f = {allowed}" if bounds else f"half of them, {allowed}"
            raise ValueError(
                f"{name} can do without {source} of {n} vectors, but {len(rejected)} are {reason}: "
                f"workers {_listed(rejected)}"
            )
        logger.warning("rejected workers %s of %d: %s", _listed(rejected), n, reason)
        stages = [stage.without(len(rejected)) for stage in stages]
    steps = tuple(step for stage in stages for step in stage.expansion)

    anchors: list[Tensor | None] = []
    if any(step.needs_origin for step in steps):
        anchors.append(None)
    if centre is not None:
        if centre.shape != updates.shape[1:]:
            raise ValueError(
                f"{name} holds a centre of dimension {centre.numel()}, got vectors of dimension "
                f"{updates.shape[1]}; reset() forgets it"
            )
        anchors.append(centre)
    rows = torch.from_numpy(np.flatnonzero(usable))
    return GivenPoints(updates, rows, norms[usable], tuple(anchors)), steps, rejected


def check_sizes(stages: Sequence[Stage], n: int) -> None:
    """Raise a sentence unless every step is defined for what n vectors leave it."""
    left = n
    for k, stage in enumerate(stages):
        history = " >> ".join(map(repr, stages[:k]))
        stage.check(left, f" ({history} left {left} of {n})" if left != n else "")
        left = stage.rows(left) if isinstance(stage, Mixing) else 1


def _check_matrix(updates: Tensor) -> None:
    if not isinstance(updates, Tensor):
        raise TypeError(
            "updates must be one floating-point tensor of shape (n, d), "
            f"got a {type(updates).__name__}; torch.stack turns a list of vectors into one"
        )
    if updates.layout != torch.strided:
        raise TypeError(f"updates must be a dense tensor, got layout {updates.layout}")
    if updates.dtype not in DTYPES:
        raise TypeError(
            f"updates must be float16, bfloat16, float32 or float64, got {updates.dtype}"
        )
    if updates.ndim != 2:
        raise ValueError(
            f"updates must have shape (n, d), one row a worker, got {tuple(updates.shape)}"
        )
    if not len(updates):
        raise ValueError("updates must hold at least one vector, got n = 0")


def _listed(workers: Sequence[int], most: int = 10) -> str:
    more = f" and {len(workers) - most} more" if len(workers) > most else ""
    return ", ".join(map(str, workers[:most])) + more


# -- mixings -----------------------------------------------------------------------------------


class Mixing(Stage, ABC):
    """X -> P X, where the rows of P sum to one. Composes: mixing >> mixing, mixing >> rule."""

    @abstractmethod
    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        """P, of shape (m, n), or (m, points) where the origin is mixed in."""

    def rows(self, n: int) -> int:
        """m, for n vectors."""
        return n

    @fork_safe
    def __call__(self, updates: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """The mixed vectors (m, d). Pipelines never build them; this is to look at them."""
        points, steps, _ = admit(self.stages, updates)
        geometry = _through(steps, points.geometry(), generator)
        mixed = torch.empty(geometry.n, points.d, dtype=updates.dtype, device=updates.device)
        for columns, matrix, rows in geometry.basis.pieces():
            for inner, block in mixed_blocks(matrix, rows, geometry.matrix()):
                mixed[:, columns][:, inner] = block
        return mixed

    @overload
    def __rshift__(self, other: Mixing) -> Mixing: ...
    @overload
    def __rshift__(self, other: Aggregator) -> Aggregator: ...
    def __rshift__(self, other: Mixing | Aggregator) -> Mixing | Aggregator:
        if isinstance(other, Mixing):
            return Chain(self.stages + other.stages)
        if isinstance(other, Aggregator):
            return Pipeline(self.stages + other.stages)
        return NotImplemented


class _Composed(Stage):
    """Steps one after the other."""

    parts: tuple[Stage, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.parts

    def __repr__(self) -> str:
        return " >> ".join(map(repr, self.parts))


@dataclass(frozen=True, repr=False)
class Chain(_Composed, Mixing):
    """What `mixing >> mixing` makes."""

    parts: tuple[Stage, ...]

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        mixed = _through(self.parts, geometry.renewed(), generator)
        return mixed.mixing[: mixed.n]


def _through(
    steps: Sequence[Stage], geometry: Geometry, generator: torch.Generator | None
) -> Geometry:
    """The geometry behind the mixings among some steps."""
    if not isinstance(generator, torch.Generator | None):
        kind = type(generator).__name__
        raise TypeError(f"generator must be a torch.Generator or None, got a {kind}")
    for step in steps:
        if isinstance(step, Mixing):
            geometry = geometry.mixed(step.matrix(geometry, generator))
    return geometry


# -- aggregators -------------------------------------------------------------------------------


class Aggregator(Stage, Stateful):
    """(n, d) -> (d,): a rule, or a pipeline that ends in one."""

    def __call__(self, updates: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Aggregate the rows of a matrix (n, d) into a vector (d,) of its dtype and device.

        Random mixings draw from `generator`; None means fresh entropy of the operating system.
        """
        aggregate, *_ = self._run(updates, generator, explain=False)
        return aggregate

    def explain(self, updates: Tensor, generator: torch.Generator | None = None) -> Report:
        """Aggregate, and say how much each worker counted. State advances as in a call."""
        aggregate, weights, points, geometry, rejected = self._run(updates, generator, explain=True)
        assert weights is not None
        n, rows = len(updates), points.rows.numpy()
        original = weights @ geometry.mixing
        worker_weights, mixing = np.zeros(n), np.zeros((geometry.n, n))
        worker_weights[rows] = original[: points.n]
        mixing[:, rows] = geometry.mixing[: geometry.n, : points.n]
        return Report(
            aggregate,
            torch.from_numpy(worker_weights),
            float(original[points.n :].sum()),
            rejected,
            torch.from_numpy(mixing),
            tuple(geometry.notes),
        )

    @property
    def weighs(self) -> bool:
        """Whether it ends in a weighting, which knows its weights; others must sort again."""
        return isinstance(self.stages[-1].expansion[-1], Weighting)

    @fork_safe
    def _run(
        self, updates: Tensor, generator: torch.Generator | None, explain: bool
    ) -> tuple[Tensor, Array | None, GivenPoints, Geometry, tuple[int, ...]]:
        hasty, norms = (None, None) if explain else self.hasten(updates)
        points, steps, rejected = admit(self.stages, updates, self.centre, norms)
        geometry = _through(steps, points.geometry(), generator)
        if hasty is not None and not rejected:
            return hasty, None, points, geometry, rejected
        rule = steps[-1]
        assert isinstance(rule, Rule)
        aggregate, weights = rule.finish(geometry, explain)
        self.remember(aggregate)
        return aggregate.to(updates.dtype), weights, points, geometry, rejected

    def hasten(self, updates: Tensor) -> tuple[Tensor | None, Array | None]:
        """The aggregate and the norms of the rows in one reading, where that is possible.

        The aggregate counts only if the norms then show that every row may take part.
        """
        return None, None

    @property
    def centre(self) -> Tensor | None:
        """A vector of dimension d that stands among the points, if the rule holds one."""
        return None

    def remember(self, aggregate: Tensor) -> None:
        """Advance the state, if there is any, after an aggregation."""

    def __rshift__(self, other: object) -> Any:
        raise TypeError(f"{self!r} is a rule and ends a pipeline; mixings come before it")


@dataclass(frozen=True, repr=False)
class Pipeline(_Composed, Aggregator):
    """What `mixing >> rule` makes."""

    parts: tuple[Stage, ...]

    @property
    def rule(self) -> Aggregator:
        rule = self.parts[-1]
        assert isinstance(rule, Aggregator)
        return rule

    @property
    def centre(self) -> Tensor | None:
        return self.rule.centre

    def remember(self, aggregate: Tensor) -> None:
        self.rule.remember(aggregate)

    def state_dict(self) -> dict[str, Tensor]:
        return self.rule.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.rule.load_state_dict(state)


class Rule(Aggregator, ABC):
    """What stands at the end of a pipeline and does the work."""

    @abstractmethod
    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        """The aggregate, and the weights of the mixed points (which only `explain` needs)."""


class Weighting(Rule):
    """A rule that depends on the vectors through their Gram matrix alone: weights @ vectors."""

    @abstractmethod
    def weights(self, geometry: Geometry) -> Array:
        """(points,), summing to one."""

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        weights = self.weights(geometry)
        return geometry.combine(weights), weights


class CoordinateWise(Rule):
    """A rule that averages, in each coordinate by itself, the central ones of the sorted values."""

    nearest: ClassVar[bool] = False  # those nearest the median, rather than the middle ones

    @abstractmethod
    def kept(self, n: int) -> int:
        """How many of n values are averaged."""

    def hasten(self, updates: Tensor) -> tuple[Tensor | None, Array | None]:
        _check_matrix(updates)
        n, d = updates.shape
        self.check(n)
        points = GivenPoints(updates.detach())
        if not points.native:
            return None, None
        matrix, out = points.updates, torch.empty(d, dtype=points.dtype, device=updates.device)
        squares = backend(matrix).central_mean(
            matrix, points.rows, None, self.kept(n), self.nearest, out
        )
        return out, np.sqrt(squares)

    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        points, kept, mixing = geometry.basis, self.kept(geometry.n), geometry.matrix()
        aggregate = torch.empty(points.d, dtype=points.dtype, device=points.device)
        share = np.zeros(geometry.points)
        for columns, matrix, rows in points.pieces():
            backend(matrix).central_mean(
                matrix, rows, mixing, kept, self.nearest, aggregate[columns]
            )
            if explain:
                for _, block in mixed_blocks(matrix, rows, mixing):
                    share[: geometry.n] += shares(block, kept, nearest=self.nearest).numpy()
        if not points.d:  # no coordinate to supply: all alike
            share[: geometry.n] = 1
        return aggregate, share / share.sum() if explain else None
