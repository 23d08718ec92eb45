"""The paper's demonstration of mimicry: nothing is trained, random vectors are aggregated."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from byzantium.core import ByzantiumError, Count, Positive, Seed, files, option, with_options
from byzantium.runs import plugins, values
from byzantium.runs.job import METRICS, Job, Stop, Watch, rule_facets
from byzantium.runs.plugins import PLUGINS_USED
from byzantium.runs.values import Checks

if TYPE_CHECKING:
    from byzantium.rules import Aggregator


@with_options
@dataclass(frozen=True)
class Mimicry(Job):
    r"""How far a rule lands from the honest mean when attackers copy one honest worker, as data.

    Nothing is trained. The honest vectors are random, :math:`\pm 1` in each of d coordinates,
    and the attackers send copies of the first one. The error is the squared distance of the
    result to the honest mean, averaged over several draws.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR
    2022.

    >>> Mimicry(rule="Median", n=10, attackers=2).rule
    'Median()'
    """

    display_name, measure = "a demonstration", "error"
    summary_checks: ClassVar[Checks] = {**Job.summary_checks, "error": values.size}

    rule: str = option(
        "Mean()",
        "The rule, with mixings before it if wanted; one without f takes the number of attackers.",
    )
    n: Positive = option(50, "How many workers there are, attackers included.")
    attackers: Count = option(10, "How many of them copy the first honest one.")
    d: Positive = option(100, "How many coordinates a vector has.")
    draws: Positive = option(20, "How many times vectors are drawn.")
    seed: Seed = option(0, "The seed of the vectors, and of random mixings.")
    plugin: tuple[str, ...] = option((), PLUGINS_USED, later=True)

    def check(self) -> None:
        if self.attackers >= self.n:
            raise ByzantiumError(
                f"a demonstration needs attackers < n, got {self.attackers} of {self.n}"
            )
        if plugins.check_recorded(self, ["rule"]):
            return
        from byzantium.rules.admission import check_sizes

        rule = self.aggregator()
        if rule.needs_root:
            raise ByzantiumError(
                f"a demonstration has no data, and so no root gradient, which {rule!r} needs"
            )
        check_sizes(rule.stages, self.n)
        object.__setattr__(self, "rule", repr(rule))
        plugins.record_plugins(self, ["rule"])

    @property
    def workers(self) -> int:
        return self.n

    @property
    def metric_checks(self) -> Checks:
        return dict.fromkeys(("error", "deviation"), values.measured)

    def aggregator(self) -> Aggregator:
        """Its rule, with the mixings before it."""
        from byzantium.runs import builders

        plugins.load_required(self)
        return builders.read_rule(self.rule, self.attackers)

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        import torch

        generator = torch.Generator().manual_seed(self.seed)
        rule, errors = self.aggregator(), []
        for draw in range(self.draws):
            if stop():
                return None
            rule.reset()
            honest = (
                torch.randint(2, (self.n - self.attackers, self.d), generator=generator) * 2.0 - 1
            )
            sent = torch.cat([honest, honest[:1].expand(self.attackers, self.d)])
            aggregate = rule(sent, generator)
            errors.append(float((aggregate - honest.mean(dim=0)).square().sum()))
            watch(draw + 1, self.draws, "")
        mean = sum(errors) / self.draws
        deviation = math.sqrt(sum((error - mean) ** 2 for error in errors) / self.draws)
        line = {"round": self.draws, "error": mean, "deviation": deviation}
        files.write(folder / METRICS, json.dumps(line) + "\n")
        return {"status": "completed", "error": mean}

    def facets(self) -> dict[str, Any]:
        return {"seed": self.seed, "n": self.n, "q": self.attackers, **rule_facets(self.rule)}
