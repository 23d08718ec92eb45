"""How a simulation goes, and what is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from byzantium.core import (
    Beta,
    ByzantiumError,
    Count,
    Positive,
    PositiveMeasure,
    Seed,
    check_fields,
)
from byzantium.guarantees import announce
from byzantium.learning import metrics


@dataclass(frozen=True)
class Settings:
    r"""How a simulation goes, apart from the data, the model, the rule and the attack.

    - `n`: how many workers there are, attackers included.
    - `rounds`: how many rounds there are; the server takes one step in each.
    - `q`: how many of the n workers attack. They are the last q. Half or more of the workers of
      a round may attack; this is logged as a warning.
    - `batch`: how many samples a worker draws for each of its gradients.
    - `momentum`: the workers' momentum :math:`\beta`, 0 (none) to below 1: a worker sends :math:`m
      \leftarrow \beta m + (1 - \beta) g` instead of its gradient g; m = g in its first round.
    - `heavy_ball`: leave out the factor :math:`1 - \beta`, as in the published runs.
    - `learning_rate`: the server's, for plain SGD; not used where the simulation is given another
      optimiser.
    - `local_steps`: how many steps of SGD a worker takes on its own before it sends. With 1 it
      sends its gradient, with more (start - end) / local_rate: federated averaging.
    - `local_rate`: the learning rate of a worker's own steps.
    - `participants`: how many workers take part in a round, drawn anew for each round such that at
      least one is honest; None lets all take part.
    - `reshuffle_every`: after this many rounds every worker starts a new pass over its samples (30
      in the published runs); None lets it finish each pass.
    - `evaluate_every`: how many rounds lie between two evaluations on the test set. There is always
      one after the last round.
    - `record`: what to record beside losses and accuracy; `byzantium list metrics` lists the words.
      "heterogeneity" is the paper's :math:`\zeta^2` and :math:`B^2`, at evaluations. "weights" of
      coordinate-wise rules are recorded only in rounds with an evaluation, because they take longer
      than the rule itself.
    - `seed`: the seed of everything random.
    - `loss`: the loss to minimise: "cross_entropy" for classes; "squared", "absolute" or
      "huber(delta)" for regression.
    - `device`: the torch device that computes, such as "cpu" or "cuda:0".
    - `dtype`: the number format of the model, the data and the gradients: "float32" or "float64".
    - `dropout`: whether each worker draws its dropout anew in each round ("fresh"), or all workers
      have the same in all rounds ("shared", one seed, as in the published runs).

    >>> Settings(n=25, q=5, rounds=300, momentum=0.9).learning_rate
    0.01
    >>> Settings(n=25, q=25, rounds=300)
    Traceback (most recent call last):
    byzantium.ByzantiumError: a simulation needs honest workers: q < n, got 25 of 25
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
    dropout: Literal["fresh", "shared"] = field(default="fresh", repr=False)

    def __post_init__(self) -> None:
        check_fields(self, "a simulation")
        check(self.n, self.q, self.participants, self.device)
        object.__setattr__(self, "loss", spelled(self.loss))
        check_record(self.record)
        announce(None, self.participants or self.n, self.q)


def check(n: int, q: int, participants: int | None, device: str) -> None:
    """Raise an error unless there are honest workers, enough participants and such a device."""
    if q >= n:
        raise ByzantiumError(f"a simulation needs honest workers: q < n, got {q} of {n}")
    if participants is not None and participants > n:
        raise ByzantiumError(f"a simulation needs participants <= n, got {participants} of {n}")
    _check_device(device)


def check_record(words: tuple[str, ...]) -> None:
    """Raise an error unless all of these words name something that can be recorded."""
    known = metrics.words()
    if unknown := set(words) - set(known):
        raise ByzantiumError(
            f"a simulation can record {', '.join(known)}, got {', '.join(sorted(unknown))}"
        )


def spelled(loss: str) -> str:
    """The usual spelling of a loss; raises an error where there is none of this name."""
    from byzantium.learning import losses  # imports torch

    try:
        return losses.spelled(loss)[0]
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
