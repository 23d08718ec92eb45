"""Root data in a simulation: samples that the server holds, and the *root gradient* on them.

The root gradient is computed as a worker computes its vector, with the same momentum and the same
local steps, but on all root data at once.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from byzantium.core import ByzantiumError
from byzantium.data.dataset import Dataset
from byzantium.learning.losses import Loss
from byzantium.learning.worker import Momentum, Workers

logger = logging.getLogger("byzantium")

# The standard error of the root gradient is estimated from the gradients of so many groups of root
# samples, at most.
MOST_GROUPS = 10


class RootGradient(NamedTuple):
    """The root gradient of a round.

    - `vector`: (d,), with the momentum of a worker.
    - `error`: its standard error, the root of the mean squared distance between it and the gradient
      of all data that the root samples were drawn from; None where it was not estimated.
    """

    vector: Tensor
    error: float | None = None


def draw_root(data: Dataset, root: int, generator: torch.Generator) -> Tensor:
    """The indices of training samples that become root data: a row has one sample of each class.

    Without classes a row is one sample. Raises an error where there are too few samples, and logs a
    warning where a class has no training sample at all.

    - `root`: how many samples to draw of each class; without classes, how many in all.

    >>> y = torch.tensor([0, 1, 0, 1, 0, 1])
    >>> data = Dataset("mine", torch.rand(6, 2), y, torch.rand(2, 2), y[:2], classes=2)
    >>> y[draw_root(data, 2, torch.Generator())]
    tensor([[0, 1],
            [0, 1]])
    """
    y = data.train_y.cpu()
    if data.classes:
        pools = {c: (y == c).nonzero()[:, 0] for c in range(data.classes)}
    else:
        pools = {0: torch.arange(len(y))}
    if missing := [c for c, pool in pools.items() if not len(pool)]:
        logger.warning(
            "%s has no training sample of class %s, so the root data have none: a rule that trusts "
            "them nearly loses a class that they lack",
            data.name,
            ", ".join(map(str, missing)),
        )
    for c, pool in pools.items():
        if 0 < len(pool) < root:
            of = f" of each class, but class {c} has {len(pool)}" if data.classes else ""
            raise ByzantiumError(
                f"root={root} needs {root} training samples{of} in {data.name}"
                + ("" if of else f", which has {len(pool)}")
            )
    pools = {c: pool for c, pool in pools.items() if len(pool)}
    if root * len(pools) >= len(y):
        raise ByzantiumError(
            f"root={root} leaves none of the {len(y)} training samples of {data.name} for workers"
        )
    drawn = [pool[torch.randperm(len(pool), generator=generator)[:root]] for pool in pools.values()]
    return torch.stack(drawn, dim=1)


def without(data: Dataset, indices: Tensor) -> Dataset:
    """A data set without some of its training samples; the order of the others stays.

    >>> x, y = torch.rand(4, 2), torch.tensor([0, 1, 1, 0])
    >>> without(Dataset("mine", x, y, x, y, classes=2), torch.tensor([[0, 2]])).train_y
    tensor([1, 0])
    """
    left = torch.ones(len(data.train_y), dtype=torch.bool, device=data.train_y.device)
    left[indices.flatten().to(left.device)] = False
    users = None if data.train_user is None else data.train_user[left.to(data.train_user.device)]
    return replace(data, train_x=data.train_x[left], train_y=data.train_y[left], train_user=users)


class Root:
    r"""The root data of a server, and what it computes on them in each round.

    The *standard error* of the root gradient comes from groups of root samples. The samples of a
    group have each class equally often, so the gradients g_1, ..., g_k of the groups are
    independent draws of the same distribution, with the root gradient as their mean, and

    .. math:: \frac{1}{k (k - 1)} \sum_j \|g_j - \bar g\|^2

    is an unbiased estimate of its squared error. All groups together take the time of the root
    gradient, and k times its memory; gradients of single samples would take as many times its
    memory as there are samples. Each group has its own momentum, because the momentum of the root
    gradient averages errors of the same samples, which do not cancel. With one sample of each class
    a group is one sample, and the estimate is too large rather than too small.

    - `model`, `loss`: what is trained.
    - `x`, `y`: the root samples and their targets, (groups, size, ...), as `draw_root` orders them.
    - `steps`: how many local steps a worker takes; each is on all root data.
    - `estimate_error`: whether to estimate the standard error.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        steps: int = 1,
        estimate_error: bool = False,
    ) -> None:
        self.x, self.y = (_repeated(one.flatten(0, 1)[None], steps) for one in (x, y))
        self.server = Workers(model, 1, loss)
        self.groups: Workers | None = None
        if estimate_error:
            if x.shape[:2].numel() < 2:
                raise ByzantiumError(
                    "the standard error of the root gradient needs at least two root samples: "
                    "record 'root' with a larger root"
                )
            if len(x) == 1:  # one sample of each class
                x, y = x[0, :, None], y[0, :, None]
            # Groups of equal size; a remainder is left out.
            k = min(len(x), MOST_GROUPS)
            size = len(x) // k
            x, y = (one[: k * size].flatten(0, 1).view(k, -1, *one.shape[2:]) for one in (x, y))
            self.group_x, self.group_y = _repeated(x, steps), _repeated(y, steps)
            self.groups = Workers(model, k, loss)

    def compute(self, momentum: Momentum, *, rate: float, seed: int) -> RootGradient:
        """The root gradient at the current model."""

        def sent(workers: Workers, x: Tensor, y: Tensor) -> Tensor:
            k = len(workers.sent)
            everybody, seeds = range(k), [seed] * k
            workers.compute(workers.sent, everybody, x, y, momentum, rate=rate, seeds=seeds)
            return workers.sent

        vector = sent(self.server, self.x, self.y)[0]
        if self.groups is None:
            return RootGradient(vector)
        rows, k = sent(self.groups, self.group_x, self.group_y), len(self.groups.sent)
        differences = rows.double() - rows.double().mean(dim=0)
        return RootGradient(vector, math.sqrt(float(differences.square().sum()) / (k * (k - 1))))

    def loss(self, seed: int) -> float:
        """The loss of the root data at the current model; the seed is that of dropout."""
        return float(self.server.gradients.losses(self.x, self.y, [seed])[0])

    def state_dict(self) -> dict[str, Any]:
        """The momentum of the root gradient and of the groups, for `load_state_dict`."""
        workers = self._workers.items()
        return {name: {"sent": w.sent, "seen": list(w.seen)} for name, w in workers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave, and go on from there."""
        for name, workers in self._workers.items():
            workers.sent.copy_(state[name]["sent"])
            workers.seen = list(state[name]["seen"])

    @property
    def _workers(self) -> dict[str, Workers]:
        return {"server": self.server, **({"groups": self.groups} if self.groups else {})}


def _repeated(samples: Tensor, steps: int) -> Tensor:
    """The same batch for each local step: (workers, steps, batch, ...), without a copy."""
    return samples[:, None].expand(-1, steps, *samples.shape[1:])
