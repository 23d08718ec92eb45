"""The root update of a federation: what the server computes on data that it trusts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from byzantium.core import ArgumentTypeError, ByzantiumError, type_name
from byzantium.engines.federation.rounds import Round
from byzantium.engines.federation.space import ArraySpace
from byzantium.engines.federation.vectors import Arrays
from byzantium.rules import Aggregator

RootFunction = Callable[[Arrays], Mapping[str, Any]]


class Root:
    """The root update of each round, from a function that the user gives; or None.

    - `update`: the model after training on the root data in this round, if the rule needs it.
    - `function`: a function from the global model to the model after training on the root data. If
      it has `state_dict` and `load_state_dict`, its state is part of the checkpoints.
    - `logger`: where a warning goes.
    """

    def __init__(self, function: RootFunction | None, logger: logging.Logger) -> None:
        if function is not None and not callable(function):
            raise ArgumentTypeError(
                f"root must be a function of the global model, got {type_name(function)}"
            )
        self.function, self.logger = function, logger
        self.update: Mapping[str, Any] | None = None

    def check(self, rule: Aggregator, used: bool = False) -> None:
        """Raise an error unless a rule gets the root update that it needs.

        - `used`: whether a root that the rule does not use is an error, too.
        """
        last = rule.stages[-1]
        if last.root_form == "loss":
            raise ByzantiumError(f"{rule!r} tries steps of gradients, but clients send models")
        if last.remembers_workers:
            raise ByzantiumError(
                f"{rule!r} remembers what each worker sent and needs all of them in each round; "
                "the nodes of a federation come and go"
            )
        if rule.needs_root and self.function is None:
            raise ByzantiumError(
                f"{rule!r} needs root=, a function from the global model to the model after "
                "training on data that the server trusts; byzantium.learning.RootUpdate makes one"
            )
        if used and self.function is not None and not rule.needs_root:
            raise ByzantiumError(
                f"{rule!r} does not use root=, which would be computed in vain; omit it, or take a "
                "rule such as 'RootMatching()'"
            )

    def compute(self, at: Round[Any], model: Arrays, rule: Aggregator, space: ArraySpace) -> None:
        """Compute the root update of a round, if the rule needs one; the round gets its norm."""
        self.update = None
        if not rule.needs_root:
            return
        assert self.function is not None
        try:
            result: Any = self.function({key: array.copy() for key, array in model.items()})
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise ByzantiumError(f"root= failed in round {at.number}: {text}") from error
        if not isinstance(result, Mapping):
            raise ArgumentTypeError(
                f"root= returned {type_name(result)} in round {at.number}, but must return a model "
                "like the one that it gets: arrays by name"
            )
        # Flower's records hold arrays that turn into those of NumPy.
        result = {key: _array(value) for key, value in result.items()}
        try:
            at.root_norm = space.distance(model, result, model)
        except ByzantiumError as error:
            raise ByzantiumError(
                f"root= returned what cannot be used in round {at.number}: {error}"
            ) from error
        if not at.root_norm:
            self.logger.warning(
                "\t> root= returned the model unchanged, so the root update is zero"
            )
        self.update = result

    def measure(self, at: Round[Any], model: Arrays, aggregate: Arrays, space: ArraySpace) -> None:
        """Record how far the aggregate is from the root update, if there is one."""
        if self.update is not None:
            at.root_distance = space.distance(model, self.update, aggregate)

    def state_dict(self) -> dict[str, Any]:
        state_dict = getattr(self.function, "state_dict", None)
        return {} if state_dict is None else state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load = getattr(self.function, "load_state_dict", None)
        if state and load is not None:
            load(state)


def _array(value: Any) -> Any:
    turn = None if isinstance(value, torch.Tensor) else getattr(value, "numpy", None)
    return value if turn is None else turn()
