"""Trust in workers over many rounds: weights, rejections and absences."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from byzantium.core import ByzantiumError
from byzantium.rules.report import Report

#: No worker is called unheard after fewer rounds: sharing a bucket with an attacker costs weight.
FEWEST_ROUNDS = 5
# A worker is unheard if its mean weight is below this part of an equal share ...
UNHEARD = 0.5
# ... by more than this many standard errors.
ERRORS = 3.0

MEANINGS = {
    "rejected": (
        "What it sent could not be used, and never touched the model. It is broken or Byzantine; "
        "this does not say which."
    ),
    "unheard": (
        "Its vectors were so far from most that the rule gave it little weight, round after round. "
        "It may be Byzantine, or it may be honest and hold data that nobody else has."
    ),
    "absent": "It sent nothing. This says nothing of its intentions.",
}


#: A paragraph for reports: what the weights of workers over many rounds mean.
CAUTION = (
    "A weight says how much a worker counted, not whether it is bad. Attackers that copy an honest "
    "worker (mimics) cannot be distinguished from it. Where attackers count most, the rule has "
    "failed. And an honest worker whose data nobody else has may hardly count."
)


@dataclass
class WorkerRecord:
    """The record of one worker over many rounds.

    - `rounds`: in how many rounds its vector was used and had a weight.
    - `total`, `squares`: the sums of its weights and of their squares over these rounds.
    - `heard`: in how many of these rounds its weight was not zero.
    - `gains`: the sum over these rounds of the mean weight of the workers with weight.
    - `rejections`: in how many rounds its vector was rejected; `reason` is that of the last.
    - `absences`: in how many rounds it sent nothing.
    """

    rounds: int = 0
    total: float = 0.0
    squares: float = 0.0
    rejections: int = 0
    reason: str = ""
    absences: int = 0
    heard: int = 0
    gains: float = 0.0

    @property
    def weight(self) -> float:
        """Its mean weight in units of an equal share: 1 means as much as the average worker."""
        return self.total / self.rounds if self.rounds else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation of its weight over the rounds, in the same units."""
        if self.rounds < 2:
            return math.nan
        around = self.squares - self.rounds * self.weight**2
        return math.sqrt(max(0.0, around) / (self.rounds - 1))

    def most(self, usual: float) -> float:
        """The largest mean weight that its weights do not rule out, by three standard errors.

        - `usual`: the spread of most workers. That of one worker may be small by chance: it counts
          as if five more rounds, with the usual spread if that is larger, were among its rounds.
        """
        variance = self.spread**2 * (self.rounds - 1) + FEWEST_ROUNDS * max(self.spread, usual) ** 2
        variance /= self.rounds - 1 + FEWEST_ROUNDS
        # How much its mean would rise if the rule had heard it once more. Zeros alone do not show
        # how large the weights are that a rule gives now and then.
        rise = (1 - self.heard / self.rounds) * self.gains / self.rounds**2
        return self.weight + rise + ERRORS * math.hypot(math.sqrt(variance / self.rounds), rise)


