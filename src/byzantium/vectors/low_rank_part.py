"""Some matrices and arrays of low-rank updates, which one machine of a team has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from byzantium.vectors.entries import Entry
from byzantium.vectors.low_rank import LowRank, Rows
from byzantium.vectors.team import Team


class LowRankPart(LowRank):
    """The same low-rank updates, of which only some matrices and arrays are here.

    - `whole`: the updates, whose root is known if there is one.
    - `names`: the names of what is here.
    - `team`: the team of all parts.

    >>> import torch
    >>> from byzantium.vectors.team import ALONE
    >>> update = {"q": (torch.ones(2, 1), torch.ones(1, 2)), "bias": torch.ones(3)}
    >>> LowRankPart(LowRank([update, update]), ["bias"], ALONE).d
    3
    """

    def __init__(self, whole: LowRank, names: Collection[Any], team: Team) -> None:
        def only(one: Mapping[Any, Entry] | None) -> dict[Any, Entry] | None:
            return None if one is None else {k: v for k, v in one.items() if k in names}

        self.n, self.names, self.full = whole.n, whole.names, whole.full
        self.has_coordinates, self.device, self.dtype = whole.full, whole.device, whole.dtype
        self.unreadable, self.team = whole.unreadable, team
        self.pattern = only(whole.pattern) or {}
        self.base, self.root = only(whole.base), only(whole.root)
        # Updates may be equal here, and differ elsewhere.
        self.members = [only(member) or {} for member in whole.members]
        self.member_of = whole.member_of
        self._arrange_columns()

    def trusted(self, name: str, vector: Any) -> Tensor:
        """The columns of the root that are here; the vector is ignored."""
        return self._root_columns()

    def result(self, vector: Tensor, rows: Rows) -> Any:
        """What `result` of the whole updates takes: only these have all rows."""
        return vector, rows
