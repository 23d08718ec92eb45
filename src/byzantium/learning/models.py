"""Models: the paper's CNN, two networks for small images, an MLP and a linear model; checks."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor, nn

from byzantium.core import ByzantiumError, Positive, checked, one_line, register
from byzantium.data.dataset import Dataset
from byzantium.learning.losses import Loss

P = ParamSpec("P")
# Channels that GroupNorm looks at together.
GROUP = 8


@checked
def cnn(scale: Positive = 1, classes: Positive = 10) -> nn.Sequential:
    """The convolutional network of the bucketing paper, for images of 1 x 28 x 28.

    Two convolutions (a ReLU follows the first alone, as in the published runs) and two fully
    connected layers; it returns logits. Its weights are stored with channels last, which is fastest
    on CPUs.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR
    2022.

    - `scale`: multiplies the channels of both convolutions, as in the published runs. (The paper's
      text says that it widens the fully connected layer, too.)
    - `classes`: how many numbers the model gives for each image.

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


class FixedDropout(nn.Module):
    """A dropout layer with given random numbers, which drops the same in every pass.

    - `p`: how large a share is dropped.
    - `numbers`: a function of a count: so many random numbers from 0 to 1, of float32. What has a
      number below 1 - p stays, and is divided by 1 - p.
    - `channels`: whether whole channels are dropped, instead of single numbers.

    >>> FixedDropout(0.5, lambda count: torch.linspace(0, 1, count))(torch.ones(1, 4))
    tensor([[2., 2., 0., 0.]])
    """

    def __init__(self, p: float, numbers: Callable[[int], Tensor], channels: bool = False) -> None:
        super().__init__()
        self.p, self.numbers, self.channels = p, numbers, channels
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        shape = tuple(x.shape)
        if self.channels:
            shape = (*shape[:2], *(1 for _ in shape[2:]))
        if shape not in self._masks:
            stays = self.numbers(math.prod(shape)).view(shape) < 1 - self.p
            self._masks[shape] = stays / (1 - self.p)
        return x * self._masks[shape].to(x)


def without_dropout(
    model: nn.Module, instead: Callable[[int, float, bool], nn.Module]
) -> nn.Module:
    """Replace the dropout layers of a model by other layers.

    - `model`: the model, which is changed.
    - `instead`: a function that makes such a layer: of its number (0 for the first one), the share
      that it drops, and whether it drops whole channels.

    Returns the model.
    """
    count = itertools.count()
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, (nn.Dropout, nn.Dropout2d)):
                channels = isinstance(layer, nn.Dropout2d)
                setattr(parent, name, instead(next(count), layer.p, channels))
    return model


