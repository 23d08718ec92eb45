"""Worker methods that reduce the variance of gradients: SAGA with a table, MARINA without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Le

from byzantium.core import ByzantiumError
from byzantium.learning import Task, WorkerMethod

if TYPE_CHECKING:
    from torch import Tensor

    from byzantium.learning.worker import Workers

# So many samples of a worker go into one pass where it computes gradients of all of them.
CHUNK = 256


@dataclass(frozen=True, repr=False)
class SAGA(WorkerMethod):
    r"""Gradients corrected by a table of the last gradient of each sample (Byrd-SAGA).

    .. math::

        g_i = \frac{1}{|B|} \sum_{j \in B} \bigl(\nabla f_{ij}(x) - \phi_{ij}\bigr)
            + \frac{1}{m} \sum_{j=1}^{m} \phi_{ij},
        \qquad \text{then } \phi_{ij} \leftarrow \nabla f_{ij}(x) \text{ for } j \in B

    for a worker i with m samples and the batch B. In its first round a worker fills the table
    :math:`\phi_i` at the model of that round. With batches that are drawn with replacement,
    :math:`g_i` is an unbiased estimate of the worker's full gradient, and its variance vanishes as
    the model converges; here batches come from passes over the samples, as in every training. The
    differences between the full gradients of honest workers stay. The table holds m times d numbers
    for each worker, and training does not begin where all of them would take more than a quarter of
    the memory.

    The authors aggregate by `GeometricMedian`. They prove linear convergence to a neighborhood
    whose size follows from how different the workers' full gradients are.

    Wu, Ling, Chen, Giannakis: Federated Variance-Reduced Stochastic Gradient Descent with
    Robustness to Byzantine Attacks, IEEE Transactions on Signal Processing 2020.

    >>> from byzantium import GeometricMedian
    >>> from byzantium.data import load
    >>> from byzantium.learning import Settings, linear, simulate
    >>> settings = Settings(n=10, rounds=30, learning_rate=0.1)
    >>> digits, model = load("digits"), linear((1, 8, 8))
    >>> simulate(settings, digits, model, GeometricMedian(), worker=SAGA()).accuracy > 50
    True
    """

    def size(self, samples: Sequence[int], d: int) -> int:
        return (sum(samples) + len(samples)) * d

    def initial_state(self, team: Workers, parts: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """The tables of all workers, one below the other, and the average of each."""
        tables, start = {}, 0
        for worker, part in parts.items():  # a worker may hold a sample several times
            samples, counts = map(torch.from_numpy, np.unique(part, return_counts=True))
            tables[worker] = _Table(start, samples, counts.to(team.sent) / len(part))
            start += len(samples)
        object.__setattr__(self, "_tables_of", tables)
        rows = team.gradients.rows
        return {"gradients": rows(start), "average": rows(len(team.sent))}

    def compute(self, rows: Tensor, task: Task) -> Tensor:
        for k in task.new:
            self._fill(task, k)
        tables = [self._tables[worker] for worker in task.workers]
        workers, (k, b) = list(task.workers), task.indices[:, 0].shape
        drawn = zip(tables, task.indices[:, 0], strict=True)
        places = torch.stack([one.places(indices) for one, indices in drawn])
        shares = torch.stack([t.shares[p - t.start] for t, p in zip(tables, places, strict=True)])
        gradients, average = self.state["gradients"], self.state["average"]

        fresh = task.team.gradients.rows(k * b)
        seeds = [seed for seed in task.seeds for _ in range(b)]
        x, y = (one.flatten(0, 2)[:, None, None] for one in (task.x, task.y))
        losses = task.team.gradients(fresh, x, y, seeds=seeds)
        changes = (fresh - gradients[places.flatten()]).view(k, b, -1)
        rows.copy_(average[workers] + changes.mean(dim=1))
        # A sample that is in the batch several times changes once.
        first = np.unique(places, return_index=True)[1]
        gradients[places.flatten()[first]] = fresh[first]
        once = torch.zeros_like(shares).flatten()
        once[first] = 1
        average[workers] += ((once.view(k, b) * shares)[:, None] @ changes)[:, 0]
        return losses.view(k, b).mean(dim=1)

    def _fill(self, task: Task, k: int) -> None:
        """Fill the table of a worker, in its first round."""
        own = self._tables[task.workers[k]]
        table = self.state["gradients"][own.start : own.start + len(own.samples)]
        for start in range(0, len(table), CHUNK):
            piece = table[start : start + CHUNK]
            x, y = task.samples(own.samples[None, None, start : start + CHUNK])
            x, y = (one[0, 0][:, None, None] for one in (x, y))
            task.team.gradients(piece, x, y, seeds=[task.seeds[k]] * len(piece))
        self.state["average"][task.workers[k]] = own.shares @ table

    @property
    def _tables(self) -> dict[int, _Table]:
        tables: dict[int, _Table] = self.__dict__["_tables_of"]
        return tables


@dataclass(frozen=True)
class _Table:
    """The table of a worker.

    - `start`: where it starts among the tables of all workers.
    - `samples`: the samples of its rows, in order.
    - `shares`: how often the worker holds each of them, divided by how many samples it holds.
    """

    start: int
    samples: Tensor
    shares: Tensor

    def places(self, samples: Tensor) -> Tensor:
        """The rows of some samples among the tables of all workers."""
        rows = torch.searchsorted(self.samples, samples).clamp(max=len(self.samples) - 1)
        if not torch.equal(self.samples[rows], samples):
            raise ByzantiumError(
                "SAGA() needs workers that draw from the same samples in each pass over them"
            )
        return self.start + rows


@dataclass(frozen=True, repr=False)
class Marina(WorkerMethod):
    r"""Full gradients now and then, otherwise the last aggregate and a difference (Byz-VR-MARINA).

    .. math::

        g_i^t = \begin{cases}
            \nabla f_i(x^t) & \text{with probability } p, \text{ all workers at once} \\
            g^{t-1} + \nabla f_{iB}(x^t) - \nabla f_{iB}(x^{t-1}) & \text{otherwise}
        \end{cases}

    where :math:`g^{t-1}` is what the server's rule gave in the round before, and both gradients of
    a difference are on the same batch B. In the first round all gradients are full. There is no
    table, and no loop in a loop: a round costs two gradients of a batch, or with probability p one
    of all samples of a worker. In their released code, the authors add differences to what the
    worker itself sent before; this is the algorithm of their paper, without compression.

    - `p`: how probable full gradients are in a round, above 0, at most 1; about the batch divided
      by the samples of a worker makes both kinds of rounds cost the same.

    The authors prove linear convergence under the condition of Polyak and Lojasiewicz, with any
    agnostic rule, to a neighborhood that is a point if all workers have the same data.

    Gorbunov, Horvath, Richtarik, Gidel: Variance Reduction is an Antidote to Byzantine Workers:
    Better Rates, Weaker Assumptions and Communication Compression as a Cherry on the Top, ICLR
    2023.

    >>> from byzantium import Bucketing, GeometricMedian
    >>> from byzantium.data import load
    >>> from byzantium.learning import Settings, linear, simulate
    >>> settings, rule = Settings(n=10, rounds=30), Bucketing(s=2) >> GeometricMedian()
    >>> digits, model = load("digits"), linear((1, 8, 8))
    >>> simulate(settings, digits, model, rule, worker=Marina(p=0.2)).accuracy > 50
    True
    """

    p: Annotated[float, Gt(0), Le(1)]
    needs_last_step: ClassVar[bool] = True

    def compute(self, rows: Tensor, task: Task) -> Tensor:
        if task.last_model is None or np.random.default_rng(task.seed).random() < self.p:
            return full_gradients(rows, task)
        assert task.last_aggregate is not None
        gradients, before = task.team.gradients, task.last_model.expand_as(rows)
        rows.copy_(task.last_aggregate.expand_as(rows))
        batch = (rows, task.x, task.y)
        losses = gradients(*batch, keep=1.0, seeds=task.seeds)
        gradients(*batch, keep=1.0, share=-1.0, seeds=task.seeds, models=before)
        return losses


def full_gradients(rows: Tensor, task: Task) -> Tensor:
    """Write each worker's gradient on all its samples into its row, and return the losses."""
    gradients, sizes = task.team.gradients, [len(part) for part in task.parts]
    losses = rows.new_zeros(len(rows))
    for size in sorted(set(sizes)):  # workers with as many samples go together
        alike = [k for k, other in enumerate(sizes) if other == size]
        indices, sums = torch.stack([task.parts[k] for k in alike]), gradients.rows(len(alike))
        seeds = [task.seeds[k] for k in alike]
        for start in range(0, size, CHUNK):
            piece = indices[:, None, start : start + CHUNK]
            share = piece.shape[2] / size
            piece_losses = gradients(sums, *task.samples(piece), keep=1.0, share=share, seeds=seeds)
            losses[alike] += share * piece_losses
        rows[alike] = sums
    return losses
