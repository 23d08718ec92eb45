"""What is minimised: a mean over a batch, of what a model says and what is true."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from torch import Tensor
from torch.nn import functional

from byzantium.core import Members, PositiveMeasure, notation, offered

P = ParamSpec("P")
Loss = Callable[[Tensor, Tensor], Tensor]


def loss(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorates a loss of one's own: a plugin offers it under the function's name.

    The function is given outputs (b, ...) and targets (b, ...) of a batch and returns a number; its
    further parameters are those of the notation.
    """
    return offered(function, "loss")


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of logits (b, classes) and labels (b,)."""
    return functional.cross_entropy(outputs, targets)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error: regression.

    >>> float(squared(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 3.0])))
    0.5
    """
    return functional.mse_loss(outputs.reshape(targets.shape), targets)


def absolute(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error: regression that few large errors do not govern."""
    return functional.l1_loss(outputs.reshape(targets.shape), targets)


def huber(outputs: Tensor, targets: Tensor, delta: PositiveMeasure = 1.0) -> Tensor:
    """Squared up to delta, absolute beyond."""
    return functional.huber_loss(outputs.reshape(targets.shape), targets, delta=delta)


LOSSES: Members[Callable[..., Tensor]] = Members(
    "loss",
    {
        "cross_entropy": cross_entropy,
        "squared": squared,
        "absolute": absolute,
        "huber": huber,
    },
)


def spelled(text: str) -> tuple[str, Loss]:
    """How a loss is written, and the function.

    >>> spelled("huber(2)")[0], spelled("huber(1)")[0]
    ('huber(delta=2.0)', 'huber')
    """
    name, function = notation.spelled(text, LOSSES, given=2)
    assert isinstance(function, functools.partial)
    return name, function if function.keywords else function.func


def read(text: str) -> Loss:
    return spelled(text)[1]
