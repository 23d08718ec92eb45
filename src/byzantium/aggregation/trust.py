"""Who was heard over many rounds, and who was not: weights, rejections and absences by worker."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from byzantium.aggregation.pipeline import Report
from byzantium.core import ByzantiumError

# Nobody is called unheard for fewer rounds: behind buckets, a liar's mate is weighed down with it.
FEWEST_ROUNDS = 5
# Who is unheard has less than this part of an equal share of the weight, beyond chance.
UNHEARD = 0.5
# How many standard errors are beyond chance.
ERRORS = 3.0

MEANINGS = {
    "rejected": (
        "What it sent could not be used, and never touched the model. It is broken or hostile; "
        "which of both, this does not say."
    ),
    "unheard": (
        "Its vectors were so far from most that the rule gave it little weight, round after round. "
        "It may lie. It may as well be honest and hold data that nobody else has."
    ),
    "absent": "It sent nothing. This says nothing of its intentions.",
}


# What weights over rounds say of workers, and what they do not.
CAUTION = (
    "A weight says whom the rule listened to, not who lies. Attackers that copy an honest worker "
    "(mimics) cannot be told from it. Attackers may be those who are heard most: then the rule has "
    "failed. And an honest worker whose data nobody else has may go unheard."
)


@dataclass
class Standing:
    """What is known of one worker.

    rounds:     in how many it was used; in these its weight counts.
    weight:     the mean of its weight, in equal shares: 1 is as much as the others of its rounds.
    spread:     the standard deviation of that.
    rejections: in how many rounds it was rejected; `reason` is that of the last.
    absences:   in how many rounds it sent nothing.
    """

    rounds: int = 0
    total: float = 0.0
    squares: float = 0.0
    rejections: int = 0
    reason: str = ""
    absences: int = 0

    @property
    def weight(self) -> float:
        return self.total / self.rounds if self.rounds else math.nan

    @property
    def spread(self) -> float:
        if self.rounds < 2:
            return math.nan
        around = self.squares - self.rounds * self.weight**2
        return math.sqrt(max(0.0, around) / (self.rounds - 1))


class Trust:
    """Adds up reports, round by round, and names who was rejected or went unheard.

    >>> from byzantium import GeometricMedian
    >>> trust, rule = Trust(), GeometricMedian()
    >>> for _ in range(8):
    ...     honest = 1 + torch.randn(6, 20)
    ...     trust.add(rule.explain(torch.cat([honest, torch.full((1, 20), -50.0)])))
    >>> list(trust.unheard())
    [6]
    """

    def __init__(self) -> None:
        self.workers: dict[Any, Standing] = {}

    def add(
        self,
        report: Report,
        workers: Sequence[Hashable] | None = None,
        absent: Iterable[Hashable] = (),
    ) -> None:
        """One more round.

        workers: whose the vectors of the report are, in their order; by default 0, 1, 2, ...
        absent:  the workers who were asked and sent nothing.
        """
        weights = report.weights.tolist()
        names = list(range(len(weights))) if workers is None else list(workers)
        if len(names) != len(weights):
            raise ByzantiumError(f"the report has {len(weights)} workers, got {len(names)} names")
        rejected = {names[k]: report.reasons.get(k, "rejected") for k in report.rejected}
        used = {w: v for w, v in zip(names, weights, strict=True) if w not in rejected}
        self.update(used, rejected, absent)

    def update(
        self,
        weights: Mapping[Any, float],
        rejected: Mapping[Any, str] | None = None,
        absent: Iterable[Hashable] = (),
    ) -> None:
        """One more round, from the weights of those who were used; NaN is no weight."""
        for worker, weight in weights.items():
            share = weight * len(weights)
            standing = self._of(worker)
            if math.isfinite(share):
                standing.rounds += 1
                standing.total += share
                standing.squares += share**2
        for worker, reason in (rejected or {}).items():
            standing = self._of(worker)
            standing.rejections += 1
            standing.reason = reason
        for worker in absent:
            self._of(worker).absences += 1

    def _of(self, worker: Hashable) -> Standing:
        return self.workers.setdefault(worker, Standing())

    def state(self) -> str:
        """All of it, as text; workers are whole numbers or texts."""
        return json.dumps([[worker, asdict(s)] for worker, s in self.workers.items()])

    @classmethod
    def of(cls, state: str) -> Trust:
        """What `state` wrote down."""
        trust = cls()
        trust.workers = {worker: Standing(**values) for worker, values in json.loads(state)}
        return trust

    def rejected(self) -> dict[Any, Standing]:
        """Those of whom something was rejected."""
        return {w: s for w, s in self.workers.items() if s.rejections}

    def absent(self) -> dict[Any, Standing]:
        """Those who once sent nothing."""
        return {w: s for w, s in self.workers.items() if s.absences}

    def unheard(self) -> dict[Any, Standing]:
        """Those whose mean weight is too small for chance.

        What chance does is read off the spread of all workers about their own means: where a rule
        picks one worker a round, most are silent most of the time, and that says little.
        """
        several = [s for s in self.workers.values() if s.rounds > 1]
        freedom = sum(s.rounds - 1 for s in several)
        if not freedom:
            return {}
        deviation = math.sqrt(sum(s.spread**2 * (s.rounds - 1) for s in several) / freedom)
        return {
            worker: s
            for worker, s in self.workers.items()
            if s.rounds >= FEWEST_ROUNDS
            and s.weight + ERRORS * deviation / math.sqrt(s.rounds) < UNHEARD
        }

    def sentences(self) -> list[str]:
        """Who was rejected, went unheard or was absent, and what that means and does not mean."""
        told = [
            f"{worker}: rejected in {s.rejections} rounds, the last time: {s.reason}. "
            + MEANINGS["rejected"]
            for worker, s in self.rejected().items()
        ]
        told += [
            f"{worker}: unheard, with {s.weight:.2f} (spread {s.spread:.2f}) of an equal weight in "
            f"{s.rounds} rounds. " + MEANINGS["unheard"]
            for worker, s in self.unheard().items()
        ]
        told += [
            f"{worker}: absent in {s.absences} rounds. " + MEANINGS["absent"]
            for worker, s in self.absent().items()
        ]
        return told
