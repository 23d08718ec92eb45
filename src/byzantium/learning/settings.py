"""How a simulation goes, and what is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from byzantium import learning
from byzantium.core import (
    Beta,
    ByzantiumError,
    Count,
    Positive,
    PositiveMeasure,
    Seed,
    check_fields,
)
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
    loss:            what is minimised, of the table in `losses.py`; "squared" is regression.
    device, dtype:   where the model, the data and the vectors are, and of which numbers.
    """

    n: Positive
    rounds: Positive
    q: Count = 0
    batch: Positive = 32
    momentum: Beta = 0.0
    heavy_ball: bool = False
    learning_rate: PositiveMeasure = 0.01
    local_steps: Positive = 1
    local_rate: PositiveMeasure = 0.01
    participants: Positive | None = None
    reshuffle_every: Positive | None = None
    evaluate_every: Positive = 30
    record: tuple[str, ...] = ()
    seed: Seed = 0
    # These were added when there were checkpoints, whose settings do not name them.
    loss: str = field(default="cross_entropy", repr=False)
    device: str = field(default="cpu", repr=False)
    dtype: Literal["float32", "float64"] = field(default="float32", repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "a simulation")
        if self.q >= self.n:
            raise ByzantiumError(
                f"a simulation needs honest workers: q < n, got {self.q} of {self.n}"
            )
        if self.participants is not None and self.participants > self.n:
            raise ByzantiumError(
                f"a simulation needs participants <= n, got {self.participants} of {self.n}"
            )
        _check_device(self.device)
        object.__setattr__(self, "loss", _spelled(self.loss))
        known = metrics.words()
        if unknown := set(self.record) - set(known):
            raise ByzantiumError(
                f"a simulation can record {', '.join(known)}, got {', '.join(sorted(unknown))}"
            )


def _spelled(loss: str) -> str:
    try:
        return learning.losses.spelled(loss)[0]
    except ByzantiumError as error:
        raise ByzantiumError(f"a simulation needs a loss: {error}") from error


def _check_device(name: str) -> None:
    """Raise a sentence unless torch knows such a device, here or elsewhere."""
    import torch

    try:
        torch.device(name)
    except (RuntimeError, ValueError) as error:
        raise ByzantiumError(
            f"a simulation needs a device that torch knows, such as 'cpu' or 'cuda:0', "
            f"got device={name[:80]!r}"
        ) from error
