"""Weights that the operator vouches for: how much each vector counts before a rule looks at it.

A rule with weights gives what it would give if row i were there w_i times. So f vectors become F
copies, where F is the sum of the f largest weights; what a rule does with the n - f nearest
vectors, say, it then does with the share (N - F) / N of all weight. Only shares of the whole count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels.selection import EQUAL_SHARES
from byzantium.core import ArgumentTypeError, ByzantiumError, type_name
from byzantium.vectors.source import Rows, Source, as_source

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """The weights of some rows, as shares of the weight of them all.

    - `shares`: (n,), positive; they sum to one.
    - `rejected`: the weights of rows that were rejected, in the same unit.

    >>> Weights.of(np.array([1.0, 1.0, 2.0, 4.0])).of_largest(1)
    0.5
    """

    shares: Array
    rejected: tuple[float, ...] = ()

    @classmethod
    def of(cls, values: Array, rejected: Sequence[float] = ()) -> Weights:
        """The weights in proportion to some positive numbers."""
        total = values.sum()
        return cls(values / total, tuple((np.asarray(rejected) / total).tolist()))

    def of_largest(self, f: int) -> float:
        """The share of the weight that the f largest have.

        Rejected rows take their weight out of it: before that, f was larger by their number.
        """
        if not self.rejected:
            return _snapped(float(np.sort(self.shares)[::-1][:f].sum()))
        everything = np.sort(np.append(self.shares, self.rejected))[::-1]
        held = everything[: f + len(self.rejected)].sum() - sum(self.rejected)
        return _snapped(float(held))

    def of_rows(self, rows: NDArray[np.bool_]) -> Weights:
        """The weights of some rows; the others were rejected."""
        return Weights.of(self.shares[rows], [*self.rejected, *self.shares[~rows].tolist()])

    def grouped(self, groups: NDArray[np.bool_]) -> Weights:
        """The weights of groups of rows, (groups, n), each row in one group."""
        return Weights.of(groups @ self.shares)


def _snapped(share: float) -> float:
    """The share, or 0 where it is a rounding error."""
    return share if share > EQUAL_SHARES else 0.0


# -- order statistics of weighted numbers --------------------------------------------------------


def smallest_masses(keys: Array, shares: Array, mass: float) -> Array:
    """How much of each share lies within the `mass` with the smallest keys: (..., n).

    - `keys`: (..., n). Of equal keys the first counts first.
    - `shares`: (n,), which sum to one.
    - `mass`: from 0 to 1.

    >>> smallest_masses(np.array([3.0, 1.0, 2.0]), np.array([0.25, 0.25, 0.5]), 0.5)
    array([0.  , 0.25, 0.25])
    """
    order = keys.argsort(axis=-1, kind="stable")
    ordered = shares[order]
    before = ordered.cumsum(axis=-1) - ordered
    inside = np.clip(mass - before, 0, ordered)
    inside[inside < EQUAL_SHARES] = 0  # the rounding error of a row far away would matter
    masses = np.empty_like(inside)
    np.put_along_axis(masses, order, inside, axis=-1)
    return masses


def weighted_quantile(values: Array, shares: Array, mass: float) -> float:
    """The smallest value such that the values up to it have at least this share of the weight."""
    order = values.argsort(kind="stable")
    place = np.searchsorted(shares[order].cumsum(), mass - EQUAL_SHARES)
    return float(values[order[min(int(place), len(order) - 1)]])


def weighted_median(values: Array, shares: Array) -> float:
    """The median; where half of the weight lies below a gap, the middle of the gap.

    >>> weighted_median(np.array([1.0, 2.0, 5.0]), np.array([0.25, 0.25, 0.5]))
    3.5
    """
    order = values.argsort(kind="stable")
    ends, last = shares[order].cumsum(), len(order) - 1
    low = values[order[min(int(np.searchsorted(ends, 0.5 - EQUAL_SHARES)), last)]]
    high = values[order[min(int(np.searchsorted(ends, 0.5 + EQUAL_SHARES, "right")), last)]]
    return float(low + high) / 2


# -- weights of a call ---------------------------------------------------------------------------


class Vouched:
    """The vectors of a call that have weight, and their weights.

    - `source`: the vectors, without those of weight 0.
    - `rows`: the indices of these vectors among all.
    - `weights`: their weights; None if all are equal.
    """

    def __init__(
        self, updates: Any, weights: Any = None, *, base: Any = None, strict: bool = True
    ) -> None:
        self.weights: Weights | None = None
        if weights is None:
            self.source = as_source(updates, base=base, strict=strict)
            self.n = self.source.n
            self.rows: Rows = np.arange(self.n)
            return
        listed = isinstance(updates, np.ndarray) or (
            isinstance(updates, Sequence) and not isinstance(updates, str | bytes)
        )
        whole = None if listed else as_source(updates, strict=strict)
        self.n = len(updates) if whole is None else whole.n
        self.rows, self.weights = with_weight(weights, self.n)
        if len(self.rows) == self.n:
            self.source = as_source(updates, base=base, strict=strict)
        elif whole is None:  # one without weight does not even decide which form the others have
            self.source = as_source(
                [updates[row] for row in self.rows.tolist()],
                base=base,
                strict=strict,
                names=self.rows.tolist(),
            )
        else:
            self.source = as_source(Subset(whole, self.rows), base=base)

    @property
    def shares(self) -> Tensor | None:
        """(n,), the share of each vector among all; None if all have the same."""
        if self.weights is None and len(self.rows) == self.n:
            return None
        shares = torch.zeros(self.n, dtype=torch.float64)
        own = 1 / len(self.rows) if self.weights is None else torch.from_numpy(self.weights.shares)
        shares[torch.from_numpy(self.rows)] = own
        return shares

    def among_all(self, reasons: Mapping[int, str]) -> dict[int, str]:
        """Reasons by the index of a vector among all, from those by its index in the source."""
        return {int(self.rows[row]): reason for row, reason in reasons.items()}


def with_weight(weights: Any, n: int) -> tuple[Rows, Weights | None]:
    """The indices of the vectors that have weight, and their weights; None if these are equal.

    - `weights`: n numbers, not negative and not all zero.

    >>> with_weight([5, 0, 5], 3)
    (array([0, 2]), None)
    """
    scaled = checked_weights(weights, n)
    rows = np.flatnonzero(scaled)
    scaled = scaled[rows]
    return rows, Weights.of(scaled) if (scaled != scaled[0]).any() else None


def checked_weights(weights: Any, n: int) -> Array:
    """Weights of n vectors, (n,), checked: the largest is 1, and none is negative.

    - `weights`: n numbers, not negative and not all zero.

    >>> checked_weights([5, 10, 0], 3)
    array([0.5, 1. , 0. ])
    """
    if isinstance(weights, Tensor):
        weights = weights.detach().cpu()
    try:
        raw = np.asarray(weights)
        numbers = raw.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raw = np.empty(0, dtype=object)
    if raw.dtype.kind not in "iuf":
        raise ArgumentTypeError(
            f"weights must be a number for each vector, got {type_name(weights)}"
        )
    if numbers.shape != (n,):
        raise ByzantiumError(
            f"weights must be one number for each of {n} vectors, got the shape {numbers.shape}"
        )
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        wrong = int(np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))[0])
        raise ByzantiumError(
            f"weights must be finite and at least 0, got {numbers[wrong]:g} for vector {wrong}"
        )
    if not numbers.any():
        raise ByzantiumError("weights must not all be zero, or no vector counts")
    scaled: Array = numbers / numbers.max()
    return scaled


class Subset(Source):
    """Some rows of another source, as if there were no others.

    - `source`: the other source.
    - `used`: the indices of the rows.
    """

    def __init__(self, source: Source, used: Rows) -> None:
        self.source, self.used = source, used
        self.n, self.d, self.dtype = len(used), source.d, source.dtype
        self.device, self.team = source.device, source.team
        places = {row: k for k, row in enumerate(used.tolist())}
        self.unreadable = {
            places[row]: reason for row, reason in source.unreadable.items() if row in places
        }
        self.norms = None if source.norms is None else source.norms[used]
        self.names = [source.row_name(row) for row in used.tolist()]
        self.has_coordinates = source.has_coordinates

    @property
    def compute_dtype(self) -> Any:
        return self.source.compute_dtype

    def block(self, columns: slice, rows: Rows) -> Tensor:
        return self.source.block(columns, self.used[rows])

    def pieces(self, rows: Rows) -> Any:
        return self.source.pieces(self.used[rows])

    def result(self, vector: Tensor, rows: Rows) -> Any:
        return self.source.result(vector, self.used[rows])

    def assembled(self, part: Any, rows: Rows) -> Any:
        return self.source.assembled(part, self.used[rows])

    def trusted(self, name: str, vector: Any) -> Tensor:
        return self.source.trusted(name, vector)

    def inner_products(self, rows: Rows, anchors: Mapping[str, Tensor | None]) -> Array | None:
        return self.source.inner_products(self.used[rows], anchors)

    def combined(self, weights: Array, anchors: Mapping[str, float]) -> Tensor | None:
        whole = np.zeros(self.source.n)
        whole[self.used] = weights
        return self.source.combined(whole, anchors)

    def check_center(self, pipeline: str, center: Tensor) -> None:
        self.source.check_center(pipeline, center)

    def check_coordinates(self, rule: object) -> None:
        self.source.check_coordinates(rule)

    def relative_to(self, base: Any) -> Source:
        return Subset(self.source.relative_to(base), self.used)