class _Pooling(nn.MaxPool2d):
    """Max pooling whose gradient has its channels last, as its input has.

    The layers behind it flatten, so that their gradient has channels first, and torch would bring
    the whole of the input into that order instead of the four times smaller gradient into this.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        output = super().forward(input)
        if output.requires_grad:
            output.register_hook(lambda grad: grad.contiguous(memory_format=torch.channels_last))
        return output


@checked
def convnet(channels: Positive = 3, width: Positive = 32, classes: Positive = 10) -> nn.Sequential:
    """A network of three convolutions with GroupNorm, for images of 8 x 8 or more (CIFAR-10).

    It returns logits. It has GroupNorm instead of BatchNorm, whose running statistics are no part
    of what workers send, so that nobody would aggregate them.

    - `width`: how many channels the first convolution gives; the others give twice as many.
    - `classes`: how many numbers the model gives for each image.

    >>> sum(p.numel() for p in convnet().parameters())
    66890
    """
    layers: list[nn.Module] = []
    for inputs, outputs, pooling in (
        (channels, width, nn.MaxPool2d(2)),
        (width, 2 * width, nn.MaxPool2d(2)),
        (2 * width, 2 * width, nn.AdaptiveAvgPool2d(4)),
    ):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), _norm(outputs), nn.ReLU(), pooling]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * 16, classes))


@checked
def resnet20(channels: Positive = 3, width: Positive = 16, classes: Positive = 10) -> nn.Sequential:
    """The residual network of 20 layers for CIFAR-10, with GroupNorm instead of BatchNorm.

    It returns logits. Shortcuts between stages take every second pixel and fill up with zeros
    (option A of the paper), so that they have no parameters.

    He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, CVPR 2016; Wu, He: Group
    Normalization, ECCV 2018.

    - `width`: how many channels the first of three stages has; each has twice those of the one
      before.
    - `classes`: how many numbers the model gives for each image.

    >>> sum(p.numel() for p in resnet20().parameters())
    269722
    """
    layers = [nn.Conv2d(channels, width, 3, padding=1, bias=False), _norm(width), nn.ReLU()]
    widths = [width] * 4 + [2 * width] * 3 + [4 * width] * 3
    layers += [_Block(inputs, outputs) for inputs, outputs in itertools.pairwise(widths)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)]
    return nn.Sequential(*layers)


class _Block(nn.Module):
    """Two convolutions, added to what went in."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.added = outputs - inputs
        stride = 2 if self.added else 1
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            _norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            _norm(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        short = x
        if self.added:
            short = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        return nn.functional.relu(short + self.convolutions(x))


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(channels, max(1, channels // GROUP)), channels)


@checked
def mlp(
    shape: tuple[Positive, ...], hidden: tuple[Positive, ...] = (64,), classes: Positive = 10
) -> nn.Sequential:
    """A multilayer perceptron: fully connected layers with ReLU between them.

    - `shape`: the shape of one sample, such as (1, 28, 28).
    - `hidden`: how many units each hidden layer has.
    - `classes`: how many numbers the model gives for each sample.

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
    """A linear model: with the loss cross_entropy, multinomial logistic regression.

    Its parameters are those of `mlp`.

    >>> sum(p.numel() for p in linear((1, 8, 8)).parameters())
    650
    """
    return mlp(shape, hidden=(), classes=classes)


def model(build: Callable[Concatenate[Dataset, P], nn.Module]) -> Callable[..., nn.Module]:
    """Decorate a function that builds a model, so that a plugin offers it by the function's name.

    The first parameter of the function is the data set that the model is for; further ones are
    those of the notation: `--model "tiny(width=8)"`.

    >>> @model
    ... def tiny(data, width: int = 4):
    ...     return mlp(data.train_x.shape[1:], (width,), data.classes)
    """
    if not inspect.signature(build).parameters:
        raise ByzantiumError(
            f"{build.__name__} needs a first parameter, the data set to build a model for"
        )
    return register(build, "model")


def check_device(name: str) -> None:
    """Raise an error unless torch can compute on a device of this machine."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = one_line(str(error))
        raise ByzantiumError(f"a simulation cannot use the device {name!r}: {why}") from error
    if device.type == "meta":
        raise ByzantiumError("a simulation cannot use the device 'meta', which holds no numbers")


def check_fit(model: nn.Module, data: Dataset, loss: Loss, name: str = "the model") -> None:
    """Raise an error unless a model fits the samples of a data set, and its outputs fit the loss.

    It is tried on two samples, on the device of the model, which may be torch's `meta`.
    """
    where = next((p for p in model.parameters()), torch.empty(0))
    x = data.train_x[:1].expand(2, *data.train_x.shape[1:]).to(where)
    y = data.train_y[:1].expand(2, *data.train_y.shape[1:]).to(where.device)
    trainable(model)
    mode = model.training
    model.eval()  # nothing random is drawn
    try:
        with torch.no_grad():
            outputs = model(x)
            if data.classes and (outputs.ndim != 2 or outputs.shape[1] < data.classes):
                raise ByzantiumError(
                    f"{name} gives an answer of shape {tuple(outputs.shape[1:])} for each "
                    f"sample, and {data.name} has {data.classes} classes"
                )
            value = loss(outputs, y)
    except NotImplementedError:
        return  # of a layer that cannot tell shapes without numbers
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, ByzantiumError):
            raise
        size = " x ".join(map(str, data.train_x.shape[1:]))
        why = one_line(str(error))
        raise ByzantiumError(
            f"{name} does not fit {data.name}, whose samples are {size}: {why}"
        ) from error
    finally:
        model.train(mode)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ByzantiumError("a loss must give one number, the mean over a batch")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a model that are trained, by name.

    A model with buffers, such as BatchNorm's statistics, is refused: nobody would aggregate them.
    """
    if buffers := [name for name, _ in model.named_buffers()]:
        raise ByzantiumError(
            f"the model keeps {', '.join(buffers[:3])} beside its parameters, which nobody would "
            "aggregate; use GroupNorm or LayerNorm instead of BatchNorm"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ByzantiumError("the model has no parameters to train")
    return parameters
