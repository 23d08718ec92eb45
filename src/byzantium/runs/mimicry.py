"""The paper's demonstration of mimicry: nothing is trained, random vectors are aggregated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byzantium import aggregation, runs
from byzantium.core import ByzantiumError, Count, Positive, Seed, files
from byzantium.runs import plugins
from byzantium.runs.job import METRICS, Job, Stop, Watch, append, option

if TYPE_CHECKING:
    from byzantium.aggregation import Aggregator


@dataclass(frozen=True)
class Mimicry(Job):
    """How far a rule lands from the honest mean when attackers copy one honest worker.

    The honest vectors are random, of +-1 in each of d coordinates; q of n send a copy of the first.
    The error is the squared distance, and the mean of so many draws.

    >>> Mimicry(rule="Median", n=10, q=2).rule
    'Median()'
    """

    called, measure = "a demonstration", "error"

    rule: str = "Mean()"
    n: Positive = 50
    q: Count = 10
    d: Positive = 100
    draws: Positive = 20
    seed: Seed = 0
    plugin: tuple[str, ...] = option((), "Whose the rule is, where it does not ship.", later=True)

    def check(self) -> None:
        if self.q >= self.n:
            raise ByzantiumError(f"a demonstration needs q < n, got q={self.q} of {self.n}")
        if plugins.unread(self, ["rule"]):
            return
        rule = self.aggregator()
        aggregation.check_sizes(rule.stages, self.n)
        object.__setattr__(self, "rule", repr(rule))
        plugins.settle(self, ["rule"])

    @property
    def workers(self) -> int:
        return self.n

    def aggregator(self) -> Aggregator:
        plugins.need(self)
        return runs.parts.rule_of(self.rule, self.q)

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        rule, errors = self.aggregator(), []
        for draw in range(self.draws):
            if stop():
                return None
            rule.reset()
            honest = torch.randint(2, (self.n - self.q, self.d), generator=generator) * 2.0 - 1
            sent = torch.cat([honest, honest[:1].expand(self.q, self.d)])
            aggregate = rule(sent, generator)
            errors.append(float((aggregate - honest.mean(dim=0)).square().sum()))
            watch(draw + 1, self.draws, "")
        mean = sum(errors) / self.draws
        deviation = math.sqrt(sum((error - mean) ** 2 for error in errors) / self.draws)
        files.write(folder / METRICS, "")
        append(folder / METRICS, {"round": self.draws, "error": mean, "deviation": deviation})
        return {"status": "completed", "error": mean}
