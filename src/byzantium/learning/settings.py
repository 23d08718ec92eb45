"""How a simulation goes, and what is recorded of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from byzantium.core.errors import ByzantiumError
from byzantium.core.formula import SEED_BITS, number, truth, whole
from byzantium.learning import metrics


@dataclass(frozen=True)
class Settings:
    """How a simulation goes, apart from the data, the model, the rule and the attack.

    n, q:            workers, and the attackers among them, who come last.
    rounds, batch:   steps of the server; samples of a worker in each.
    momentum:        beta of the workers: m = beta m + (1 - beta) g, m = g in the first round.
    heavy_ball:      without the factor (1 - beta), as in the published runs.
    learning_rate:   of plain SGD on the server, unless the simulation is given another optimiser.
    local_steps:     how many steps a worker takes on its own before it sends (start - end) /
                     local_rate; 1 is the gradient.
    local_rate:      the learning rate of these steps.
    participants:    how many workers take part in a round, drawn anew each time (once more where
                     no honest one is among them); None is all.
    reshuffle_every: every worker begins its data again after so many rounds (published runs: 30).
    evaluate_every:  rounds between evaluations on the test set; the last round is one, too.
    record:          what to record beside losses and accuracies: words of the table in
                     `metrics.py`; "heterogeneity" is the paper's zeta^2 and B^2 at evaluations;
                     "weights" of coordinate-wise rules, which take longer than the rule, are of
                     rounds with an evaluation.
    """

    n: int
    rounds: int
    q: int = 0
    batch: int = 32
    momentum: float = 0.0
    heavy_ball: bool = False
    learning_rate: float = 0.01
    local_steps: int = 1
    local_rate: float = 0.01
    participants: int | None = None
    reshuffle_every: int | None = None
    evaluate_every: int = 30
    record: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_kinds()
        for name in ("n", "rounds", "batch", "local_steps", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ByzantiumError(f"a simulation needs {name} >= 1, got {getattr(self, name)}")
        for name in ("learning_rate", "local_rate"):
            if not getattr(self, name) > 0:
                raise ByzantiumError(f"a simulation needs {name} > 0, got {getattr(self, name)}")
            if getattr(self, name) == math.inf:
                raise ByzantiumError(f"a simulation needs a finite {name}, got inf")
        for name in ("q", "seed"):
            if getattr(self, name) < 0:
                raise ByzantiumError(f"a simulation needs {name} >= 0, got {getattr(self, name)}")
        if self.q >= self.n:
            raise ByzantiumError(
                f"a simulation needs honest workers: q < n, got {self.q} of {self.n}"
            )
        if not 0 <= self.momentum < 1:
            raise ByzantiumError(f"a simulation needs 0 <= momentum < 1, got {self.momentum}")
        if self.participants is not None and not 1 <= self.participants <= self.n:
            raise ByzantiumError(
                f"a simulation needs 1 <= participants <= n, got {self.participants} of {self.n}"
            )
        if self.reshuffle_every is not None and self.reshuffle_every < 1:
            raise ByzantiumError(
                f"a simulation needs reshuffle_every >= 1, got {self.reshuffle_every}"
            )
        known = metrics.words()
        if unknown := set(self.record) - set(known):
            raise ByzantiumError(
                f"a simulation can record {', '.join(known)}, got {', '.join(sorted(unknown))}"
            )

    def _check_kinds(self) -> None:
        for name in ("n", "rounds", "q", "batch", "local_steps", "evaluate_every"):
            whole("a simulation", name, getattr(self, name))
        whole("a simulation", "seed", self.seed, SEED_BITS)
        for name in ("participants", "reshuffle_every"):
            if getattr(self, name) is not None:
                whole("a simulation", name, getattr(self, name))
        for name in ("momentum", "learning_rate", "local_rate"):
            number("a simulation", name, getattr(self, name))
        truth("a simulation", "heavy_ball", self.heavy_ball)
        listed = isinstance(self.record, (tuple, list))
        if not listed or not all(isinstance(word, str) for word in self.record):
            raise TypeError(f"a simulation needs words for record, got record={self.record!r}")
