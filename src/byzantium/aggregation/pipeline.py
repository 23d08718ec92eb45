"""The mechanism that every rule and mixing shares: checks, rejection, composition, reports.

A matrix's way through it: `admit` checks it and sets unusable rows aside, each mixing adds its
matrix to the geometry, and the rule at the end turns geometry and points into one vector.
"""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, overload

import numpy as np
import torch
from torch import Tensor

from byzantium.aggregation.geometry import Geometry, vectors_of
from byzantium.aggregation.points import Array, GivenPoints, row_norms
from byzantium.aggregation.sources import Source, as_source
from byzantium.aggregation.stage import Stage
from byzantium.core import ByzantiumError, KindError, Stateful, TooManyRejected, fork_safe

logger = logging.getLogger("byzantium")

# A larger norm is nonsense rather than an update, and its square would leave the dtype's range.
LARGEST_NORM = {torch.float64: 1e150}
LARGEST_NORM_NARROW = 1e18


@dataclass(frozen=True)
class Report:
    """What one aggregation did.

    aggregate: what the call returns.
    weights:   (n,), how much each worker counted; zero for the rejected, NaN where a rule is no
               matter of weights.
    remainder: what lies on the origin or on a centre; weights.sum() + remainder = 1.
    rejected:  the workers whose vectors were not finite, absurdly large, or could not be read.
    mixing:    (m, n), of which workers' vectors the m vectors were made that the rule saw.
    reasons:   for each that was rejected, why.
    notes:     what else one should know, in sentences.
    """

    aggregate: Any
    weights: Tensor
    remainder: float
    rejected: tuple[int, ...]
    mixing: Tensor
    reasons: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def effective_workers(self) -> float:
        """(sum w)^2 / sum w^2: 1 when one worker decides alone, n when all count alike."""
        return float(self.weights.sum() ** 2 / self.weights.square().sum())


