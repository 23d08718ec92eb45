"""What the texts of a run stand for: its data, model, optimiser and rule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from byzantium.aggregation import Aggregator, parse_rule
from byzantium.core import ByzantiumError, Measure, Positive, fitted_arguments, notation
from byzantium.learning import Dataset, load, long_tail, models


def _cnn(data: Dataset, scale: Positive = 1) -> nn.Module:
    if data.train_x.shape[1:] != (1, 28, 28):
        size = " x ".join(map(str, data.train_x.shape[1:]))
        raise ByzantiumError(
            f"the model cnn is for images of 1 x 28 x 28, those of {data.name} are {size}"
        )
    return models.cnn(scale, data.classes)


def _mlp(data: Dataset, hidden: Positive = 64, layers: Positive = 1) -> nn.Module:
    return models.mlp(tuple(data.train_x.shape[1:]), (hidden,) * layers, data.classes)


def _linear(data: Dataset) -> nn.Module:
    return models.linear(tuple(data.train_x.shape[1:]), data.classes)


MODELS: dict[str, Callable[..., nn.Module]] = {"cnn": _cnn, "mlp": _mlp, "linear": _linear}


def _sgd(
    parameters: Any, rate: float, momentum: Measure = 0.0, weight_decay: Measure = 0.0
) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=weight_decay)


def _adam(parameters: Any, rate: float, weight_decay: Measure = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=weight_decay)


OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"sgd": _sgd, "adam": _adam}


def selected(name: str, gamma: float) -> Dataset:
    data = load(name)
    return data if gamma == 1 else long_tail(data, gamma)


@functools.lru_cache(maxsize=2)
def dataset(name: str, gamma: float, folder: str | None) -> Dataset:
    """Read once for all runs of a process; `folder` is where `load` looks for the files."""
    return selected(name, gamma)


def rule_of(text: str, f: int) -> Aggregator:
    """A rule from its notation; written without its f, it has this one."""
    return parse_rule(called(text), f=f)


def called(text: str) -> str:
    """`Median` is short for `Median()`."""
    return f"{text.strip()}()" if text.strip().isidentifier() else text


def model(text: str) -> tuple[str, Callable[[Dataset], nn.Module]]:
    """How a model is written, and what builds it for a data set."""
    return _spelled(text, MODELS, given=1)


def optimiser(text: str) -> tuple[str, Callable[[Any, float], torch.optim.Optimizer]]:
    """How an optimiser is written, and what makes it of parameters and a learning rate."""
    return _spelled(text, OPTIMISERS, given=2)


def _spelled(
    text: str, known: Mapping[str, Callable[..., Any]], given: int
) -> tuple[str, Callable[..., Any]]:
    """How `name(argument=value)` is written, and the function with these arguments.

    The first `given` parameters are not of the notation.
    """

    def note(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**arguments: Any) -> tuple[str, dict[str, Any]]:
            return name, fitted_arguments(make, arguments)

        signature = inspect.signature(make)
        written = list(signature.parameters.values())[given:]
        noted.__signature__ = signature.replace(parameters=written)  # type: ignore[attr-defined]
        return noted

    noting = {name: note(name, make) for name, make in known.items()}
    name, arguments = notation.read(called(text), noting)
    defaults = inspect.signature(known[name]).parameters
    given_ones = {k: v for k, v in arguments.items() if v != defaults[k].default}
    listed = ", ".join(f"{argument}={value}" for argument, value in given_ones.items())
    return f"{name}({listed})" if listed else name, functools.partial(known[name], **arguments)
