"""The workers of Algorithm 2: each computes a gradient, and sends its momentum.

`Momentum` is one worker, in any federation. `Workers` are all workers of a simulation, at once.
Workers of a simulation may also send something else: see `method.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.core import ArgumentTypeError, Beta, ByzantiumError, type_name
from byzantium.learning.gradients import WorkerGradients
from byzantium.learning.losses import Loss, cross_entropy
from byzantium.learning.method import Task, WorkerMethod

Update = TypeVar("Update")


@dataclass(frozen=True, repr=False)
class Momentum(WorkerMethod):
    r"""The momentum of one worker, which it sends instead of its gradient.

    .. math:: m_t = \beta m_{t-1} + (1 - \beta) g_t, \qquad m_1 = g_1

    Averaging over rounds makes honest workers' vectors vary less, so that attackers have less to
    hide in. Use one object for each worker.

    Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021.

    - `beta`: how much of the last momentum stays, from 0 (none) to below 1.
    - `heavy_ball`: leave out the factor :math:`1 - \beta`, as in the published runs.

    >>> momentum = Momentum(beta=0.9)
    >>> momentum.update(torch.tensor([1.0, 2.0])), momentum.update(torch.tensor([11.0, 2.0]))
    (tensor([1., 2.]), tensor([2., 2.]))
    """

    beta: Beta
    heavy_ball: bool = False

    @property
    def keeps_rows(self) -> bool:
        return bool(self.beta)

    def compute(self, rows: Tensor, task: Task) -> Tensor:
        """Bring the momenta of the workers of a simulation up to date; return the losses."""
        batches = task.workers, task.x, task.y
        options: dict[str, Any] = {"rate": task.rate, "seeds": task.seeds, "models": task.models}
        return task.team.compute(rows, *batches, self, **options)

    def factors(self, first: bool) -> tuple[float, float]:
        """The two factors (a, b) of the formula m = a m + b g, in the first round or a later one.

        `update` applies them to one worker, `Workers` to many at once.
        """
        if first or not self.beta:
            return 0.0, 1.0
        return self.beta, 1.0 if self.heavy_ball else 1 - self.beta

    def update(self, update: Update) -> Update:
        """Overwrite a gradient (or a change of the model) with the momentum, and return it.

        - `update`: a tensor or an array, or a mapping or a sequence of these, with the same names
          and shapes in each round. Entries of whole numbers, such as counters, stay as they are.
        """
        entries = {name: _as_tensor(name, entry) for name, entry in _entries(update)}
        vectors = {name: entry for name, entry in entries.items() if entry.is_floating_point()}
        if not self.beta:
            return update
        momenta, first = self._m, self._m is None
        if momenta is None:
            momenta = {name: torch.zeros_like(vector) for name, vector in vectors.items()}
        _check_same(momenta, vectors)
        self._remember(momenta)
        keep, share = self.factors(first)
        with torch.no_grad():
            for name, m in momenta.items():
                vectors[name].copy_(m.mul_(keep).add_(vectors[name], alpha=share))
        return update

    def state_dict(self) -> dict[str, Any]:
        """What it remembers, for `load_state_dict`: the momentum m, None before the first round."""
        return {"m": None if self._m is None else _copied(self._m)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, and go on from there."""
        self._remember(None if state["m"] is None else _copied(state["m"]))

    @property
    def _m(self) -> dict[str, Tensor] | None:
        return self.__dict__.get("_momenta")

    def _remember(self, momenta: dict[str, Tensor] | None) -> None:
        object.__setattr__(self, "_momenta", momenta)


def _entries(update: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of an update, each with a name."""
    if isinstance(update, Mapping):
        yield from update.items()
    elif isinstance(update, Sequence):
        for place, entry in enumerate(update):
            yield f"number {place}", entry
    else:
        yield "update", update


def _as_tensor(name: str, entry: Any) -> Tensor:
    """The same memory, as a tensor."""
    if isinstance(entry, Tensor):
        return entry
    if not isinstance(entry, np.ndarray):
        raise ArgumentTypeError(f"momentum needs tensors or arrays, {name} is {type_name(entry)}")
    if not entry.flags.writeable:
        raise ByzantiumError(
            f"momentum is written over an update, and {name} is read-only; give a copy of it"
        )
    return torch.from_numpy(entry)


def _check_same(m: Mapping[str, Tensor], vectors: Mapping[str, Tensor]) -> None:
    rule = "a worker's updates have the same names and shapes in each round, and"
    for name, vector in vectors.items():
        if name not in m or m[name].shape != vector.shape:
            shape = tuple(vector.shape)
            raise ByzantiumError(f"{rule} {name} of shape {shape} was not in the one before")
    for name in m:
        if name not in vectors:
            raise ByzantiumError(f"{rule} {name} is not in this one")


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


class Workers:
    """The workers of a simulation, who share a model and a matrix.

    Gradients are written straight into the rows of the matrix, by one kernel for all workers.

    - `sent`: (n, d), of the model's dtype. Row i is what worker i sends: its momentum, or the
      vector of an attack.
    - `seen`: for each worker, whether it has had its first round.
    """

    def __init__(self, model: nn.Module, n: int, loss: Loss = cross_entropy) -> None:
        self.gradients = WorkerGradients(model, loss)
        self.sent = self.gradients.rows(n)
        self.seen = [False] * n

    def compute(
        self,
        rows: Tensor,
        workers: Sequence[int],
        x: Tensor,
        y: Tensor,
        momentum: Momentum,
        *,
        rate: float,
        seeds: Sequence[int],
        models: Tensor | None = None,
    ) -> Tensor:
        """Bring the rows of these workers up to date with a gradient each; return the losses.

        - `rows`: (k, d), those of `sent` or a copy of them.
        - `x`, `y`: (k, steps, batch, ...), the batches of each worker.
        - `models`: (k, d), the parameters at which each worker computes its gradient; by default
          all compute it at those of the model.
        """
        keep, share = momentum.factors(first=False)
        _, first = momentum.factors(first=True)
        new = [k for k, worker in enumerate(workers) if not self.seen[worker]]
        rows[new] = 0
        losses = self.gradients(
            rows, x, y, rate=rate, keep=keep, share=share, seeds=seeds, models=models
        )
        # The kernel has one share for all rows; those in their first round get theirs afterwards.
        if share != first:
            for k in new:
                rows[k] /= share / first
        for worker in workers:
            self.seen[worker] = True
        return losses