def admit(
    stages: Sequence[Stage],
    source: Source,
    centre: Tensor | None = None,
    bound: float = math.inf,
) -> tuple[GivenPoints, tuple[Stage, ...], dict[int, str]]:
    """Check vectors against a pipeline and set unusable ones aside.

    Returns the points, the steps to take with what remains, and the rejected rows, each with its
    reason. Sizes are judged before anything is rejected: no worker can make a pipeline fail by
    being rejected, within f. bound: what no norm is above, where that is known already.
    """
    n = source.n
    given, readable = stages, source.readable
    stages = check_sizes(stages, n)
    largest = LARGEST_NORM.get(source.dtype, LARGEST_NORM_NARROW)
    norms = None if bound <= largest else row_norms(source, readable)  # a bound may be NaN
    usable = np.full(len(readable), True) if norms is None else norms <= largest  # false for NaN
    nonsense = f"not finite, or of norm above {largest:g}"
    reasons = {**source.unreadable, **dict.fromkeys(readable[~usable].tolist(), nonsense)}
    if reasons:
        bounds = [stage.bad for stage in stages if stage.bad is not None]
        allowed = min(bounds, default=n // 2)
        told = _told(reasons, source)
        if len(reasons) > allowed:
            most = f"its f = {allowed}" if bounds else f"half of them, {allowed}"
            raise TooManyRejected(
                f"{_named(given)} can do without {most} of {n} vectors, but {len(reasons)} are "
                f"unusable: {told}",
                reasons,
            )
        logger.warning("rejected %d of %d vectors: %s", len(reasons), n, told)
        stages = tuple(stage.with_fewer_bad(len(reasons)) for stage in stages)
    steps = tuple(step for stage in stages for step in stage.expansion)

    anchors: dict[str, Tensor | None] = {}
    if any(step.needs_origin for step in steps):
        anchors["origin"] = None
    if centre is not None:
        if centre.shape != (source.dimension,):
            raise ByzantiumError(
                f"{_named(given)} holds a centre of dimension {centre.numel()}, got vectors of "
                f"dimension {source.dimension}; reset() forgets it"
            )
        anchors["centre"] = source.part(centre)
    norms = None if norms is None else norms[usable]
    return GivenPoints(source, readable[usable], norms, anchors), steps, reasons


def check_sizes(stages: Sequence[Stage], n: int) -> tuple[Stage, ...]:
    """The steps as they are for n vectors; a sentence unless each is defined for what it gets."""
    left, steps = n, []
    for k, stage in enumerate(stages):
        history = f" ({_named(stages[:k])} left {left} of {n})" if left != n else ""
        step = stage.settled(left, stages[k + 1 :])
        step.check(left, history)
        left = step.rows(left) if isinstance(step, Mixing) else 1
        steps.append(step)
    return tuple(steps)


def withstand(stages: Sequence[Stage], n: int, f: int) -> bool:
    """Whether steps that end in a rule are defined for n vectors, and stand f bad ones of them."""
    try:
        *mixings, rule = check_sizes(stages, n)
    except ByzantiumError:
        return False
    for mixing in mixings:
        assert isinstance(mixing, Mixing)
        n, f = mixing.rows(n), mixing.spoiled(f)
    assert isinstance(rule, Aggregator)
    return f <= (f if rule.bad is None else rule.bad) and (not f or f < rule.delta_max * n)


def _named(stages: Sequence[Stage]) -> str:
    return " >> ".join(map(repr, stages))


def _told(reasons: Mapping[int, str], source: Source, most: int = 10) -> str:
    """Who was rejected and why, workers with the same reason together."""
    sentences = []
    for reason in dict.fromkeys(reasons.values()):
        workers = sorted(worker for worker, other in reasons.items() if other == reason)
        more = f" and {len(workers) - most} more" if len(workers) > most else ""
        listed = ", ".join(map(source.called, workers[:most])) + more
        sentences.append(f"worker{'s' * (len(workers) > 1)} {listed} ({reason})")
    return ", ".join(sentences)


# -- mixings -----------------------------------------------------------------------------------


class Mixing(Stage, ABC):
    """X -> P X, where the rows of P sum to one. Composes: mixing >> mixing, mixing >> rule."""

    @abstractmethod
    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        """P, of shape (m, n), or (m, points) where the origin is mixed in."""

    def rows(self, n: int) -> int:
        """m, for n vectors."""
        return n

    def spoiled(self, f: int) -> int:
        """How many of the m vectors are bad, at most, where f of the n are."""
        return f

    @fork_safe
    def __call__(self, updates: Any, generator: torch.Generator | None = None) -> Tensor:
        """The mixed vectors (m, d). Pipelines never build them; this is to look at them."""
        source = as_source(updates)
        points, steps, _ = admit(self.stages, source)
        return _through(steps, Geometry.of(points), generator).rows().to(source.dtype)

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

    def rows(self, n: int) -> int:
        for part in self.parts:
            assert isinstance(part, Mixing)
            n = part.rows(n)
        return n

    def spoiled(self, f: int) -> int:
        for part in self.parts:
            assert isinstance(part, Mixing)
            f = part.spoiled(f)
        return f

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        mixed = _through(self.parts, geometry.rebased(), generator)
        return mixed.mixing[: mixed.n]


def _through(
    steps: Sequence[Stage], geometry: Geometry, generator: torch.Generator | None
) -> Geometry:
    """The geometry behind the mixings among some steps."""
    if not isinstance(generator, torch.Generator | None):
        kind = type(generator).__name__
        raise KindError(f"generator must be a torch.Generator or None, got a {kind}")
    for step in steps:
        if isinstance(step, Mixing):
            matrix = geometry.basis.source.agreed(step.matrix(geometry, generator))
            wanted = step.rows(geometry.n)
            try:
                geometry = geometry.mixed(matrix)
            except ByzantiumError as error:
                raise ByzantiumError(f"{step!r}: {error}") from error
            if geometry.n != wanted:
                raise ByzantiumError(
                    f"{step!r}: its rows() says that {wanted} vectors come out, its matrix makes "
                    f"{geometry.n}"
                )
    return geometry


# -- aggregators -------------------------------------------------------------------------------


class Aggregator(Stage, Stateful):
    """(n, d) -> (d,): a rule, or a pipeline that ends in one.

    delta_max: the share of bad vectors below which its error stays bounded. (Whoever has one half
    of them can play the other half: no rule goes beyond it.)
    """

    delta_max: ClassVar[float] = 1 / 2

    @overload
    def __call__(
        self,
        updates: Tensor,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
    ) -> Any: ...
    def __call__(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
    ) -> Any:
        """Aggregate n vectors into one.

        They may be one matrix (n, d) of torch or NumPy, or a sequence of n vectors, of n mappings
        of named arrays (state dicts) or of n lists of arrays. What goes in comes out: the result
        has the form, the dtypes and the device of one of them. Entries of whole numbers take no
        part in distances; their result is their median, rounded down.

        generator: random mixings draw from it; None means fresh entropy of the operating system.
        base:      a vector (a model) that is subtracted first and added to the result.
        strict:    vectors that differ in keys, shapes or dtypes are an error; otherwise, those that
                   differ from most are rejected, as those that are not finite.
        """
        return self._called(updates, generator, base, strict)

    @fork_safe
    def _called(
        self, updates: Any, generator: torch.Generator | None, base: Any, strict: bool
    ) -> Any:
        source = as_source(updates, base=base, strict=strict)
        aggregate, _, points, *_ = self._run(source, generator, explain=False)
        return source.result(aggregate, points.rows)

    @fork_safe
    def explain(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
    ) -> Report:
        """Aggregate, and say how much each worker counted. State advances as in a call."""
        source = as_source(updates, base=base, strict=strict)
        aggregate, weights, points, geometry, reasons = self._run(source, generator, explain=True)
        if weights is None:
            weights = np.full(geometry.points, np.nan)
        n, rows = source.n, points.rows
        original = weights @ geometry.mixing
        worker_weights, mixing = np.zeros(n), np.zeros((geometry.n, n))
        worker_weights[rows] = original[: points.n]
        mixing[:, rows] = geometry.mixing[: geometry.n, : points.n]
        return Report(
            source.result(aggregate, rows),
            torch.from_numpy(worker_weights),
            float(original[points.n :].sum()),
            tuple(sorted(reasons)),
            torch.from_numpy(mixing),
            reasons,
            tuple(geometry.notes),
        )

    @property
    def knows_weights(self) -> Literal["always", "asked", "never"]:
        """Whether the rule at its end knows how much each vector counted.

        A weighting always does; a rule by coordinate when it is asked, and looks once more.
        """
        return _rule_of(self.stages[-1].expansion).weights_known

    def weigh(self, gram: Any, generator: torch.Generator | None = None) -> Tensor:
        """(n,): how much each of n vectors counts, from their inner products alone.

        For whoever has the Gram matrix (n, n) already, and for what ends in a weighting; others
        need the vectors. State is neither used nor advanced.

        >>> from byzantium import Krum
        >>> X = torch.tensor([[0.9], [1.0], [1.1], [1.3], [9.0]])
        >>> Krum(f=1).weigh(X @ X.T)
        tensor([0., 1., 0., 0., 0.], dtype=torch.float64)
        """
        if self.knows_weights != "always":
            raise ByzantiumError(f"{self!r} needs the vectors, not only their inner products")
        rule = copy.deepcopy(self)
        rule.reset()
        return rule.explain(vectors_of(gram), generator).weights

    def _run(
        self, source: Source, generator: torch.Generator | None, explain: bool
    ) -> tuple[Tensor, Array | None, GivenPoints, Geometry, dict[int, str]]:
        hasty, shares, bound = self.one_pass(source, explain)
        points, steps, reasons = admit(self.stages, source, self.centre, bound)
        geometry = _through(steps, Geometry.of(points), generator)
        if hasty is not None and not reasons:
            return source.whole(hasty), shares, points, geometry, reasons
        aggregate, weights = _rule_of(steps).finish(geometry, explain)
        aggregate = source.whole(aggregate)
        self.remember(aggregate)
        return aggregate, weights, points, geometry, reasons

    def one_pass(self, source: Source, explain: bool) -> tuple[Tensor | None, Array | None, float]:
        """What `Rule.finish` gives, and what no norm is above, in one reading, if that can be.

        It counts only if all rows were readable and the norms allow each to take part.
        """
        return None, None, math.inf

    @property
    def centre(self) -> Tensor | None:
        """A vector of dimension d that stands among the points, if the rule holds one."""
        return None

    def remember(self, aggregate: Tensor) -> None:
        """Advance the state, if there is any, after an aggregation."""

    def __rshift__(self, other: object) -> Any:
        raise KindError(f"{self!r} is a rule and ends a pipeline; mixings come before it")


def _rule_of(steps: Sequence[Stage]) -> Rule:
    """The step that aggregates."""
    rule = steps[-1]
    if not isinstance(rule, Rule):
        raise ByzantiumError(
            f"{type(rule).__name__} says nothing of how it aggregates; a rule derives from "
            "Weighting, CoordinateWise or MatrixRule"
        )
    return rule


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
    """What stands at the end of a pipeline and does the work; `rules` has its kinds."""

    # Whether it knows how much each vector counted: by itself, when it is asked, or not at all.
    weights_known: ClassVar[Literal["always", "asked", "never"]]

    @abstractmethod
    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        """The aggregate, and the weights of the mixed points (which only `explain` needs)."""
