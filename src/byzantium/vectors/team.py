"""The protocol between machines that each hold some columns of the vectors.

All machines run the same program, call these methods in the same order, and end up with the same
result to the bit. What must be equal everywhere, one of them decides: the *leader*.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class Team:
    """The machines that hold the vectors together. This class itself is one machine, alone.

    >>> ALONE.sum_to_all(np.ones(2))
    array([1., 1.])
    """

    @property
    def reads(self) -> bool:
        """Whether the columns that are here must be read now; otherwise all that follows from
        them is known.
        """
        return True

    def dimension(self, d: int) -> int:
        """The dimension of the whole vectors, of which d columns are here."""
        return d

    def empty_part(self, d: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the d columns of an aggregate that are here."""
        return torch.empty(d, dtype=dtype, device=device)

    def sum_to_all(self, sums: Array) -> Array:
        """Sums over all columns, from sums over the columns that are here.

        These must have been read after the last sum: some machines skip what was summed before.
        """
        return self.broadcast(self.sum_to_leader(sums))

    def sum_to_leader(self, sums: Array) -> Array:
        """Sums over all columns on the leader; the result is not defined on the others."""
        return sums

    def presume_usable(self, usable: bool) -> bool:
        """Whether all vectors are usable, which only the leader need know.

        The others presume it, and begin again if the leader says otherwise.
        """
        return usable

    def broadcast(self, numbers: Array) -> Array:
        """The numbers of the leader, on all machines."""
        return numbers

    def decide_on_leader(self, decide: Callable[[], Array]) -> Array:
        """The decision, a vector, of the leader; the others need not compute it."""
        return decide()

    def local_part(self, vector: Tensor) -> Tensor:
        """The columns of a whole vector that are here."""
        return vector

    def gather_whole(self, vector: Tensor) -> Tensor:
        """The whole vector, from its columns that are here."""
        return vector


#: The team of sources whose vectors are all on one machine.
ALONE = Team()
