"""The root update of a federation: what the server computes on data that it trusts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ArrayRecord

from byzantium.core import ArgumentTypeError, ByzantiumError, type_name
from byzantium.engines.flower.replies import Arrays
from byzantium.engines.flower.rounds import Round, logger
from byzantium.engines.flower.space import ArraySpace
from byzantium.rules import Aggregator

RootFunction = Callable[[Arrays], Mapping[str, Any]]


class Root:
    """The root update of each round, from a function that the user gives; or None.

    - `update`: the model after training on the root data in this round, if the rule needs it.
    - `function`: a function from the global model to the model after training on the root data. If
      it has `state_dict` and `load_state_dict`, its state is part of the checkpoints.
    """

    def __init__(self, function: RootFunction | None) -> None:
        if function is not None and not callable(function):
            raise ArgumentTypeError(
                f"root must be a function of the global model, got {type_name(function)}"
            )
        self.function = function
        self.update: Mapping[str, Any] | None = None

    def check(self, rule: Aggregator, used: bool = False) -> None:
        """Raise an error unless a rule gets the root update that it needs.

        - `rule`: the rule.
        - `used`: whether a root that the rule does not use is an error, too.
        """
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

    def compute(self, at: Round, model: Arrays, rule: Aggregator, space: ArraySpace) -> None:
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
        if isinstance(result, ArrayRecord):
            result = {key: array.numpy() for key, array in result.items()}
        if not isinstance(result, Mapping):
            raise ArgumentTypeError(
                f"root= returned {type_name(result)} in round {at.number}, but must return a model "
                "like the one that it gets: arrays by name"
            )
        try:
            at.root_norm = space.distance(model, result, model)
        except ByzantiumError as error:
            raise ByzantiumError(
                f"root= returned what cannot be used in round {at.number}: {error}"
            ) from error
        if not at.root_norm:
            logger.warning("\t> root= returned the model unchanged, so the root update is zero")
        self.update = result

    def measure(self, at: Round, model: Arrays, aggregate: Arrays, space: ArraySpace) -> None:
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
