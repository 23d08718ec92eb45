"""Aggregation in levels: a rule within each group of vectors, and one over the groups' results."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, Positive
from byzantium.rules.admission import check_sizes
from byzantium.rules.kinds import Weighting
from byzantium.rules.mixing import random_permutation, tolerated
from byzantium.rules.pipeline import Aggregator, Mixing, mixed_geometry
from byzantium.rules.stage import Rejected, Stage, after_rejection, most_bad
from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import Geometry

Indices = NDArray[np.int64]

# What rules define that keep a state from call to call.
STATE_HOOKS = ("advance", "remember")


@dataclass(frozen=True, repr=False)
class Hierarchy(Mixing):
    r"""Aggregates each group of vectors by a rule of its own, as edge servers do before a center.

    .. math:: y_g = \mathrm{inner}(x_i : i \in G_g)

    The rule that follows aggregates the results of the groups: `Hierarchy(groups, inner) >> outer`.
    If a group tolerates :math:`f_\mathrm{in}` bad vectors, at most
    :math:`\lfloor f / (f_\mathrm{in} + 1) \rfloor` of the results are bad, and the outer rule
    must be built for so many; docs/guarantees.md has the bound. Only distances within groups and
    between their results are needed, so many thousands of vectors take little memory.

    - `groups`: how many groups there are, whose sizes then differ by at most one; or the sizes of
      the groups, such as (30, 50, 20), which must add up to n.
    - `inner`: the rule within groups: `Mean`, or another one that gives weights, with mixings
      before it if wanted.
    - `deal`: which vectors are in which group. "order": the first ones are the first group, and so
      on, as edge servers have members of their own. "random": a new random permutation in each
      call decides, as in `Bucketing`.

    If vectors of a group are rejected, its rule goes on with the others and a smaller f; a group of
    which too few are left for that has more bad vectors than it tolerates, and its result is their
    mean (that of all vectors if none is left).

    Groups of groups are hierarchies of more levels: `inner` may be such a pipeline.

    >>> from byzantium import GeometricMedian, Median
    >>> rule = Hierarchy(groups=3, inner=GeometricMedian()) >> Median()
    >>> rule(torch.tensor([[1.0], [1.2], [99.0], [1.1], [1.0], [1.3], [77.0], [88.0], [99.0]]))
    tensor([1.2000])
    """

    groups: Positive | tuple[Positive, ...]
    inner: Aggregator
    deal: Literal["order", "random"] = "order"

    def check_parameters(self) -> None:
        if not self.groups:
            raise ByzantiumError("Hierarchy needs at least one group, got groups=()")
        name = repr(self.inner)
        if self.inner.knows_weights != "always":
            raise ByzantiumError(
                f"{name} does not give a weight to each vector; within groups, Hierarchy takes "
                "Mean(), GeometricMedian() or another rule from distances. A rule by coordinate "
                "can be the outer one: Hierarchy(...) >> Median()"
            )
        if self.inner.needs_root:
            raise ByzantiumError(
                f"{name} needs the root gradient, which groups do not have; it can be the outer "
                "rule: Hierarchy(...) >> RootMatching(f=...)"
            )
        rule = type(self.inner.stages[-1])
        if any(getattr(rule, hook) is not getattr(Aggregator, hook) for hook in STATE_HOOKS):
            raise ByzantiumError(
                f"{name} keeps a state from call to call, which groups do not have; a rule with a "
                "center can be the outer one"
            )

    # -- sizes -----------------------------------------------------------------------------------

    def rows(self, n: int) -> int:
        return len(self.groups) if isinstance(self.groups, tuple) else self.groups

    def sizes(self, n: int) -> Indices:
        """How many of n vectors are in each group."""
        if isinstance(self.groups, tuple):
            return np.array(self.groups)
        return n // self.groups + (np.arange(self.groups) < n % self.groups)

    def min_vectors(self) -> tuple[int, str]:
        return self.rows(0), "groups"

    def check(self, n: int) -> None:
        if isinstance(self.groups, tuple) and sum(self.groups) != n:
            raise ByzantiumError(
                f"{self!r} has groups of {sum(self.groups)} vectors in all, got {n}"
            )
        super().check(n)
        for size in np.unique(self.sizes(n)).tolist():
            try:
                check_sizes(self.inner.stages, size)
            except ByzantiumError as error:
                raise ByzantiumError(f"{self!r}: in a group of {size}, {error}") from None

    def resolved(self, n: int, following: Sequence[Stage]) -> Stage:
        return self._with("_n", n)

    def _with(self, name: str, value: Any) -> Self:
        stage = copy.copy(self)
        object.__setattr__(stage, name, value)
        return stage

    # -- bad vectors -----------------------------------------------------------------------------

    @property
    def group_f(self) -> int:
        """How many bad vectors each group tolerates at least, f_in."""
        n = self.__dict__.get("_n", 0 if isinstance(self.groups, int) else sum(self.groups))
        if n < self.rows(n):
            raise ByzantiumError(
                f"{self!r} does not know the sizes of its groups until a pipeline is called"
            )
        return min(tolerated(self.inner, size) for size in np.unique(self.sizes(n)).tolist())

    def bad_outputs(self, f: int) -> int:
        return f // (self.group_f + 1)

    def bad_inputs(self, outputs: int) -> int:
        return (outputs + 1) * (self.group_f + 1) - 1

    def worst_places(self, n: int, f: int) -> Indices | None:
        if self.deal == "random":
            return None
        # One more than a group tolerates, in one group after the other; once these are most groups,
        # the others go to the same groups in turn.
        sizes, spread = self.sizes(n), self.group_f + 1
        group = np.arange(len(sizes)).repeat(sizes)
        within = np.arange(n) - (sizes.cumsum() - sizes).repeat(sizes)
        turn = np.where(within < spread, 0, within)
        return np.lexsort((within, group, turn, group > len(sizes) // 2))[:f]

    def after_rejection(self, rejected: Rejected) -> Stage:
        return self._with("_rejected", rejected)

    def rejected_outputs(self, rejected: Rejected) -> Rejected:
        return Rejected(self.rows(rejected.n), np.arange(0), 0)

    # -- the matrix ------------------------------------------------------------------------------

    @property
    def needs_origin(self) -> bool:
        return any(step.needs_origin for stage in self.inner.stages for step in stage.expansion)

    @property
    def separate(self) -> bool:
        return True

    @property
    def placed(self) -> bool:
        return self.deal == "order" or any(stage.placed for stage in self.inner.stages)

    def matrix(self, geometry: Geometry, generator: torch.Generator | None) -> Array:
        n, separable = geometry.n, geometry.separable
        matrix = np.zeros((self.rows(n), geometry.points))
        for row, (members, rejected) in zip(matrix, self._dealt(geometry, generator), strict=True):
            steps = self._steps(rejected)
            if not len(members):
                row[:n] = 1 / n
            elif steps is None:
                row[members] = 1 / len(members)
            else:
                subset = geometry.subset(members)
                basis, rule = subset.basis, steps[-1]
                part = mixed_geometry(subset, steps, generator)
                assert isinstance(rule, Weighting)
                weights = rule.point_weights(part) @ part.mixing
                weights = basis.source_weights(weights) if separable else weights
                row[members] = weights[: len(members)]
                row[n:] = weights[len(members) :]
        return matrix

    def _dealt(
        self, geometry: Geometry, generator: torch.Generator | None
    ) -> Iterator[tuple[Indices, Rejected]]:
        """The rows of each group, and what was rejected of it."""
        rejected = self.__dict__.get("_rejected", Rejected(geometry.n, np.arange(0), 0))
        n, order = rejected.n, np.arange(rejected.n)
        if self.deal == "random":
            drawn = random_permutation(n, generator).astype(np.float64)
            order = geometry.basis.source.team.broadcast(drawn).astype(np.int64)
        left = np.ones(n, dtype=bool)
        left[rejected.places] = False
        rows = left.cumsum() - 1
        for group in np.split(order, self.sizes(n).cumsum()[:-1]):
            places = np.flatnonzero(~left[group])
            yield rows[group[left[group]]], Rejected(len(group), places, len(places))

    def _steps(self, rejected: Rejected) -> list[Stage] | None:
        """The stages within a group of which some are rejected; None if too few are left."""
        stages: Sequence[Stage] = check_sizes(self.inner.stages, rejected.n)
        if rejected.bad:
            most = most_bad(stages)
            if rejected.bad > (rejected.n if most is None else most):
                return None
            stages = after_rejection(stages, rejected)
        return [one for stage in stages for one in stage.expansion]
