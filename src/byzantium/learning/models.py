"""Models: the paper's CNN, an MLP, a linear model; and what a user's own must not have."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from byzantium.core import ByzantiumError, Positive, checked


@checked
def cnn(scale: Positive = 1, classes: Positive = 10) -> nn.Sequential:
    """The convolutional network of the bucketing paper, for 28 x 28 images of one channel.

    `scale` multiplies the channels of both convolutions, as in the published runs (their text: and
    the width of the fully connected layer). 1,199,882 parameters at scale 1. There is no ReLU
    behind the second convolution. Returns logits. Channels come last in memory, as a CPU likes
    it best.

    >>> sum(p.numel() for p in cnn().parameters())
    1199882
    """
    model = nn.Sequential(
        nn.Conv2d(1, 32 * scale, 3),
        nn.ReLU(),
        nn.Conv2d(32 * scale, 64 * scale, 3),
        _Pooling(2),
        nn.Dropout2d(0.25),
        nn.Flatten(),
        nn.Linear(9216 * scale, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class _Pooling(nn.MaxPool2d):
    """Max pooling whose gradient has its channels last, as its input has.

    The layers behind it flatten, so that their gradient has channels first, and torch would bring
    the whole of the input into that order instead of the four times smaller gradient into this.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        output = super().forward(input)
        if output.requires_grad:
            output.register_hook(_channels_last)
        return output


def _channels_last(gradient: Tensor) -> Tensor:
    return gradient.contiguous(memory_format=torch.channels_last)


@checked
def mlp(
    shape: tuple[Positive, ...], hidden: tuple[Positive, ...] = (64,), classes: Positive = 10
) -> nn.Sequential:
    """Fully connected layers with ReLU between them, for inputs of a shape.

    >>> mlp((1, 8, 8), hidden=(32,))
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """
    sizes = (math.prod(shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes))


@checked
def linear(shape: tuple[Positive, ...], classes: Positive = 10) -> nn.Sequential:
    """Multinomial logistic regression."""
    return mlp(shape, hidden=(), classes=classes)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained; refuses a model with state that nobody would aggregate."""
    if buffers := [name for name, _ in model.named_buffers()]:
        raise ByzantiumError(
            f"the model keeps {', '.join(buffers[:3])} beside its parameters, which nobody would "
            "aggregate; use GroupNorm or LayerNorm instead of BatchNorm"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ByzantiumError("the model has no parameters to train")
    return parameters
