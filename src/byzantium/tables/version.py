"""Versions of an artifact: fewer seeds, fewer rounds, another model, released random numbers."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le

from byzantium.core import ByzantiumError, check_fields
from byzantium.runs import check_names

#: How many seeds the published cells have.
SEEDS = 3
MAX_SEEDS, MAX_ROUNDS = 100, 10**9
# Characters of the flags of a version; its files are named after them.
MAX_FLAGS = 160


@dataclass(frozen=True)
class Version:
    """A version of an artifact, which may be cheaper than the paper's; None means as in the paper.

    - `seeds`: how many seeds each cell has.
    - `rounds`: how many rounds each run has.
    - `model`: the model to train.
    - `data`: the data set to train on.
    - `only`: words; the version has only cells to which all of them belong. A word is a value of a
      label, such as krum, or a label with its value, such as s=2.
    - `dropout`: "shared" gives all workers and rounds the same dropout, as the published runs had.
    - `released`: whether to repeat the released runs, with their random numbers and the same
      dropout for all workers and rounds unless `dropout` says otherwise; seed by seed.

    >>> Version(seeds=1, model="mlp").words()
    ('1 seed instead of 3', 'model mlp')
    """

    seeds: Annotated[int, Ge(1), Le(MAX_SEEDS)] | None = None
    rounds: Annotated[int, Ge(1), Le(MAX_ROUNDS)] | None = None
    model: str | None = None
    data: str | None = None
    only: str | None = None
    dropout: Literal["fresh", "shared"] | None = None
    released: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "a version")
        if self.released and (self.seeds or 0) > SEEDS:
            raise ByzantiumError(
                f"a version of released runs needs seeds <= {SEEDS}, got seeds={self.seeds}"
            )
        if len(" ".join(self.flags())) > MAX_FLAGS:
            raise ByzantiumError(
                f"the options of a version must have at most {MAX_FLAGS} characters in all"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The version with these fields; an unknown name raises an error."""
        check_names(cls, values)
        return cls(**values)

    def words(self) -> tuple[str, ...]:
        """How it differs from the paper's version, in words."""
        fewer = self.seeds if self.seeds is not None and self.seeds < SEEDS else None
        words = (
            (fewer, f"{fewer} seed{'s' * (fewer != 1)} instead of {SEEDS}"),
            (self.rounds, f"{self.rounds} rounds"),
            (self.model, f"model {self.model}"),
            (self.data, f"data set {self.data}"),
            (self.only, f"only {self.only}"),
            (self.dropout, f"{self.dropout} dropout"),
        )
        return tuple(text for value, text in words if value is not None)

    def flags(self) -> list[str]:
        """The options of `byzantium reproduce` that ask for it."""
        return [
            f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
            for name, value in asdict(self).items()
            if value not in (None, False)
        ]

    def covers(self, other: Version) -> bool:
        """Whether this version has all cells of another one, made in the same way."""
        return self in (other, replace(other, only=None))


#: The paper's own version.
PAPER = Version()
