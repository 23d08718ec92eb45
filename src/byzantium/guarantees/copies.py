"""Weights as copies: a pipeline with weights promises what it promises for so many equal vectors.

Row i with the weight w_i counts as w_i equal rows, and f rows as F, the sum of the f largest
weights (docs/guarantees.md, Proposition 15). So every bound for n vectors and f of them is one for
N copies and F of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from byzantium.core import ByzantiumError
from byzantium.rules import Stage
from byzantium.rules.shares import check_takes_weights, too_heavy
from byzantium.vectors.weights import Weights, with_weight

# Weights that are no whole numbers, or larger ones, are rounded to so many copies in all.
COPIES = 100_000
# The rounding error of a number of copies.
ROUNDED = 1e-6


class Copies(NamedTuple):
    """The weights of n vectors as copies.

    - `n`: how many vectors have weight.
    - `vouched`: their weights; None if all are equal.
    - `number`, `bad`: how many copies there are, and how many of them f vectors can be.
    """

    n: int
    vouched: Weights | None
    number: int
    bad: int

    @property
    def held(self) -> float:
        """The share of the weight that f vectors can hold."""
        return self.bad / self.number


def copies_of(weights: Any, n: int, f: int) -> Copies:
    """Weights of n vectors as copies: as many as they say, if they are whole numbers.

    >>> copies_of([4, 2, 2, 1], 4, f=1)[2:]
    (9, 4)
    """
    rows, vouched = with_weight(weights, n)
    if vouched is None:
        return Copies(len(rows), None, len(rows), f)
    number = COPIES
    whole = np.sort(np.asarray(weights, dtype=np.float64)[rows])[::-1]
    if (whole == whole.round()).all() and whole.sum() < 2**53:
        divisor = math.gcd(*whole.astype(np.int64).tolist())
        if whole.sum() / divisor <= COPIES:
            number = int(whole.sum()) // divisor
    return Copies(len(rows), vouched, number, _held_by(f, vouched, number))


def _held_by(f: int, vouched: Weights, number: int) -> int:
    """How many of so many copies f vectors can be, rounded up."""
    return math.ceil(number * vouched.of_largest(f) - ROUNDED)


def check_below_half(rule: Stage, f: int, copies: Copies) -> None:
    """Raise an error if f vectors can hold half of the weight, so that nobody is a majority."""
    if copies.vouched is not None and 2 * copies.bad >= copies.number:
        share = min(1 / 2, getattr(rule, "delta_max", 1 / 2))
        raise ByzantiumError(too_heavy(rule, f, copies.vouched, share))


def stages_for_copies(stages: Sequence[Stage], copies: Copies) -> tuple[Stage, ...]:
    """The stages that do with the copies what the stages do with the weighted vectors.

    Raises an error where a stage takes no weights.
    """
    check_takes_weights(stages)
    vouched = copies.vouched
    assert vouched is not None
    return tuple(
        replace(stage, f=_held_by(stage.bad, vouched, copies.number))  # type: ignore[type-var]
        if stage.bad
        else stage
        for stage in stages
    )
