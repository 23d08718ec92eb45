"""What happened in a simulation, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from byzantium.core import ByzantiumError

Status = Literal["running", "completed", "diverged"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass
class History:
    """What happened in a simulation, round by round.

    - `rounds`: for each round a mapping from names to what was recorded: "round", "loss" (the
      honest participants' mean training loss; NaN if there is none) and what `Settings.record` asks
      for.
    - `evaluations`: for each evaluation on the test set a mapping: "round", "loss" and, where there
      are classes, "accuracy" (percent).
    - `status`: "running", "completed", or "diverged" if the last round gave numbers that are not
      finite.

    >>> history = History([{"round": 1, "loss": 0.7}], [{"round": 1, "accuracy": 80.0}], "diverged")
    >>> history.accuracy, history.outcome
    (80.0, 'diverged in round 1')
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    status: Status = "running"

    @property
    def accuracy(self) -> float:
        """The test accuracy of the last evaluation, in percent.

        NaN before the first evaluation, and where there are no classes.
        """
        last: dict[str, Any] = self.evaluations[-1] if self.evaluations else {}
        return float(last.get("accuracy", math.nan))

    @property
    def diverged_in(self) -> int | None:
        """The number of the round in which it diverged, counted from 1; None if it did not."""
        return len(self.rounds) if self.status == "diverged" else None

    @property
    def outcome(self) -> str:
        """The status in words, such as "completed" or "diverged in round 17"."""
        diverged = self.status == "diverged"
        return f"diverged in round {self.diverged_in}" if diverged else self.status

    def state_dict(self) -> dict[str, Any]:
        """The history as plain values, which `of` reads again."""
        return {**vars(self), "status": self.outcome}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """The history that `state_dict` wrote; raises where status and rounds contradict."""
        for status in STATUSES:
            history = cls(list(state["rounds"]), list(state["evaluations"]), status)
            if history.outcome == state["status"]:
                return history
        raise ByzantiumError(
            f"its history has {len(state['rounds'])} rounds, and cannot be {state['status'][:40]!r}"
        )
