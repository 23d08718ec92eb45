"""Optimizers of torch, without the compiler of torch.

An optimizer of torch imports the compiler when it is made and whenever it takes a step, only to say
that it is not to be compiled. That takes longer than importing torch, and makes steps of small
models slower.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)

METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def eager(optimizer: type[Optimizer]) -> type[Optimizer]:
    """The same optimizer, computed as it is written.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> weight.grad = torch.tensor([4.0])
    >>> SGD([weight], lr=0.5).step()
    >>> weight.data
    tensor([-1.])
    """
    # torch wraps methods by functools, which remember what they wrap.
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in METHODS}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    methods |= {"__module__": optimizer.__module__, "__doc__": optimizer.__doc__}
    return type(optimizer.__name__, (optimizer,), methods)


SGD, AdamW = eager(torch.optim.SGD), eager(torch.optim.AdamW)


def plain(rate: float) -> Callable[[Any], torch.optim.Optimizer]:
    """What makes the optimizer of a training that names none: SGD with this learning rate."""
    return lambda parameters: SGD(parameters, lr=rate)
