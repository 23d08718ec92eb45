"""Measures of a model and of the vectors of workers: accuracy, heterogeneity, spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.data.dataset import Dataset
from byzantium.learning.gradients import WorkerGradients
from byzantium.learning.losses import Loss, cross_entropy
from byzantium.vectors import Geometry, Matrix
from byzantium.vectors.points import SourcePoints

# The samples of a pass: the activations of the paper's CNN for so many stay in the cache.
CHUNK = 128


@torch.no_grad()
def _outputs(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """What a model gives for samples, beside their targets, chunk by chunk; nothing is dropped."""
    mode = model.training
    model.eval()
    for start in range(0, len(y), CHUNK):
        yield model(x[start : start + CHUNK]), y[start : start + CHUNK]
    model.train(mode)


def _correct(outputs: Tensor, y: Tensor) -> int:
    return int((outputs.argmax(dim=1) == y).sum())


def evaluate(model: nn.Module, data: Dataset, loss: Loss = cross_entropy) -> dict[str, float]:
    """The mean loss on the test set and, where there are classes, the accuracy (percent)."""
    total, correct, count = 0.0, 0, len(data.test_y)
    for outputs, y in _outputs(model, data.test_x, data.test_y):
        if loss is cross_entropy:
            total += float(nn.functional.cross_entropy(outputs, y, reduction="sum"))
        else:
            total += float(loss(outputs, y)) * len(y)
        correct += _correct(outputs, y) if data.classes else 0
    accuracy = {"accuracy": 100 * correct / count} if data.classes else {}
    return {"loss": total / count, **accuracy}


def average(values: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean of each of several evaluations' numbers.

    >>> average([{"loss": 1.0}, {"loss": 2.0}])
    {'loss': 1.5}
    """
    return {name: sum(value[name] for value in values) / len(values) for name in values[0]}


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """How many samples x a model calls y, in percent; NaN without samples."""
    correct = sum(_correct(*chunk) for chunk in _outputs(model, x, y))
    return 100 * correct / len(y) if len(y) else math.nan


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

    >>> spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]))
    2.5
    """
    n = len(rows)
    geometry = Geometry.of(SourcePoints(Matrix(rows)))
    return float((geometry.distances_to(geometry.uniform_over(np.arange(n))) ** 2).mean())


def relative_spread(mean: Tensor, deviation: Tensor, n: int) -> float:
    r"""How far n vectors are spread, relative to their mean: :math:`B^2`, from their moments.

    .. math:: B^2 = \frac{1}{n} \sum_{i=1}^{n} \|x_i - \bar x\|^2 / \|\bar x\|^2

    Infinite where the mean is zero and the rows differ; NaN where all rows are zero.

    >>> from byzantium.vectors.points import moments
    >>> rows = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 2.0]])
    >>> round(relative_spread(*moments(rows), n=3), 4)
    0.35
    """
    length = float(mean.double().square().sum())
    spread = spread_of(deviation, n)
    if not length:
        return math.inf if spread else math.nan
    return spread / length


def spread_of(deviation: Tensor, n: int) -> float:
    """`spread`, from the standard deviation of each coordinate of n rows; in one pass over them."""
    return float(deviation.double().square().sum()) * (n - 1) / n if n > 1 else 0.0
