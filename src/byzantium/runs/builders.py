"""The objects that the texts of a run name: its data set, model, optimizer and rule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from byzantium import learning, related
from byzantium.core import ByzantiumError, Measure, Positive, Registry, notation
from byzantium.core.registry import exported
from byzantium.data import Dataset, datasets, load, long_tail, user_files
from byzantium.learning import WorkerMethod, models, optimizers
from byzantium.learning.gradients import one_thread
from byzantium.rules import Aggregator, Mixing, parse, parse_rule


def _outputs(data: Dataset) -> int:
    """How many numbers a model must give: one for each class, or as many as a target has."""
    return data.classes or data.train_y[0].numel()


def _cnn(data: Dataset, scale: Positive = 1) -> nn.Module:
    """The paper's convolutional network, for images of 1 x 28 x 28."""
    if data.train_x.shape[1:] != (1, 28, 28):
        size = " x ".join(map(str, data.train_x.shape[1:]))
        raise ByzantiumError(
            f"the model cnn is for images of 1 x 28 x 28, those of {data.name} are {size}"
        )
    return models.cnn(scale, _outputs(data))


def _mlp(data: Dataset, hidden: Positive = 64, layers: Positive = 1) -> nn.Module:
    """Fully connected layers with ReLU between them."""
    return models.mlp(tuple(data.train_x.shape[1:]), (hidden,) * layers, _outputs(data))


def _linear(data: Dataset) -> nn.Module:
    """Multinomial logistic regression, or linear regression."""
    return models.linear(tuple(data.train_x.shape[1:]), _outputs(data))


def _convnet(data: Dataset, width: Positive = 32) -> nn.Module:
    """Three convolutions with GroupNorm, for pictures such as those of CIFAR-10."""
    return models.convnet(_channels(data, "convnet"), width, _outputs(data))


def _resnet20(data: Dataset, width: Positive = 16) -> nn.Module:
    """The residual network of 20 layers, with GroupNorm."""
    return models.resnet20(_channels(data, "resnet20"), width, _outputs(data))


def _channels(data: Dataset, name: str) -> int:
    shape = data.train_x.shape[1:]
    if len(shape) != 3 or min(shape[1:]) < 8:
        size = " x ".join(map(str, shape))
        raise ByzantiumError(
            f"the model {name} is for pictures of at least 8 x 8, those of {data.name} are {size}"
        )
    return shape[0]


MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model", {one.__name__[1:]: one for one in (_cnn, _convnet, _resnet20, _mlp, _linear)}
)


def _sgd(
    parameters: Any, rate: float, momentum: Measure = 0.0, weight_decay: Measure = 0.0
) -> torch.optim.Optimizer:
    return optimizers.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)


def _adam(parameters: Any, rate: float, weight_decay: Measure = 0.0) -> torch.optim.Optimizer:
    return optimizers.AdamW(parameters, lr=rate, weight_decay=weight_decay)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": _sgd, "adam": _adam}


@functools.cache
def worker_methods() -> Registry[type[WorkerMethod]]:
    """All worker methods that can be named: ours, and those of loaded plugins."""
    classes = exported(learning, WorkerMethod) | exported(related, WorkerMethod)
    concrete = {name: one for name, one in classes.items() if not inspect.isabstract(one)}
    return Registry("worker method", concrete)


def worker(text: str, momentum: float, heavy_ball: bool) -> WorkerMethod:
    """The worker method that a text names; `Momentum()` has the momentum of the run."""
    defaults = {"beta": momentum}
    method = notation.read(notation.with_parentheses(text), worker_methods(), defaults)
    assert isinstance(method, WorkerMethod)
    if method == learning.Momentum(momentum):
        return learning.Momentum(momentum, heavy_ball)
    return method


def spelled_data(text: str) -> str:
    """The usual spelling of a data set; for a file, its name and a digest of its contents."""
    return user_files.with_digest(text) if user_files.is_file(text) else datasets.spelled(text)[0]


def load_data(name: str, gamma: float) -> Dataset:
    """A data set with a long tail, unless gamma is 1."""
    # Where a model is small, the threads of torch need not even start.
    with one_thread(True):
        data = load(name)
    return data if gamma == 1 else long_tail(data, gamma)


@functools.lru_cache(maxsize=2)
def dataset(name: str, gamma: float, folder: str | None, plugins: tuple[str, ...]) -> Dataset:
    """The data set, which is read once for all runs with these plugins and this folder of files."""
    return load_data(name, gamma)


def read_rule(text: str, f: int) -> Aggregator:
    """The rule that a text names; one that is written without f takes this one."""
    return parse_rule(notation.with_parentheses(text), f=f)


def read_stage(text: str, f: int) -> Aggregator | Mixing:
    """The rule or the mixing that a text names, which the nodes of a graph apply."""
    return parse(notation.with_parentheses(text), f=f)


def model(text: str) -> tuple[str, Callable[[Dataset], nn.Module]]:
    """The usual spelling of a model, and the function that builds it for a data set."""
    return notation.spelled(text, MODELS, leading=1)


def optimizer(text: str) -> tuple[str, Callable[[Any, float], torch.optim.Optimizer]]:
    """The usual spelling of an optimizer, and its function of parameters and a learning rate."""
    return notation.spelled(text, OPTIMIZERS, leading=2)
