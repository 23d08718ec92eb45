"""The state of rules that remember tensors from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from byzantium.core import ByzantiumError, Stateful
from byzantium.rules import Stage


class Remembering(Stage, Stateful):
    """A rule whose state is named tensors: all of them, or none before its first call.

    - `remembered`: the names of these tensors.
    """

    remembered: ClassVar[tuple[str, ...]]

    @property
    def memory(self) -> dict[str, Tensor]:
        """The tensors by name; empty before the first call. They are replaced, never changed."""
        return self.__dict__.get("_memory", {})

    def _keep(self, **memory: Tensor) -> None:
        object.__setattr__(self, "_memory", memory)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.memory.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state and set(state) != set(self.remembered):
            raise ByzantiumError(
                f"{self!r} has the state {', '.join(self.remembered)}, got {', '.join(state)}"
            )
        self._keep(**{name: tensor.detach().clone() for name, tensor in state.items()})
