"""The server's step: with any optimizer of torch, the aggregate in the place of the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from byzantium.engines.federation.vectors import Arrays, wide_dtype

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Step:
    """The server's step, from the current model and the aggregate to the next model.

    Without an optimizer the aggregate is the next model. With one, the gradient is the way back
    from the aggregate to the model: SGD with the rate 1 gives the aggregate, too, and Adam is
    FedAdam (Reddi et al.: Adaptive Federated Optimization, ICLR 2021). Integers are those of the
    aggregate.
    """

    def __init__(self, make: MakeOptimizer | None) -> None:
        self.make = make
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self._state: Mapping[str, Any] | None = None

    def __call__(self, model: Arrays, aggregate: Arrays) -> Arrays:
        if self.make is None:
            return aggregate
        result = dict(aggregate)
        optimizer = self._prepared(model)
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(_tensor(model[key]))
                parameter.grad = parameter - _tensor(aggregate[key])
        optimizer.step()
        for key, parameter in self.parameters.items():
            result[key] = parameter.detach().numpy().astype(model[key].dtype)
            parameter.grad = None
        return result

    def _prepared(self, model: Arrays) -> torch.optim.Optimizer:
        floats = {key: array for key, array in model.items() if array.dtype.kind == "f"}
        shapes = {key: tuple(parameter.shape) for key, parameter in self.parameters.items()}
        if self.optimizer is None or shapes != {key: a.shape for key, a in floats.items()}:
            assert self.make is not None
            self.parameters = {key: nn.Parameter(_tensor(a)) for key, a in floats.items()}
            self.optimizer = self.make(list(self.parameters.values()))
            if self._state is not None:
                self.optimizer.load_state_dict(dict(self._state))
                self._state = None
        return self.optimizer

    def state_dict(self) -> dict[str, Any]:
        return {} if self.optimizer is None else self.optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as another one would; the optimizer is made with the next model."""
        self.optimizer, self._state = None, state or None


def _tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A copy as a tensor, in float32 at least."""
    return torch.from_numpy(np.array(array, dtype=wide_dtype(array)))
