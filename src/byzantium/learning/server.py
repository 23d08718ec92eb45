"""The server of Algorithm 2: it aggregates what workers send, and takes a step."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from byzantium.core import ByzantiumError, validated
from byzantium.core.options import FORMER_SPELLINGS, present_spellings, renamed
from byzantium.learning.gradients import columns_of, shaped, vector_of
from byzantium.learning.models import trainable
from byzantium.rules import Aggregator

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@renamed(**FORMER_SPELLINGS)
class Server:
    """The server: it aggregates what workers send with a rule, and steps with an optimizer.

    The vectors may come from anywhere, not only from workers of this library.

    - `model`: the model that is trained, in place.
    - `rule`: how workers' vectors become one; the server works with a copy of it.
    - `optimizer`: the torch optimizer of the model's parameters.

    >>> from byzantium import Median
    >>> model = nn.Linear(2, 1, bias=False)
    >>> before = model.weight.detach().clone()
    >>> server = Server(model, Median(), torch.optim.SGD(model.parameters(), lr=0.5))
    >>> server.step(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1e6, -1e6]]))
    tensor([1., 2.])
    >>> before - model.weight.detach()
    tensor([[0.5000, 1.0000]])
    """

    def __init__(
        self, model: nn.Module, rule: Aggregator, optimizer: torch.optim.Optimizer
    ) -> None:
        self.model = model
        self.rule = copy.deepcopy(validated("Server", "rule", rule, Aggregator))
        self.optimizer = optimizer
        self.parameters = trainable(model)
        self.columns = columns_of(self.parameters)
        self.d = sum(parameter.numel() for parameter in self.parameters.values())

    def step(
        self,
        updates: Any,
        generator: torch.Generator | None = None,
        *,
        root: Any = None,
        weights: Any = None,
    ) -> Any:
        """Aggregate the workers' updates, take a step, and return the aggregate.

        - `updates`: a matrix (n, d) with a row for each worker, or n mappings from the names of the
          parameters to their gradients. In a row the parameters follow one another, each in the
          order that it has in memory.

        The other parameters are those of a call of the rule.
        """
        aggregate = self.rule(updates, generator, root=root, weights=weights)
        self.take(aggregate)
        return aggregate

    def take(self, aggregate: Tensor | Mapping[str, Any]) -> None:
        """Take a step with an aggregate, (d,) or a mapping of names, as the gradient."""
        if isinstance(aggregate, Mapping):
            self._check_names(aggregate)
            for name, parameter in self.parameters.items():
                parameter.grad = torch.as_tensor(aggregate[name]).to(parameter)
        else:
            vector = torch.as_tensor(aggregate).contiguous()
            if vector.shape != (self.d,):
                raise ByzantiumError(
                    f"the model has {self.d} parameters, an aggregate needs the shape ({self.d},), "
                    f"got {tuple(vector.shape)}"
                )
            for tensor, columns in self.columns.items():
                tensor.grad = shaped(vector[columns].to(tensor), tensor)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def model_vector(self) -> Tensor:
        """The trainable parameters of the model, (d,), in the order of the vectors."""
        return vector_of(self.columns)

    @contextlib.contextmanager
    def tried(self, aggregate: Tensor, rate: float | None = None) -> Iterator[None]:
        """A step of plain SGD with an aggregate, which is undone when the context ends.

        - `rate`: its learning rate; by default that of the optimizer.
        """
        rate = self.optimizer.param_groups[0]["lr"] if rate is None else rate
        before = {tensor: tensor.detach().clone() for tensor in self.columns}
        with torch.no_grad():
            for tensor, columns in self.columns.items():
                tensor -= rate * shaped(aggregate.to(tensor)[columns], tensor)
            try:
                yield
            finally:
                for tensor, values in before.items():
                    tensor.copy_(values)

    def _check_names(self, aggregate: Mapping[str, Any]) -> None:
        if missing := self.parameters.keys() - aggregate.keys():
            raise ByzantiumError(f"the aggregate lacks {min(missing)}, a parameter of the model")
        if unknown := aggregate.keys() - self.parameters.keys():
            raise ByzantiumError(
                f"the aggregate has {min(unknown)}, which is no parameter to train"
            )

    def state_dict(self) -> dict[str, Any]:
        """The state of the model, of the optimizer and of the rule."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rule": self.rule.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, and go on from there."""
        state = present_spellings(state)
        self.model.load_state_dict(dict(state["model"]))
        self.optimizer.load_state_dict(state["optimizer"])
        self.rule.load_state_dict(state["rule"])
