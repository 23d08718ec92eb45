"""Worker methods: what workers make of their gradients before they send them.

`Momentum`, in `worker.py`, is one of them. Those of other papers are in `byzantium.related`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from byzantium.core import ByzantiumError, Formula, files
from byzantium.learning.clocks import SYNCHRONOUS

if TYPE_CHECKING:
    from torch import Tensor

    from byzantium.learning.settings import TrainingOptions
    from byzantium.learning.worker import Workers
    from byzantium.rules import Aggregator


class Task(NamedTuple):
    """The input of a worker method in a round: k workers, all honest or all attackers.

    - `team`: all workers of the training: `team.gradients` computes gradients, and `team.seen` says
      of each worker whether it has had its first round.
    - `workers`: the numbers of the k workers.
    - `x`, `y`: their batches, (k, steps, batch, ...).
    - `indices`: which samples of the data these are, (k, steps, batch).
    - `parts`: all samples of each of the k workers, as indices.
    - `samples`: a function of indices, (k', steps, batch), that gives the samples and their targets
      as these workers see them; attackers may see others.
    - `rate`, `learning_rate`: the learning rates of local steps and of the server.
    - `seeds`: the seeds of the k workers' dropout.
    - `seed`: a seed that all workers share in a round.
    - `last_model`, `last_aggregate`: (d,), the parameters before the last step of the server, and
      what the step was taken with; None before the first step, and for methods without
      `needs_last_step`.
    - `models`: (k, d), the parameters at which each worker computes its gradient; None if all
      compute it at those of the model.

    >>> from byzantium import Mean
    >>> from byzantium.data import load
    >>> from byzantium.learning import Settings, linear, simulate
    >>> class Printed(WorkerMethod):
    ...     def compute(self, rows, task):
    ...         print(tuple(rows.shape), list(task.workers), task.new, tuple(task.x.shape))
    ...         return task.team.gradients(rows, task.x, task.y, seeds=task.seeds)
    >>> settings, model = Settings(n=3, rounds=2, batch=8), linear((1, 8, 8))
    >>> history = simulate(settings, load("digits"), model, Mean(), worker=Printed())
    (3, 650) [0, 1, 2] [0, 1, 2] (3, 1, 8, 1, 8, 8)
    (3, 650) [0, 1, 2] [] (3, 1, 8, 1, 8, 8)
    """

    team: Workers
    workers: Sequence[int]
    x: Tensor
    y: Tensor
    indices: Tensor
    parts: Sequence[Tensor]
    samples: Callable[[Tensor], tuple[Tensor, Tensor]]
    rate: float
    learning_rate: float
    seeds: Sequence[int]
    seed: int
    last_model: Tensor | None = None
    last_aggregate: Tensor | None = None
    models: Tensor | None = None

    @property
    def new(self) -> list[int]:
        """The places, among the k, of the workers that are in their first round."""
        return [k for k, worker in enumerate(self.workers) if not self.team.seen[worker]]


class WorkerMethod(Formula, ABC):
    """A worker method: what workers make of their gradients before they send them.

    To write one, derive from this class and define `compute`. What the workers remember beside
    their rows goes into `state`.

    - `needs_last_step`: whether it uses the last step of the server, see `Task`.

    Here each worker sends the sign of its gradient:

    >>> class Sign(WorkerMethod):
    ...     def compute(self, rows, task):
    ...         losses = task.team.gradients(rows, task.x, task.y, seeds=task.seeds)
    ...         rows.sign_()
    ...         return losses
    >>> Sign()
    Sign()
    """

    needs_last_step: ClassVar[bool] = False

    @abstractmethod
    def compute(self, rows: Tensor, task: Task) -> Tensor:
        """Write what each worker sends into its row, and return the losses on its batch, (k,).

        - `rows`: (k, d); only where `keeps_rows` do they hold what the workers sent before.
        """

    @property
    def keeps_rows(self) -> bool:
        """Whether `compute` needs the rows of the round before."""
        return False

    @property
    def state(self) -> dict[str, Tensor]:
        """What the workers remember beside their rows: tensors that `compute` writes into."""
        state: dict[str, Tensor] = self.__dict__.get("_state", {})
        return state

    def check_rule(self, rule: Aggregator) -> None:
        """Override it to raise an error where the server's rule is not one for this method."""

    def size(self, samples: Sequence[int], d: int) -> int:
        """How many numbers `initial_state` has.

        - `samples`: how many samples each worker has.
        """
        return 0

    def initial_state(self, team: Workers, parts: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """The `state` before the first round.

        - `parts`: the samples of each worker, by its number.
        """
        return {}

    def prepare(self, team: Workers, parts: Mapping[int, Tensor]) -> None:
        """Prepare for the first round: allocate the state."""
        d, dtype = team.gradients.d, team.gradients.like.dtype
        check_size(self, [len(part) for part in parts.values()], d, dtype.itemsize)
        object.__setattr__(self, "_state", self.initial_state(team, parts))


def check_size(method: WorkerMethod, samples: Sequence[int], d: int, itemsize: int) -> None:
    """Raise an error where a method would remember more than a quarter of the memory holds.

    - `samples`: how many samples each worker has.
    - `d`: how many parameters the model has.
    - `itemsize`: how many bytes a number has.
    """
    size, most = method.size(samples, d) * itemsize, files.quarter_of_memory()
    if size > most:
        raise ByzantiumError(
            f"{method!r} would remember {size / 2**30:.3g} GiB for {sum(samples)} samples and "
            f"{d} parameters, and {most / 2**30:.3g} GiB, a quarter of the memory, is the most; "
            "take fewer samples, a smaller model or another worker method"
        )


def check_settings(method: WorkerMethod, settings: TrainingOptions) -> None:
    """Raise an error where the settings of a training do not suit a worker method."""
    from byzantium.learning.worker import Momentum

    momentum = Momentum(settings.momentum, settings.heavy_ball)
    if isinstance(method, Momentum):
        if method != momentum:
            raise ByzantiumError(
                "the momentum of workers is an option of the training, which says "
                f"{momentum!r}: got {method!r}"
            )
        return
    required: dict[str, tuple[object, str]] = {
        "momentum": (0, "have no momentum"),
        "local_steps": (1, "send what they make of one gradient"),
        "topology": (None, "have the model of the server"),
        "clock": (SYNCHRONOUS, "compute in the same rounds"),
    }
    if method.needs_last_step:
        required["cache"] = (False, "add to the last aggregate, so all vectors are of one round")
    for name, (value, why) in required.items():
        if (other := getattr(settings, name)) != value:
            raise ByzantiumError(
                f"workers with {method!r} {why}: set {name}={value!r}, got {name}={other!r}"
            )
