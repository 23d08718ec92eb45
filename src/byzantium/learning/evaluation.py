"""Measures of a model and of the vectors of workers: accuracy, heterogeneity, spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.data.dataset import Dataset
from byzantium.learning.gradients import WorkerGradients
from byzantium.learning.losses import Loss, cross_entropy
from byzantium.vectors import Geometry, Matrix
from byzantium.vectors.points import SourcePoints, moments

# The samples of a pass: the activations of the paper's CNN for so many stay in the cache.
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


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How many samples x a model calls y, in percent; NaN without samples."""
    if not len(y):
        return math.nan
    mode = model.training
    model.eval()
    correct = 0
    for start in range(0, len(y), CHUNK):
        outputs = model(x[start : start + CHUNK])
        correct += int((outputs.argmax(dim=1) == y[start : start + CHUNK]).sum())
    model.train(mode)
    return 100 * correct / len(y)


def heterogeneity(
    gradients: WorkerGradients, data: Dataset, parts: Sequence[Tensor]
) -> dict[str, float]:
    r"""The paper's :math:`\zeta^2` and :math:`B^2` at the current model, from full local gradients.

    .. math::

        \zeta^2 = \frac{1}{h} \sum_j \|\nabla f_j - \nabla f\|^2,
        \qquad B^2 = \zeta^2 / \|\nabla f\|^2

    over the h honest workers, who hold these parts of the data.
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
    r"""How far vectors are spread: the mean squared distance of rows to their mean.

    .. math:: \frac{1}{n} \sum_{i=1}^{n} \|x_i - \bar x\|^2

    It is computed in float64, from differences, so that a large common part costs no digits.

    - `rows`: (n, d), a vector in each row.

    >>> spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]))
    2.5
    """
    n = len(rows)
    geometry = Geometry.of(SourcePoints(Matrix(rows)))
    return float((geometry.distances_to(geometry.uniform_over(np.arange(n))) ** 2).mean())


def relative_spread(rows: Tensor) -> float:
    r"""How far vectors are spread, relative to their mean: :math:`B^2`.

    .. math:: B^2 = \frac{1}{n} \sum_{i=1}^{n} \|x_i - \bar x\|^2 / \|\bar x\|^2

    It is computed in one pass. Infinite where the mean is zero and the rows differ; NaN where all
    rows are zero.

    - `rows`: (n, d), a vector in each row.

    >>> round(relative_spread(torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 2.0]])), 4)
    0.35
    """
    return relative_spread_of(*moments(rows), len(rows))


def relative_spread_of(mean: Tensor, deviation: Tensor, n: int) -> float:
    """`relative_spread`, from the moments of n rows."""
    length = float(mean.double().square().sum())
    spread = spread_of(deviation, n)
    if not length:
        return math.inf if spread else math.nan
    return spread / length


def spread_of(deviation: Tensor, n: int) -> float:
    """`spread`, from the standard deviation of each coordinate of n rows; in one pass over them."""
    return float(deviation.double().square().sum()) * (n - 1) / n if n > 1 else 0.0
