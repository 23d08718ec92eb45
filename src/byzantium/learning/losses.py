"""Loss functions: what is minimized, as a mean over a batch of outputs and targets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from torch import Tensor
from torch.nn import functional

from byzantium.core import PositiveMeasure, Registry, notation, register

P = ParamSpec("P")
Loss = Callable[[Tensor, Tensor], Tensor]


def loss(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorate a loss function, so that a plugin offers it by the function's name.

    The function takes the outputs (b, ...) of a model and the targets (b, ...) of a batch, and
    returns one number; further parameters are those of the notation.

    >>> @loss
    ... def largest(outputs, targets, power: float = 1.0):
    ...     return (outputs - targets).abs().max() ** power
    """
    return register(function, "loss")


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of logits (b, classes) and labels (b,): classification.

    >>> float(cross_entropy(torch.zeros(1, 2), torch.tensor([0])).exp())
    2.0
    """
    return functional.cross_entropy(outputs, targets)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error: regression.

    >>> float(squared(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 3.0])))
    0.5
    """
    return functional.mse_loss(outputs.reshape(targets.shape), targets)


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error: regression in which a few large errors do not dominate.

    >>> float(absolute(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 3.0])))
    0.5
    """
    return functional.l1_loss(outputs.reshape(targets.shape), targets)


def huber(outputs: Tensor, targets: Tensor, delta: PositiveMeasure = 1.0) -> Tensor:
    """The Huber loss: regression, squared for errors up to delta, linear for larger ones.

    >>> float(huber(torch.tensor([[10.0]]), torch.tensor([0.0])))
    9.5
    """
    return functional.huber_loss(outputs.reshape(targets.shape), targets, delta=delta)


LOSSES: Registry[Callable[..., Tensor]] = Registry(
    "loss", {one.__name__: one for one in (cross_entropy, squared, absolute, huber)}
)


def spelled(text: str) -> tuple[str, Loss]:
    """The usual spelling of a loss, and its function.

    >>> spelled("huber(2)")[0], spelled("huber(1)")[0]
    ('huber(delta=2.0)', 'huber')
    """
    name, function = notation.spelled(text, LOSSES, leading=2)
    assert isinstance(function, functools.partial)
    return name, function if function.keywords else function.func


def read(text: str) -> Loss:
    """The loss function that a text names, such as "squared" or "huber(delta=2)"."""
    return spelled(text)[1]