class Trust:
    """Adds up the reports of many rounds, and lists workers that were rejected, unheard or absent.

    A worker is *unheard* if the rule gave it little weight round after round. That does not mean
    that it attacks: see `CAUTION`.

    - `workers`: for each worker its record: rounds, mean weight, rejections and absences.

    >>> from byzantium import GeometricMedian
    >>> trust, rule = Trust(), GeometricMedian()
    >>> for _ in range(8):
    ...     honest = 1 + torch.randn(6, 20)
    ...     trust.add(rule.explain(torch.cat([honest, torch.full((1, 20), -50.0)])))
    >>> list(trust.unheard())
    [6]
    """

    def __init__(self) -> None:
        self.workers: dict[Any, WorkerRecord] = {}

    def add(
        self,
        report: Report,
        workers: Sequence[Hashable] | None = None,
        absent: Iterable[Hashable] = (),
    ) -> None:
        """Add one round.

        - `report`: the report of `rule.explain`.
        - `workers`: the names of the workers, in the order of their vectors; by default 0, 1, ...
        - `absent`: the names of workers who were asked and sent nothing.
        """
        weights = report.weights.tolist()
        names = list(range(len(weights))) if workers is None else list(workers)
        if len(names) != len(weights):
            raise ByzantiumError(f"the report has {len(weights)} workers, got {len(names)} names")
        rejected = {names[k]: report.reasons.get(k, "rejected") for k in report.rejected}
        used = {w: v for w, v in zip(names, weights, strict=True) if w not in rejected}
        shares = None if report.vouched is None else report.vouched.tolist()
        vouched = None if shares is None else dict(zip(names, shares, strict=True))
        self.update(used, rejected, absent, vouched=vouched)

    def update(
        self,
        weights: Mapping[Any, float],
        rejected: Mapping[Any, str] | None = None,
        absent: Iterable[Hashable] = (),
        rounds: int = 1,
        vouched: Mapping[Any, float] | None = None,
    ) -> None:
        """Add one round without a report, or the means of several.

        - `weights`: the weight of each worker whose vector was used; NaN where it is unknown.
        - `rejected`: for each rejected worker, the reason.
        - `rounds`: of how many rounds the weights are the means. They count as one round.
        - `vouched`: the share of each worker that the operator vouches for: then the weights count
          in units of these, and a worker whose share is 0 is not counted.
        """
        # In one round the workers that are heard share the weight of all; one that is heard in one
        # of several rounds has at most the whole weight of that one.
        heard = sum(weight != 0 for weight in weights.values() if math.isfinite(weight))
        gain = len(weights) / max(heard, rounds, 1)
        total = sum((vouched or {}).get(worker, 0.0) for worker in weights)
        for worker, weight in weights.items():
            share = weight * len(weights)
            if vouched is not None:
                if not vouched.get(worker):
                    continue
                share = weight * total / vouched[worker]
            record = self._of(worker)
            if math.isfinite(share):
                record.rounds += 1
                record.total += share
                record.squares += share**2
                record.heard += weight != 0
                record.gains += gain
        for worker, reason in (rejected or {}).items():
            record = self._of(worker)
            record.rejections += 1
            record.reason = reason
        for worker in absent:
            self._of(worker).absences += 1

    def _of(self, worker: Hashable) -> WorkerRecord:
        return self.workers.setdefault(worker, WorkerRecord())

    def state(self) -> str:
        """Everything as JSON text, to be saved; names of workers must be numbers or texts."""
        return json.dumps([[worker, asdict(s)] for worker, s in self.workers.items()])

    @classmethod
    def of(cls, state: str) -> Trust:
        """A `Trust` from the text that `state` returned."""
        trust = cls()
        trust.workers = {worker: WorkerRecord(**values) for worker, values in json.loads(state)}
        return trust

    def rejected(self) -> dict[Any, WorkerRecord]:
        """The workers whose vectors were rejected in at least one round."""
        return {w: s for w, s in self.workers.items() if s.rejections}

    def absent(self) -> dict[Any, WorkerRecord]:
        """The workers who sent nothing in at least one round."""
        return {w: s for w, s in self.workers.items() if s.absences}

    def unheard(self) -> dict[Any, WorkerRecord]:
        """The workers whose mean weight is smaller than chance explains.

        That is, at least three standard errors below half of an equal share, after at least five
        rounds. The standard error of a worker follows from its own spread and, after few rounds,
        from the median of all workers' spreads: workers whose weights vary much hide nobody else.
        A rule that picks one worker in each round gives most of them no weight most of the time,
        which says little: a worker without any weight is unheard only if one more round in which
        the rule hears it could not change that.
        """
        spreads = [s.spread for s in self.workers.values() if s.rounds > 1]
        usual = median(spreads) if spreads else 0.0
        return {
            worker: s
            for worker, s in self.workers.items()
            if s.rounds >= FEWEST_ROUNDS and s.most(usual) < UNHEARD
        }

    def sentences(self) -> list[str]:
        """A sentence or two about each worker that was rejected, unheard or absent."""
        sentences = [
            f"{worker}: rejected in {_rounds(s.rejections)}, the last time: {s.reason}. "
            + MEANINGS["rejected"]
            for worker, s in self.rejected().items()
        ]
        sentences += [
            f"{worker}: unheard, with {s.weight:.2f} of an equal share of the weight on average "
            f"over {s.rounds} rounds (standard deviation {s.spread:.2f}). " + MEANINGS["unheard"]
            for worker, s in self.unheard().items()
        ]
        sentences += [
            f"{worker}: absent in {_rounds(s.absences)}. " + MEANINGS["absent"]
            for worker, s in self.absent().items()
        ]
        return sentences


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count != 1)}"
