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
    """What happened. Each round and each evaluation is a mapping of names to numbers.

    status: "running", "completed" or "diverged", which it did in its last round.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    status: Status = "running"

    @property
    def accuracy(self) -> float:
        """Of the last evaluation, in percent; NaN before one, and where there are no classes."""
        return (
            float(self.evaluations[-1].get("accuracy", math.nan)) if self.evaluations else math.nan
        )

    @property
    def diverged_in(self) -> int | None:
        """The round in which it diverged; None if it did not."""
        return len(self.rounds) if self.status == "diverged" else None

    @property
    def outcome(self) -> str:
        """The status as files have it, with the round in which it diverged."""
        diverged = self.status == "diverged"
        return f"diverged in round {self.diverged_in}" if diverged else self.status

    def state_dict(self) -> dict[str, Any]:
        """The history as files have it."""
        return {
            "rounds": self.rounds,
            "evaluations": self.evaluations,
            "status": self.outcome,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """From what `state_dict` gave; a sentence where the outcome is not one of these rounds."""
        for status in STATUSES:
            history = cls(list(state["rounds"]), list(state["evaluations"]), status)
            if history.outcome == state["status"]:
                return history
        raise ByzantiumError(
            f"its history of {len(state['rounds'])} rounds is {state['status'][:40]!r}"
        )
