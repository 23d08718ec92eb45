"""A rule whose vectors are on many machines, of which none need live for long.

The driver calls the rule with no columns at all. Wherever the rule sums over columns, tasks compute
the sums of some columns each, and the driver adds them up in the order of the columns. A task has
no memory: it calls the same rule from the beginning, is told what was summed and decided so far,
reads its columns only once it is beyond that, and ends at the next sum. So any task can be done
again, on any machine, and the result does not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.vectors.team import Team

Array = NDArray[np.float64]


class Step(NamedTuple):
    """Numbers that the driver knows and tasks need.

    - `decided`: whether it is the decision of a rule, which ends what the tasks do for it.
    - `summed`: whether it is a sum over all columns.
    """

    numbers: Array
    decided: bool = False
    summed: bool = False


class _Decided(BaseException):  # no rule that catches errors should catch it
    """The driver has decided, and this task need not."""


class PartialSum(BaseException):  # no rule that catches errors should catch it
    """A task has come to the first sum that the driver does not know: its part of it.

    - `numbers`: the sum over the columns of the task.
    """

    def __init__(self, numbers: Array) -> None:
        super().__init__()
        self.numbers = numbers


class Leader(Team):
    """The team as the driver sees it, which has no columns and decides.

    - `d`: the dimension of the whole vectors.
    - `sum_parts`: returns the sums of all parts, in the order of the columns, from the steps so
      far.
    """

    def __init__(self, d: int, sum_parts: Callable[[Sequence[Step]], Sequence[Array]]) -> None:
        self.d, self.sum_parts, self.steps = d, sum_parts, list[Step]()
        self._deciding, self._pending = False, list[Step]()  # what tasks may never need
        self._parts: list[tuple[Tensor, int]] = []
        #: How many sums there were when the result was computed; None if that is not known.
        self.phase: int | None = None

    def dimension(self, d: int) -> int:
        return self.d

    def empty_part(self, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        part = super().empty_part(d, dtype, device)
        self._parts.append((part, sum(step.summed for step in self.steps)))
        return part

    def sum_to_leader(self, sums: Array) -> Array:
        self._add_pending()
        total: Array = np.add.reduce(self.sum_parts(self.steps), axis=0)
        self.steps.append(Step(total, summed=True))
        return total.copy()

    def broadcast(self, numbers: Array) -> Array:
        self._pending.append(Step(numbers.copy()))
        if not self._deciding:
            self._add_pending()
        return numbers

    def decide_on_leader(self, decide: Callable[[], Array]) -> Array:
        self._deciding = True
        try:
            decision = decide()
        finally:
            self._deciding = False
        self._pending.clear()
        self.steps.append(Step(decision.copy(), decided=True))
        return decision

    def _add_pending(self) -> None:
        self.steps += self._pending
        self._pending.clear()

    def local_part(self, vector: Tensor) -> Tensor:
        return vector[:0]

    def gather_whole(self, vector: Tensor) -> Tensor:
        """The aggregate stays where it is; from now on it is known when it was computed."""
        self.phase = next((phase for part, phase in self._parts if part is vector), None)
        return vector


class Follower(Team):
    """The team as a task sees it, which has some columns and follows the driver.

    - `d`: the dimension of the whole vectors.
    - `steps`: what the driver knows.
    - `phase`: after how many sums the task reads its columns; None for always.
    """

    def __init__(self, d: int, steps: Sequence[Step], phase: int | None) -> None:
        self.d, self.steps, self.phase = d, steps, phase
        self._place, self._sums = 0, 0

    @property
    def reads(self) -> bool:
        return self.phase in (None, self._sums)

    def dimension(self, d: int) -> int:
        return self.d

    def sum_to_leader(self, sums: Array) -> Array:
        if self._place == len(self.steps):
            raise PartialSum(sums)
        numbers = self._next()
        self._sums += 1
        return numbers

    def broadcast(self, numbers: Array) -> Array:
        return self._next().reshape(numbers.shape)

    def decide_on_leader(self, decide: Callable[[], Array]) -> Array:
        try:
            if not self._comes_decision():
                decide()  # for the sums that it needs
        except _Decided:
            pass
        self._place += 1
        return self.steps[self._place - 1].numbers.copy()

    def _comes_decision(self) -> bool:
        return self._place < len(self.steps) and self.steps[self._place].decided

    def _next(self) -> Array:
        if self._comes_decision():
            raise _Decided
        self._place += 1
        return self.steps[self._place - 1].numbers.copy()
