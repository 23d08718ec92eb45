"""The mechanism that every rule and mixing shares: checks, rejection, composition, reports.

How a matrix passes through it: `admit` checks it and sets unusable rows aside, each mixing adds its
matrix to the geometry, and the rule at the end computes one vector from geometry and points.
"""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, overload

import numpy as np
import torch
from torch import Tensor

from byzantium.core import (
    ArgumentTypeError,
    ByzantiumError,
    Stateful,
    TooManyRejected,
    fork_safe,
    type_name,
)
from byzantium.rules.report import Report, rejections
from byzantium.rules.stage import Stage, honest_of
from byzantium.vectors.geometry import Geometry, vectors_of
from byzantium.vectors.points import Array, GivenPoints, row_norms
from byzantium.vectors.source import Source, as_source

logger = logging.getLogger("byzantium")

# A vector of larger norm is no honest update, and the square of its norm could overflow its dtype.
LARGEST_NORM = {torch.float64: 1e150}
LARGEST_NORM_NARROW = 1e18


def admit(
    stages: Sequence[Stage],
    source: Source,
    centre: Tensor | None = None,
    bound: float = math.inf,
) -> tuple[GivenPoints, tuple[Stage, ...], dict[int, str]]:
    """Check vectors against a pipeline, and set unusable vectors aside.

    - `stages`: the steps of the pipeline.
    - `source`: the vectors.
    - `centre`: the centre that the rule holds, (d,), if it holds one.
    - `bound`: a number that no norm of a vector exceeds, if one is known already.

    Returns the usable vectors as points; the steps, with f smaller by the number of rejected rows;
    and for each of these the reason. Sizes are checked before any row is rejected, so that no f
    workers can make a pipeline fail by being rejected.

    >>> from byzantium import Krum
    >>> updates = torch.tensor([[1.0], [2.0], [3.0], [4.0], [torch.inf]])
    >>> admit([Krum(f=1)], as_source(updates))[1:]
    ((Krum(f=0),), {4: 'not finite, or of norm above 1e+18'})
    """
    given, n, readable = stages, source.n, source.readable
    stages = check_sizes(stages, n)
    largest = LARGEST_NORM.get(source.dtype, LARGEST_NORM_NARROW)
    steps = [step for stage in stages for step in stage.expansion]
    origin, honest = any(s.needs_origin for s in steps), lambda: honest_of(stages, n)
    anchors: dict[str, Tensor | None] = {"origin": None} if origin else {}
    if centre is not None:
        if centre.shape != (source.dimension,):
            raise ByzantiumError(
                f"{_named(given)} holds a centre of dimension {centre.numel()}, got vectors of "
                f"dimension {source.dimension}; reset() forgets it"
            )
        anchors["centre"] = source.part(centre)
    points = GivenPoints(source, readable, None, anchors, honest)
    within, unknown = bound <= largest, readable.size and source.norms is None  # a bound may be NaN
    if not within and unknown and any(step.measures for step in steps):
        within = source.presumed(points.longest() <= largest)
    reasons = dict(source.unreadable)
    if not within:
        norms = row_norms(source, readable)
        usable, nonsense = norms <= largest, f"not finite, or of norm above {largest:g}"
        reasons |= dict.fromkeys(readable[~usable].tolist(), nonsense)
        points = GivenPoints(source, readable[usable], norms[usable], anchors, honest)
    if reasons:
        bounds = [stage.bad for stage in stages if stage.bad is not None]
        allowed = min(bounds, default=n // 2)
        told = rejections(reasons, source)
        if len(reasons) > allowed:
            most = f"its f = {allowed}" if bounds else f"half of them, {allowed}"
            raise TooManyRejected(
                f"{_named(given)} can do without {most} of {n} vectors, but {len(reasons)} are "
                f"unusable: {told}",
                reasons,
            )
        logger.warning("rejected %d of %d vectors: %s", len(reasons), n, told)
        steps = [s for stage in stages for s in stage.with_fewer_bad(len(reasons)).expansion]
    return points, tuple(steps), reasons


def check_sizes(stages: Sequence[Stage], n: int) -> tuple[Stage, ...]:
    """The steps for n vectors, with all parameters known; raises if these are too few for a step.

    >>> from byzantium import Bucketing, Krum
    >>> check_sizes((Bucketing(s="auto", f=2) >> Krum(f=2)).stages, 25)
    (Bucketing(s=4, balanced=True, f=2), Krum(f=2))
    """
    left, steps = n, []
    for k, stage in enumerate(stages):
        step = stage.settled(left, stages[k + 1 :])
        try:
            step.check(left)
        except ByzantiumError as error:
            history = f" ({_named(stages[:k])} left {left} of {n})" if left != n else ""
            raise ByzantiumError(f"{error}{history}") from None
        left = step.rows(left) if isinstance(step, Mixing) else 1
        steps.append(step)
    return tuple(steps)


def withstand(stages: Sequence[Stage], n: int, f: int) -> bool:
    """Whether steps that end in a rule are defined for n vectors, and tolerate f bad ones."""
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


# -- mixings -----------------------------------------------------------------------------------


class Mixing(Stage, ABC):
    r"""A step before a rule that replaces the vectors by combinations of them, :math:`X \to P X`.

    The rows of the matrix P, of shape (m, n), sum to one. Mixings compose with `>>`: mixing >>
    mixing is a mixing, mixing >> rule is a rule. To write one, derive from this class and define
    `matrix`, and `rows` where m differs from n.

    >>> import numpy as np
    >>> class Neighbours(Mixing):
    ...     def matrix(self, geometry, generator):
    ...         same = np.eye(geometry.n)
    ...         return (same + np.roll(same, 1, axis=1)) / 2
    >>> Neighbours()(torch.tensor([[0.0], [2.0], [4.0]]))
    tensor([[1.],
            [3.],
            [2.]])
    """

    @abstractmethod
    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        """The matrix P, of shape (m, n), or (m, points) where the origin is mixed in.

        - `geometry`: distances and inner products of the vectors.
        - `generator`: what random mixings draw from; None means the operating system's entropy.
        """

    def rows(self, n: int) -> int:
        """How many vectors come out, m, when n go in."""
        return n

    def spoiled(self, f: int) -> int:
        """How many of the m vectors that come out can be bad when f of those that go in are."""
        return f

    @fork_safe
    def __call__(self, updates: Any, generator: torch.Generator | None = None) -> Tensor:
        """The mixed vectors, (m, d), to look at: pipelines never build them."""
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
    """Several steps, one after the other."""

    parts: tuple[Stage, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.parts

    def __repr__(self) -> str:
        return " >> ".join(map(repr, self.parts))


@dataclass(frozen=True, repr=False)
class Chain(_Composed, Mixing):
    """What `mixing >> mixing` makes: a mixing."""

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
    """The geometry after the mixings among some steps."""
    if not isinstance(generator, torch.Generator | None):
        raise ArgumentTypeError(
            f"generator must be a torch.Generator or None, got {type_name(generator)}"
        )
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
                    f"{step!r}: its rows() says that {wanted} vectors come out, but its matrix "
                    f"has {geometry.n} rows"
                )
    return geometry


# -- aggregators -------------------------------------------------------------------------------


class Aggregator(Stage, Stateful):
    """A rule, or a pipeline that ends in one: it makes one vector of n, (n, d) -> (d,).

    Call it with the workers' vectors; `explain` also says how much each worker counted. Rules of
    your own derive from `Weighting`, `CoordinateWise` or `MatrixRule`.

    - `delta_max`: the error stays bounded while the share of bad vectors is below this number.
      None can be above 1/2: whoever controls half of the vectors can imitate the other half.

    >>> from byzantium import Bucketing, Median
    >>> rule = Bucketing(s=2) >> Median()
    >>> updates = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [99.0, -99.0]])
    >>> rule(updates)
    tensor([1., 2.])
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

        - `updates`: one matrix (n, d) of torch or NumPy, or a sequence of n arrays, of n lists of
          numbers or arrays, or of n mappings of named arrays (state dicts). Entries of whole
          numbers (counters) take no part in distances; their result is their median, rounded down.
        - `generator`: what random mixings draw from; None means the operating system's entropy.
        - `base`: a vector, such as the current model, that is subtracted from each vector first and
          added to the result.
        - `strict`: if True, vectors that differ in form, keys, shapes or dtypes are an error. If
          False, those that differ from most are rejected, as are those that are not finite.

        Returns one vector, of the form, dtypes and device of those that went in.
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
        """Aggregate exactly as a call does, and report how much each worker counted."""
        source = as_source(updates, base=base, strict=strict)
        aggregate, weights, points, geometry, reasons = self._run(source, generator, explain=True)
        n, rows = source.n, points.rows
        known = np.full(geometry.points, np.nan) if weights is None else weights
        original = points.given(known @ geometry.mixing)
        worker_weights, mixing = np.zeros(n), np.zeros((geometry.n, n))
        worker_weights[rows] = original[: points.n]
        mixing[:, rows] = points.given(geometry.mixing[: geometry.n])[:, : points.n]
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
        """Whether the rule at the end knows how much each vector counted.

        "always" for a `Weighting`; "asked" for a `CoordinateWise` rule, which finds out only for
        `explain`, at some extra cost; "never" for a `MatrixRule`.
        """
        return _rule_of(self.stages[-1].expansion).weights_known

    def weigh(self, gram: Any, generator: torch.Generator | None = None) -> Tensor:
        """How much each of n vectors counts, (n,), from their Gram matrix (n, n), X @ X.T, alone.

        For weightings, and pipelines that end in one. State is neither used nor advanced.

        >>> from byzantium import Krum
        >>> X = torch.tensor([[0.9], [1.0], [1.1], [1.3], [9.0]])
        >>> Krum(f=1).weigh(X @ X.T)
        tensor([0., 1., 0., 0., 0.], dtype=torch.float64)
        """
        if self.knows_weights != "always":
            raise ByzantiumError(
                f"{self!r} needs the vectors themselves; their inner products are not enough"
            )
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
        """Try to aggregate in one reading, before it is known whether all vectors are usable.

        Returns what `Rule.finish` does, and a number that no norm exceeds. The result counts only
        if all rows turn out to be usable. A rule that cannot do this returns None, None, infinity.
        """
        return None, None, math.inf

    @property
    def centre(self) -> Tensor | None:
        """The centre, (d,), that the rule holds from its last call; None for most rules."""
        return None

    def remember(self, aggregate: Tensor) -> None:
        """Advance the state, if there is any, after an aggregation with this result."""

    def __rshift__(self, other: object) -> Any:
        raise ArgumentTypeError(f"{self!r} is a rule and ends a pipeline; mixings come before it")


def _rule_of(steps: Sequence[Stage]) -> Rule:
    """The last step, which aggregates."""
    rule = steps[-1]
    if not isinstance(rule, Rule):
        raise ByzantiumError(
            f"{type(rule).__name__} does not say how it aggregates; a rule derives from "
            "Weighting, CoordinateWise or MatrixRule"
        )
    return rule


@dataclass(frozen=True, repr=False)
class Pipeline(_Composed, Aggregator):
    """What `mixing >> rule` makes: a rule."""

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
    """A rule at the end of a pipeline, which does the aggregation; `rules` has the three kinds."""

    # Whether it knows how much each vector counted; see `knows_weights`.
    weights_known: ClassVar[Literal["always", "asked", "never"]]

    @abstractmethod
    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        """The aggregate, and the weights of the mixed points (which only `explain` needs)."""
