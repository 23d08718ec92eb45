"""Who takes part in a round, and whose vectors the server aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from byzantium.core import ByzantiumError
from byzantium.rules.admission import check_sizes
from byzantium.rules.stage import stages_of_workers

if TYPE_CHECKING:
    from byzantium.learning.settings import Settings
    from byzantium.rules import Aggregator


class Participants:
    """The workers who take part in each round, and those whose vectors are aggregated.

    Without a cache these are the same, drawn such that at least one is honest. With a cache the
    draw is unconditional, and the server aggregates the last vectors of all workers that it has
    heard: attackers who capture a round still hold no more of these than they are.

    Otsuka, Takezawa, Yamada: Delayed Momentum Aggregation (DeMoA), ICML 2026.

    - `settings`: those of the simulation.
    - `generator`: where the draws come from.

    `heard` says of each worker whether it has taken part so far.
    """

    def __init__(self, settings: Settings, generator: torch.Generator) -> None:
        self.settings, self.generator = settings, generator
        self.heard = [False] * settings.n

    def draw(self) -> list[int]:
        """The workers who take part in the next round, in order."""
        settings = self.settings
        if settings.participants is None:
            return list(range(settings.n))
        while True:
            drawn = torch.randperm(settings.n, generator=self.generator)
            workers = sorted(drawn[: settings.participants].tolist())
            if settings.cache or self.honest(workers):
                return workers

    def honest(self, workers: Sequence[int]) -> int:
        """How many of these workers are honest; they are the first of them."""
        first_attacker = self.settings.n - self.settings.attackers
        return sum(worker < first_attacker for worker in workers)

    def hear(self, workers: Sequence[int]) -> list[int]:
        """The workers whose vectors the server aggregates, after these have sent theirs."""
        for worker in workers:
            self.heard[worker] = True
        return self.all_heard() if self.settings.cache else list(workers)

    def all_heard(self) -> list[int]:
        """The workers who have taken part so far, in order."""
        return [worker for worker, heard in enumerate(self.heard) if heard]

    def enough(self, rule: Aggregator) -> bool:
        """Whether the rule can be applied to the vectors of a cache; without one, always.

        Those who have not been heard yet are absent, and f stays. So an honest majority is sure
        once 2f + 1 are heard; with root data one honest worker is enough. A rule without an f takes
        the number of attackers for it.
        """
        workers = self.all_heard()
        if not self.settings.cache or len(workers) == self.settings.n:
            return True
        stages = stages_of_workers(rule.stages)
        bounds = [stage.bad for stage in stages if stage.bad is not None]
        f = max(bounds, default=self.settings.attackers)
        if len(workers) < (f + 1 if rule.needs_root else 2 * f + 1) or not self.honest(workers):
            return False
        try:
            check_sizes(rule.stages, len(workers))
        except ByzantiumError:  # some rules need more than 2f + 1
            return False
        return True
