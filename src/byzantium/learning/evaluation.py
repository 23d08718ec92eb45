"""Looking at a model and at what workers send: accuracy, heterogeneity, spread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.aggregation import Geometry, GivenPoints, Matrix
from byzantium.learning.dataset import Dataset
from byzantium.learning.gradients import WorkerGradients
from byzantium.learning.losses import Loss, cross_entropy

# Where all samples are looked at, they are looked at in chunks of so many: what the layers of the
# paper's CNN hand on then stays in the cache.
CHUNK = 128


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, loss: Loss = cross_entropy) -> dict[str, float]:
    """The mean loss on the test set and, where there are classes, the accuracy (percent)."""
    mode = model.training
    model.eval()
    total, correct = 0.0, 0
    for start in range(0, len(data.test_y), CHUNK):
        x = data.test_x[start : start + CHUNK]
        y = data.test_y[start : start + CHUNK]
        outputs = model(x)
        if loss is cross_entropy:
            total += float(nn.functional.cross_entropy(outputs, y, reduction="sum"))
        else:
            total += float(loss(outputs, y)) * len(y)
        if data.classes:
            correct += int((outputs.argmax(dim=1) == y).sum())
    model.train(mode)
    count = len(data.test_y)
    accuracy = {"accuracy": 100 * correct / count} if data.classes else {}
    return {"loss": total / count, **accuracy}


def heterogeneity(
    gradients: WorkerGradients, data: Dataset, parts: Sequence[Tensor]
) -> dict[str, float]:
    """The paper's zeta^2 and B^2 at the current model, from full local gradients.

    zeta^2 = mean_j ||grad f_j - grad f||^2 and B^2 = zeta^2 / ||grad f||^2 over the honest workers,
    who hold these parts of the data.
    """
    mode = gradients.model.training
    gradients.model.eval()
    rows = gradients.rows(len(parts))
    for row, part in zip(rows, parts, strict=True):
        for start in range(0, len(part), CHUNK):
            piece = part[start : start + CHUNK]
            x, y = data.train_x[piece][None, None], data.train_y[piece][None, None]
            gradients(row[None], x, y, keep=1.0, share=len(piece) / len(part))
    gradients.model.train(mode)
    zeta2 = spread(rows)
    return {"zeta2": zeta2, "b2": zeta2 / float(rows.mean(dim=0).double().square().sum())}


def spread(rows: Tensor) -> float:
    """The mean squared distance of rows to their mean."""
    n = len(rows)
    geometry = Geometry.of(GivenPoints(Matrix(rows)))
    return float((geometry.distances_to(geometry.uniform_over(np.arange(n))) ** 2).mean())
