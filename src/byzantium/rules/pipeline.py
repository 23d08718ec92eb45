"""The flow that every rule and mixing shares: admission, composition, aggregation, reports.

Rules that can, aggregate speculatively (`try_before_admission`). `admit` checks the vectors and
rejects unusable rows. If it rejects none, a speculative result counts. Otherwise each mixing adds
its matrix to the geometry, and the rule computes one vector from geometry and points.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import (
    ArgumentTypeError,
    ByzantiumError,
    Stateful,
    TooManyRejected,
    fork_safe,
    type_name,
)
from byzantium.rules.admission import admit
from byzantium.rules.outcome import Attempt, Outcome
from byzantium.rules.report import Report
from byzantium.rules.shares import check_places, check_takes_weights
from byzantium.rules.stage import FormerHook, Stage, pipeline_repr
from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import Geometry, vectors_of
from byzantium.vectors.source import Source
from byzantium.vectors.weights import Vouched, Weights

# -- mixings -----------------------------------------------------------------------------------


class Mixing(Stage, ABC):
    r"""A stage before a rule that replaces the vectors by combinations of them, :math:`X \to P X`.

    The rows of the matrix P, of shape (m, n), sum to one. Mixings compose with `>>`: mixing >>
    mixing is a mixing, mixing >> rule is a rule. To write one, derive from this class and define
    `matrix`, and `rows` where m differs from n.

    >>> import numpy as np
    >>> class Neighbors(Mixing):
    ...     def matrix(self, geometry, generator):
    ...         same = np.eye(geometry.n)
    ...         return (same + np.roll(same, 1, axis=1)) / 2
    >>> Neighbors()(torch.tensor([[0.0], [2.0], [4.0]]))
    tensor([[1.],
            [3.],
            [2.]])
    """

    spoiled = FormerHook()
    # Whether the matrix depends on nothing except the number of vectors and the generator. Then one
    # reading of the vectors mixes, aggregates and checks them.
    oblivious: ClassVar[bool] = False
    #: Whether vector i that comes out is that of worker i, made a little different by the others.
    keeps_workers: ClassVar[bool] = True
    #: Whether each vector that comes out is one that goes in: the rule then reads these, in order.
    selects: ClassVar[bool] = False

    @abstractmethod
    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        """The matrix P, of shape (m, n), or (m, points) where the origin is mixed in.

        - `geometry`: distances and inner products of the vectors.
        - `generator`: what random mixings draw from; None means the operating system's entropy.
        """

    def rows(self, n: int) -> int:
        """How many vectors come out, m, when n go in."""
        return n

    def bad_outputs(self, f: int) -> int:
        """How many of the m vectors that come out can be bad when f of those that go in are."""
        return f

    def worst_places(self, n: int, f: int) -> NDArray[np.int64] | None:
        """Where f bad vectors do most harm among the n that go in; None if places do not matter."""
        return None

    def mixed_weights(self, matrix: Array, weights: Weights) -> Weights:
        """The weights of the vectors that come out, from those of the vectors that go in."""
        return weights

    @fork_safe
    def __call__(
        self, updates: Any, generator: torch.Generator | None = None, *, weights: Any = None
    ) -> Tensor:
        """The mixed vectors, (m, d), to look at: pipelines never build them."""
        call = Vouched(updates, weights)
        call.source.check_coordinates(self)
        check_places(self.stages, call)
        points, stages, _, vouched = admit(self.stages, call.source, vouched=call.weights)
        geometry = mixed_geometry(Geometry.of(points, vouched), stages, generator)
        return geometry.rows().to(call.source.dtype)

    @overload
    def __rshift__(self, other: Mixing) -> Mixing: ...
    @overload
    def __rshift__(self, other: Aggregator) -> Aggregator: ...
    def __rshift__(self, other: Mixing | Aggregator) -> Mixing | Aggregator:
        if isinstance(other, Mixing):
            return Chain(self.stages + other.stages)
        if isinstance(other, Aggregator):
            from byzantium.rules.composition import Pipeline  # which needs this file

            return Pipeline(self.stages + other.stages)
        return NotImplemented


class _Composed(Stage):
    """Several stages, one after the other."""

    parts: tuple[Stage, ...]

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.parts

    @property
    def needs_root(self) -> bool:
        return any(part.needs_root for part in self.parts)

    def on_graph(self, weights: Array) -> Self:
        return type(self)(tuple(part.on_graph(weights) for part in self.parts))

    def __repr__(self) -> str:
        return pipeline_repr(self.parts)


@dataclass(frozen=True, repr=False)
class Chain(_Composed, Mixing):
    """The result of `mixing >> mixing`: a mixing."""

    parts: tuple[Stage, ...]

    def rows(self, n: int) -> int:
        for part in self.parts:
            n = part.rows(n)
        return n

    def bad_outputs(self, f: int) -> int:
        for part in self.parts:
            assert isinstance(part, Mixing)
            f = part.bad_outputs(f)
        return f

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        mixed = mixed_geometry(geometry.rebased(), self.parts, generator)
        return mixed.mixing[: mixed.n]


def mixed_geometry(
    geometry: Geometry, stages: Sequence[Stage], generator: torch.Generator | None
) -> Geometry:
    """The geometry after the mixings among some stages."""
    if not isinstance(generator, torch.Generator | None):
        raise ArgumentTypeError(
            f"generator must be a torch.Generator or None, got {type_name(generator)}"
        )
    for stage in stages:
        if isinstance(stage, Mixing):
            separate = stage.separate and geometry.separable
            matrix = geometry.basis.source.team.broadcast(stage.matrix(geometry, generator))
            rows, vouched = stage.rows(geometry.n), geometry.vouched
            try:
                weights = None if vouched is None else stage.mixed_weights(matrix, vouched)
                geometry = geometry.mixed(matrix, weights, selects=stage.selects)
            except ByzantiumError as error:
                raise ByzantiumError(f"{stage!r}: {error}") from error
            if separate:
                geometry = geometry.computed()
            if geometry.n != rows:
                raise ByzantiumError(
                    f"{stage!r}: its rows() says that {rows} vectors come out, but its matrix "
                    f"has {geometry.n} rows"
                )
    return geometry


# -- aggregators -------------------------------------------------------------------------------


class Aggregator(Stage, Stateful):
    """A rule, or a pipeline that ends in one: it makes one vector of n, (n, d) -> (d,).

    Call it with the workers' vectors; `explain` also says how much each worker counted. Rules of
    your own derive from `Weighting`, `CoordinateWise` or `MatrixRule`.

    - `delta_max`: the error stays bounded while the share of bad vectors is below this number.
      None can be above 1/2 without a root gradient: who controls half of the vectors can imitate
      the other half.

    >>> from byzantium import Bucketing, Median
    >>> rule = Bucketing(s=2) >> Median()
    >>> updates = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [99.0, -99.0]])
    >>> rule(updates)
    tensor([1., 2.])
    """

    delta_max: ClassVar[float] = 1 / 2
    one_pass = FormerHook()
    centre = FormerHook()  # former name

    @overload
    def __call__(
        self,
        updates: Tensor,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
        root: Any = None,
        weights: Any = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
        root: Any = None,
        weights: Any = None,
    ) -> Any: ...
    @fork_safe
    def __call__(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
        root: Any = None,
        weights: Any = None,
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
        - `root`: the root gradient, of the form of one vector: what the server computed on data
          that it trusts, in the same way as the workers (the base is subtracted from it, too).
          `RootMatching` and `FLTrust` need it, other rules ignore it.
        - `weights`: how much each vector counts, n numbers that you vouch for, such as verified
          sizes of sites (docs/do/weights.md); never what workers say of themselves. The result is
          that of `updates` with row i there w_i times, and f is the number of sites: F, the sum of
          the f largest weights, is what the rule tolerates. By default all count the same.

        Returns one vector, of the form, dtypes and device of those that went in.
        """
        call = Vouched(updates, weights, base=base, strict=strict)
        outcome = self._run(call, generator, explain=False, root=root)
        return call.source.result(outcome.aggregate, outcome.points.rows)

    @fork_safe
    def explain(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        base: Any = None,
        strict: bool = True,
        root: Any = None,
        weights: Any = None,
    ) -> Report:
        """Aggregate exactly as a call does, and report how much each worker counted."""
        call = Vouched(updates, weights, base=base, strict=strict)
        outcome = self._run(call, generator, explain=True, root=root)
        aggregate, counted, points, geometry, reasons = outcome
        n, rows = call.n, call.rows[points.rows]
        if counted is None:
            counted = np.full(geometry.points, np.nan)
        original = points.source_weights(counted @ geometry.mixing)
        worker_weights, mixing = np.zeros(n), np.zeros((geometry.n, n))
        worker_weights[rows] = original[: points.n]
        mixing[:, rows] = points.source_weights(geometry.mixing[: geometry.n])[:, : points.n]
        return Report(
            call.source.result(aggregate, points.rows),
            torch.from_numpy(worker_weights),
            float(original[points.n :].sum()),
            tuple(sorted(reasons)),
            torch.from_numpy(mixing),
            reasons,
            tuple(geometry.notes),
            call.shares,
        )

    @property
    def knows_weights(self) -> Literal["always", "asked", "never"]:
        """Whether the rule at the end knows how much each vector counted.

        "always" for a `Weighting`; "asked" for a `CoordinateWise` rule, which finds out only for
        `explain`, at some extra cost; "never" for a `MatrixRule`.
        """
        return last_rule(self.stages[-1].expansion).weights_known

    def weigh(self, gram: Any, generator: torch.Generator | None = None) -> Tensor:
        """How much each of n vectors counts, (n,), from their Gram matrix (n, n), X @ X.T, alone.

        For weightings, and pipelines that end in one. State is neither used nor advanced.

        >>> from byzantium import Krum
        >>> X = torch.tensor([[0.9], [1.0], [1.1], [1.3], [9.0]])
        >>> Krum(f=1).weigh(X @ X.T)
        tensor([0., 1., 0., 0., 0.], dtype=torch.float64)
        """
        if self.knows_weights != "always" or self.needs_root:
            raise ByzantiumError(
                f"{self!r} needs the vectors themselves; their inner products are not enough"
            )
        rule = copy.deepcopy(self)
        rule.reset()
        return rule.explain(vectors_of(gram), generator).weights

    @fork_safe
    def preview(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        root: Any = None,
        weights: Any = None,
    ) -> Any:
        """What a call would return, without its effect on the state: for attackers who try it."""
        call = Vouched(updates, weights)
        outcome = self._run(call, generator, explain=False, root=root, advance=False)
        return call.source.result(outcome.aggregate, outcome.points.rows)

    def _run(
        self,
        call: Vouched,
        generator: torch.Generator | None,
        explain: bool,
        root: Any,
        advance: bool = True,
    ) -> Outcome:
        source, vouched = call.source, call.weights
        check_places(self.stages, call)
        if vouched is None:
            speculative, weights, norm_bound = self._attempt(source, generator, explain)
        else:
            check_takes_weights(self.stages)
            speculative, weights, norm_bound = self.try_with_weights(source, vouched, explain)
        try:
            admission = admit(self.stages, source, self.center, norm_bound, root, vouched)
        except TooManyRejected as error:
            raise TooManyRejected(str(error), call.among_all(error.reasons)) from None
        points, stages, reasons, vouched = admission
        reasons = call.among_all(reasons)
        geometry = mixed_geometry(Geometry.of(points, vouched), stages, generator)
        if speculative is not None and not reasons:
            whole = source.team.gather_whole(speculative)
            return Outcome(whole, weights, points, geometry, reasons)
        aggregate, weights = last_rule(stages).finish(geometry, explain)
        whole = source.team.gather_whole(aggregate)
        if advance:
            self.advance(geometry, whole, weights)
        return Outcome(whole, weights, points, geometry, reasons)

    def try_before_admission(self, source: Source, explain: bool) -> Attempt:
        """Try to aggregate in one reading, before it is known whether all vectors are usable.

        The result is speculative: it counts only if all rows turn out to be usable. A rule that
        cannot do this returns `Attempt()`.
        """
        return Attempt()

    def try_with_weights(self, source: Source, vouched: Weights, explain: bool) -> Attempt:
        """The same where the operator vouches for weights."""
        return Attempt()

    def _attempt(self, source: Source, generator: torch.Generator | None, explain: bool) -> Attempt:
        return self.try_before_admission(source, explain)

    @property
    def center(self) -> Tensor | None:
        """The center, (d,), that the rule holds from its last call; None for most rules."""
        return None

    def advance(self, geometry: Geometry, aggregate: Tensor, weights: Array | None) -> None:
        """Advance the state after an aggregation, if it depends on more than the result.

        - `geometry`: that of the vectors that the rule got.
        - `aggregate`, `weights`: the result, (d,), and the weights of the points, if known.
        """
        self.remember(aggregate)

    def remember(self, aggregate: Tensor) -> None:
        """Advance the state, if there is any, after an aggregation with this result."""

    def __rshift__(self, other: object) -> Any:
        raise ArgumentTypeError(f"{self!r} is a rule and ends a pipeline; mixings come before it")


def last_rule(stages: Sequence[Stage]) -> BaseRule:
    """The last stage, which aggregates."""
    rule = stages[-1]
    if not isinstance(rule, BaseRule):
        raise ByzantiumError(
            f"{type(rule).__name__} does not say how it aggregates; a rule derives from "
            "Weighting, CoordinateWise or MatrixRule"
        )
    return rule


class BaseRule(Aggregator, ABC):
    """A rule that aggregates by itself, at the end of a pipeline; `kinds` has the three types."""

    # Whether it knows how much each vector counted; see `knows_weights`.
    weights_known: ClassVar[Literal["always", "asked", "never"]]

    def try_mixed(self, source: Source, mixing: Array | None) -> Attempt:
        """`try_before_admission`, of the vectors after they were mixed by a matrix."""
        return Attempt()

    @abstractmethod
    def finish(self, geometry: Geometry, explain: bool) -> tuple[Tensor, Array | None]:
        """The aggregate, and the weights of the mixed points (which only `explain` needs)."""
