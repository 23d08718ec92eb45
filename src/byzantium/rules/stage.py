"""What rules and mixings have in common: both are steps of a pipeline."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Self

from byzantium.core import ByzantiumError, Formula


class Stage(Formula):
    """One step of a pipeline: a mixing or a rule.

    A *bad* vector is one of a Byzantine worker: it may be anything.

    >>> from byzantium import Bucketing, Krum
    >>> (Bucketing(s=2) >> Krum(f=5)).stages
    (Bucketing(s=2), Krum(f=5))
    """

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps that a pipeline consists of, as the user wrote them."""
        return (self,)

    @property
    def expansion(self) -> tuple[Stage, ...]:
        """The steps that this one is short for: `Bulyan`, for instance, is two; most are one."""
        return (self,)

    @property
    def needs_origin(self) -> bool:
        """Whether this step uses the origin, as clipping does; see `Geometry.origin`."""
        return False

    @property
    def measures(self) -> bool:
        """Whether this step looks at distances: then one reading measures and checks vectors."""
        return False

    @property
    def bad(self) -> int | None:
        """How many vectors may be bad: its parameter f; None if it has no such parameter."""
        return getattr(self, "f", None)

    def least(self) -> tuple[int, str]:
        """The smallest number of vectors it is defined for, and the formula of that number.

        By default 2f + 1, so that honest vectors are in the majority; 1 without an f.
        """
        return (1, "1") if self.bad is None else (2 * self.bad + 1, "2f + 1")

    def check(self, n: int) -> None:
        """Raise a `ByzantiumError` unless this step is defined for n vectors."""
        least, formula = self.least()
        if n < least:
            bound = formula if formula == str(least) else f"{formula} = {least}"
            raise ByzantiumError(f"{self!r} needs at least {bound} vectors, got {n}")

    def settled(self, n: int, behind: Sequence[Stage]) -> Stage:
        """This step with all parameters known, given n vectors and the steps that come after it.

        Most steps are returned as they are; `Bucketing(s="auto")` gets its s here.
        """
        return self

    def with_fewer_bad(self, rejected: int) -> Self:
        """This step with f smaller by the number of vectors that were already rejected."""
        if self.bad is None:
            return self
        step = copy.copy(self)
        object.__setattr__(step, "f", self.bad - rejected)
        return step


def honest_of(steps: Sequence[Stage], n: int) -> int:
    """How many of n vectors must be honest for a pipeline of these steps to promise anything.

    >>> from byzantium import Bucketing, CenteredClipping, GeometricMedian, Krum
    >>> steps = [Krum(f=5)], [Bucketing(s=2), GeometricMedian()], [CenteredClipping(radius=1)]
    >>> [honest_of(some, 25) for some in steps]
    [20, 13, 23]
    """
    largest = getattr(steps[-1], "delta_max", 1 / 2)
    bounds = [step.bad for step in steps if step.bad is not None]
    return n - max(0, min([math.ceil(largest * n) - 1, *bounds]))
