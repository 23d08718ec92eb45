"""Draws docs/pictures/convergence.svg: SGD with momentum, SAGA and MARINA under attack.

Logistic regression with weight decay on digits, in float64; 5 of 25 workers send ALIE. Shown is
how far the objective of the honest workers is above its minimum, which Newton's method finds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch
from pictures import FOLDER, LOOK, plain, sheet
from torch import Tensor
from torch.nn.functional import cross_entropy

import byzantium as bz
from byzantium.data import Dataset, Partition, by_label, load
from byzantium.learning import Settings, Simulation, WorkerMethod, linear
from byzantium.learning.optimizers import SGD
from byzantium.related import SAGA, Marina
from byzantium.reports.palette import OTHER_LINES

DECAY, RATE, ROUNDS, EVERY = 0.1, 0.2, 600, 5
METHODS: dict[str, WorkerMethod | None] = {
    "SGD with momentum 0.9": None,
    "SAGA": SAGA(),
    "MARINA, p = 0.1": Marina(p=0.1),
}


@bz.partition
def shared(samples: np.ndarray, workers: int, rng: np.random.Generator) -> list[np.ndarray]:
    """All workers hold the same samples."""
    return [rng.permutation(samples)[:320]] * workers


PANELS: dict[str, Partition] = {
    "all workers hold the same data": shared(),
    "data sorted by label": by_label(),
}


class Objective:
    """The mean over honest workers of their mean losses, with weight decay."""

    def __init__(self, data: Dataset, parts: Sequence[Tensor]) -> None:
        counts = torch.zeros(len(data.train_y), dtype=torch.float64)
        for part in parts:
            counts.index_add_(
                0, part, torch.full((len(part),), 1 / len(part) / len(parts)).double()
            )
        used = counts > 0
        flat = data.train_x[used].double().flatten(1)
        self.x = torch.cat([flat, torch.ones(len(flat), 1)], dim=1)  # a column for the biases
        self.y, self.shares = data.train_y[used], counts[used]

    def __call__(self, weight: Tensor) -> Tensor:
        """The objective; `weight` has a row for each class, the bias last."""
        losses = cross_entropy(self.x @ weight.T, self.y, reduction="none")
        return losses @ self.shares + DECAY / 2 * weight.square().sum()

    def minimum(self) -> float:
        """The smallest value, by Newton's method."""
        weight = torch.zeros(int(self.y.max()) + 1, self.x.shape[1], dtype=torch.float64)
        for _ in range(12):
            leaf = weight.clone().requires_grad_()
            (slope,) = torch.autograd.grad(self(leaf), leaf)
            probability = (self.x @ weight.T).softmax(dim=1)
            scaled = probability * self.shares[:, None]
            size = weight.numel()
            blocks = torch.einsum("nc,nd,ni,nj->cidj", scaled, -probability, self.x, self.x)
            for c in range(len(weight)):
                blocks[c, :, c] += (self.x * scaled[:, c, None]).T @ self.x
            bend = blocks.reshape(size, size) + DECAY * torch.eye(size, dtype=torch.float64)
            weight = weight - torch.linalg.solve(bend, slope.flatten()).view_as(weight)
        assert float(slope.norm()) < 1e-12
        return float(self(weight))


def gaps(worker: WorkerMethod | None, partition: Partition) -> list[float]:
    """How far the objective is above its minimum, after every `EVERY` rounds."""
    settings = Settings(
        n=25,
        attackers=5,
        rounds=ROUNDS,
        momentum=0.9 if worker is None else 0.0,
        evaluate_every=ROUNDS,
        dtype="float64",
        record=(),
    )
    torch.manual_seed(0)
    run = Simulation(
        settings,
        load("digits"),
        linear((1, 8, 8)),
        bz.Bucketing(s=2) >> bz.GeometricMedian(),
        bz.ALittleIsEnough(),
        partition,
        worker=worker,
        optimizer=lambda parameters: SGD(parameters, lr=RATE, weight_decay=DECAY),
    )
    objective = Objective(run.data, run.batches.parts)
    smallest, found = objective.minimum(), list[float]()
    for record in run:
        if record["round"] % EVERY == 0:
            weight, bias = (parameter.detach() for parameter in run.model.parameters())
            found.append(float(objective(torch.cat([weight, bias[:, None]], dim=1))) - smallest)
    return found


def main() -> None:
    """Draw the picture, and print where the curves end."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with matplotlib.rc_context(LOOK):
        figure = sheet("Logistic regression, 5 of 25 attack (ALIE)", 3.4)
        axes = figure.subplots(1, len(PANELS), sharey=True)
        for axis, (title, partition) in zip(axes, PANELS.items(), strict=True):
            for (name, worker), color in zip(METHODS.items(), OTHER_LINES, strict=False):
                found = gaps(worker, partition)
                rounds = range(EVERY, ROUNDS + 1, EVERY)
                # SAGA and MARINA lie on each other: the first is wide, the second dashed.
                style = {"SAGA": {"lw": 3.6}}.get(name, {"lw": 1.4})
                dashes = "--" if isinstance(worker, Marina) else "-"
                axis.plot(rounds, found, color=color.light, ls=dashes, label=name, **style)
                print(f"{title}, {name}: {found[len(found) // 2]:.1e}, {found[-1]:.1e}")
            axis.set_title(title, loc="left")
            axis.set(yscale="log", xlabel="round", xlim=(0, ROUNDS))
            plain(axis)
        axes[0].set_ylabel("objective above its minimum")
        axes[0].legend()
        figure.savefig(Path(FOLDER) / "convergence.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
