"""Low-rank updates, such as LoRA adapters, as the vectors of a rule: products that are not formed.

The factors of an update B A have a basis of their own: for every invertible matrix M, the factors
(B M, M^-1 A) are the same update. So the vectors are the products, not the factors. A weighting
needs only their inner products, and its result is again a product of factors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ArgumentTypeError, ByzantiumError, TooManyRejected, type_name
from byzantium.vectors.arrays import COUNTERS, FLOATS, middle
from byzantium.vectors.distances import REFERENCE_TRUSTED, medians, rounding, squared_distances
from byzantium.vectors.entries import (
    Entry,
    difference,
    distinct,
    entries_of,
    norm,
    norm_bound,
    trusted_entries,
)
from byzantium.vectors.factors import Stack
from byzantium.vectors.low_rank_update import LowRankUpdate, Part, chunks
from byzantium.vectors.points import row_norms
from byzantium.vectors.scale import SMALL_SQUARE
from byzantium.vectors.source import Source, largest_norm

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


class LowRank(Source):
    """Low-rank updates as the input of a rule: `rule(LowRank(updates))`, a `LowRankUpdate`.

    Rules by weights need only inner products, which follow from the factors: no product is ever
    formed. They are exact: their digits do not depend on the basis of the factors. An update is
    rejected if it has other names or shapes than most, factors that do not fit each other, or a
    product that is not finite or absurdly large. Ranks may differ.

    - `updates`: for each contributor a mapping from names to products, which are tuples (B, A,
      scale) that mean scale * B @ A, and to arrays, such as biases. The scales are the
      caller's: nothing that a contributor claims may be one. None is an update that could
      not be read.
    - `base`: an update, of the same form, that is subtracted from each of them and added to the
      result.
    - `full`: whether columns are the entries of the products, which rules by coordinate need. Then
      the result is a mapping of whole matrices.
    - `names`: the names of the updates in messages; by default their indices.
    - `reasons`: why updates could not be read, by index.

    >>> from byzantium import Krum
    >>> b, a = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0, 0.0, 1.0]])
    >>> updates = [{"q": (b * k, a / k, 1.0)} for k in (1.0, 2.0, 4.0, 8.0)]  # all are equal
    >>> updates.append({"q": (b, 9 * a, 1.0)})
    >>> merged = Krum(f=1)(LowRank(updates))
    >>> merged["q"]
    tensor([[1., 0., 1.],
            [2., 0., 2.]])
    >>> [tuple(factor.shape) for factor in merged.cut("q", rank=1)[:2]]
    [(2, 1), (1, 3)]
    """

    def __init__(
        self,
        updates: Sequence[Mapping[Any, Any] | None],
        *,
        base: Mapping[Any, Any] | None = None,
        full: bool = False,
        names: Sequence[object] | None = None,
        reasons: Mapping[int, str] | None = None,
    ) -> None:
        self.n, self.names, self.full = len(updates), names, full
        self.has_coordinates = full
        self.device = torch.device("cpu")
        self.updates = list(updates)
        self.unreadable: dict[int, str] = dict(reasons or {})
        rows = [self._read(i, update) for i, update in enumerate(updates)]
        pattern = None if base is None else trusted_entries("the base", base)
        self.pattern = self._pattern(rows) if pattern is None else pattern
        signature = {name: entry.signature for name, entry in self.pattern.items()}
        for i, row in enumerate(rows):
            if row is not None and (reason := difference(row, signature)):
                self.unreadable[i], rows[i] = reason, None
        dtypes = {e.dtype for e in self.pattern.values() if e.dtype in FLOATS}
        if not dtypes:
            raise ArgumentTypeError("low-rank updates must hold floating-point numbers, got none")
        only = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
        self.dtype = torch.float64 if torch.float64 in dtypes else only
        self.rows, self.base = rows, pattern
        self._reject_unusable()
        self.root: dict[Any, Entry] | None = None
        self._arrange()

    # -- reading -----------------------------------------------------------------------------------

    def _read(self, i: int, update: Any) -> dict[Any, Entry] | None:
        """The entries of an update; None, and a reason in `unreadable`, if it has none."""
        if i in self.unreadable:
            return None
        try:
            return entries_of(update)
        except ByzantiumError as error:
            self.unreadable[i] = str(error)
        except Exception as error:  # an attacker's update may make NumPy, torch or us raise any
            self.unreadable[i] = f"cannot be read: {type(error).__name__}"
        return None

    def _pattern(self, rows: Sequence[dict[Any, Entry] | None]) -> dict[Any, Entry]:
        """The first update with the names and shapes that most updates have."""
        forms: list[Hashable] = [
            None if row is None else frozenset((k, e.signature) for k, e in row.items())
            for row in rows
        ]
        counts = Counter(form for form in forms if form is not None)
        if not counts:
            reasons = self.unreadable
            first = f"; update {self.row_name(0)} {reasons[0]}" if reasons else ""
            raise TooManyRejected(f"none of {self.n} low-rank updates can be used{first}", reasons)
        row = rows[forms.index(max(counts, key=counts.__getitem__))]
        assert row is not None
        return row

    def _reject_unusable(self) -> None:
        """Reject updates that are not finite or absurdly large, before they are stacked."""
        largest = largest_norm(self.dtype)
        for i, row in enumerate(self.rows):
            if row is not None and not norm_bound(row) <= largest and not norm(row) <= largest:
                self.unreadable[i] = f"not finite, or of norm above {largest:g}"
                self.rows[i] = None
        if self.base is not None and not norm(self.base) <= largest:
            raise ByzantiumError(f"the base is not finite, or of norm above {largest:g}")

    def _arrange(self) -> None:
        """Find equal updates, and the columns of each matrix and array."""
        self.members, self.member_of = distinct(self.rows)
        self._arrange_columns()

    def _arrange_columns(self) -> None:
        """Find the columns of each matrix and array."""
        beside = [one for one in (self.base, self.root) if one is not None]
        everyone = [*self.members, *beside]
        self.parts: list[Part] = []
        start = 0
        for name, entry in self.pattern.items():
            if entry.dtype not in FLOATS:
                continue
            height, width = entry.shape if entry.factored else (1, math.prod(entry.shape))
            if entry.factored and not self.full:
                rank = sum(one[name].rank for one in everyone)
                height, width = min(height, rank), min(width, rank)
            part = Part(name, entry.shape, entry.dtype, entry.factored, start, height, width)
            self.parts.append(part)
            start = part.start + part.size
        self.d = start
        self._matrices: dict[Any, tuple[Tensor, Tensor, list[slice]]] = {}
        self._known: tuple[Array, Array] | None = None
        self._norms: Array | None = None

    @property
    def everyone(self) -> list[dict[Any, Entry]]:
        """The distinct updates, then the base and the root, if there are any."""
        return [*self.members, *(one for one in (self.base, self.root) if one is not None)]

    @property
    def compute_dtype(self) -> torch.dtype:
        return super().compute_dtype if self.full else torch.float64

    def stack(self, name: Any) -> Stack:
        """The products of all distinct updates, of the base and of the root, stacked."""
        return Stack([one[name].product for one in self.everyone])

    @property
    def largest_rank(self) -> int:
        """The largest rank of the products of all usable updates and the base."""
        return max((e.rank for one in self.everyone for e in one.values()), default=0)

    # -- as blocks of columns ----------------------------------------------------------------------

    def block(self, columns: slice, rows: Rows) -> Tensor:
        width = columns.stop - columns.start
        block = torch.empty(len(rows), width, dtype=self.compute_dtype)
        for part in self.parts:
            first = max(part.start, columns.start)
            last = min(part.start + part.size, columns.stop)
            if first >= last:
                continue
            target = block[:, first - columns.start : last - columns.start]
            inner = slice(first - part.start, last - part.start)
            base = None if self.base is None else self._columns(part, inner, len(self.members))
            computed: dict[int, Tensor] = {}
            for k, row in enumerate(rows.tolist()):
                member = self.member_of[row]
                if member not in computed:
                    values = self._columns(part, inner, member)
                    computed[member] = values if base is None else values - base
                target[k] = computed[member]
        return block

    def _columns(self, part: Part, columns: slice, member: int) -> Tensor:
        """Some columns of one part of one member, in float64."""
        if not part.factored:
            return self.everyone[member][part.name].values(columns)
        left, right, places = self._matrices_of(part)
        top, bottom = columns.start // part.width, -(-columns.stop // part.width)
        place, skipped = places[member], top * part.width
        values = (left[top:bottom, place] @ right[:, place].T).reshape(-1)
        return values[columns.start - skipped : columns.stop - skipped]

    def _matrices_of(self, part: Part) -> tuple[Tensor, Tensor, list[slice]]:
        """The factors of all members in common bases; of whole matrices only those of one part."""
        if part.name not in self._matrices:
            stack = self.stack(part.name)
            if self.full:
                self._matrices.clear()
            matrices = stack.factors() if self.full else stack.cores()
            self._matrices[part.name] = (*matrices, stack.parts)
        return self._matrices[part.name]

    # -- by inner products -------------------------------------------------------------------------

    def inner_products(self, rows: Rows, anchors: Mapping[str, Tensor | None]) -> Array | None:
        """Inner products of rows and the origin from the factors, where that loses no digits."""
        if self.full or not set(anchors) <= {"origin"} or not len(rows):
            return None
        products, sizes = self._products
        which = np.append(self.member_of[rows], np.full(len(anchors), len(sizes) - 1))
        gram, distances = products[np.ix_(which, which)], self._distances[np.ix_(which, which)]
        smallest = float(medians(distances[: len(rows), : len(rows)]).min())
        errors = np.where(which[:, None] == which, 0, rounding(sizes[which]))
        lost = errors > REFERENCE_TRUSTED * np.maximum(distances, smallest)
        return None if lost.any() or smallest < SMALL_SQUARE else gram

    @property
    def _products(self) -> tuple[Array, Array]:
        """Inner products of the distinct updates and of the origin, and sizes for their rounding.

        The origin is the base, if there is one: distances remain the same. Arrays are taken about
        those of the first update: they may be whole weights, which have a large common part.
        """
        if self._known is None:
            members = self.members if self.base is None else [*self.members, self.base]
            count = len(self.members) + 1
            total, squares = np.zeros((count, count)), np.zeros(count)
            stack = None
            for part in self.parts if self.team.reads else ():
                if part.factored:
                    products, m = [one[part.name].product for one in members], len(members)
                    stack = Stack(products, stack)
                    total[:m, :m] += stack.products()
                    squares[:m] += stack.sizes**2
                    continue
                for columns in chunks(part.size):
                    block = torch.zeros(count, columns.stop - columns.start, dtype=torch.float64)
                    for k, one in enumerate(members):
                        block[k] = one[part.name].values(columns)
                    block -= block[0].clone()
                    total += (block @ block.T).numpy()
                    squares += block.square().sum(dim=1).numpy()
            sums = self.team.sum_to_all(np.vstack([total, squares]))
            total, squares = sums[:-1], sums[-1]
            self._known = (total + total.T) / 2, np.sqrt(squares)
        return self._known

    @property
    def _distances(self) -> Array:
        return squared_distances(self._products[0])

    @property
    def norms(self) -> Array | None:  # type: ignore[override]
        """The norms of the updates, (n,), relative to the base."""
        if self._norms is None and not self.full:
            squares, sizes = self._distances[-1, :-1], self._products[1]
            errors = rounding(sizes)[-1, :-1]
            usable = self.readable
            if (errors <= REFERENCE_TRUSTED * squares).all() and (squares > SMALL_SQUARE).all():
                norms = np.sqrt(squares)[self.member_of[usable]]
            else:
                norms = row_norms(_Columns(self), usable)
            self._norms = np.full(self.n, np.nan)
            self._norms[usable] = norms
        return self._norms

    def combined(self, weights: Array, anchors: Mapping[str, float]) -> Tensor | None:
        """The weights of rows and root, (n + 1,), in the place of the columns of their sum."""
        if self.full:
            return None
        return torch.from_numpy(np.append(weights, anchors.get("root", 0.0)))

    def check_center(self, pipeline: str, center: Tensor) -> None:
        """Raise an error: a center of another call is in other bases, unless `full`."""
        if self.full:
            super().check_center(pipeline, center)
            return
        raise ByzantiumError(
            f"{pipeline} holds the center of an earlier call, but low-rank updates have other "
            "bases in each call; reset() forgets it"
        )

    # -- results -----------------------------------------------------------------------------------

    def result(self, vector: Tensor, rows: Rows) -> LowRankUpdate | dict[Any, Tensor]:
        counters = {
            name: middle([_row(self.rows, i)[name].array for i in rows.tolist()])
            for name, entry in self.pattern.items()
            if entry.dtype in COUNTERS
        }
        if not self.full:
            return LowRankUpdate(self, vector.numpy(), counters)
        whole: dict[Any, Tensor] = {}
        for part in self.parts:
            values = vector[part.start : part.start + part.size].double()
            if self.base is not None:
                values = values + self._columns(part, slice(0, part.size), len(self.members))
            whole[part.name] = values.reshape(part.shape).to(part.dtype)
        whole |= counters
        return {name: whole[name] for name in self.pattern}

    def relative_to(self, base: Any) -> LowRank:
        """The same updates relative to another one, of the same form."""
        if not isinstance(base, Mapping):
            raise ArgumentTypeError(f"the base of low-rank updates is one, got {type_name(base)}")
        by_row = [self.unreadable.get(i) for i in range(self.n)]
        reasons = {i: reason for i, reason in enumerate(by_row) if reason is not None}
        options: dict[str, Any] = {"names": self.names, "full": self.full, "reasons": reasons}
        return LowRank(self.updates, base=base, **options)

    def trusted(self, name: str, vector: Any) -> Tensor:
        """The root, which is one more update that the caller trusts, in the bases of all others."""
        self.set_root(name, vector)
        return self._root_columns()

    def set_root(self, name: str, vector: Any) -> None:
        """Add the root to the updates, in common bases."""
        root = trusted_entries(name, vector)
        signature = {key: entry.signature for key, entry in self.pattern.items()}
        if reason := difference(root, signature):
            raise ByzantiumError(f"{name} {reason}")
        if not math.isfinite(norm(root)):
            raise ByzantiumError(f"{name} holds numbers that are not finite")
        self.root = root
        self._arrange()

    def _root_columns(self) -> Tensor:
        whole, last = torch.empty(self.d, dtype=self.compute_dtype), len(self.everyone) - 1
        for part in self.parts:
            columns = slice(0, part.size)
            values = self._columns(part, columns, last)
            if self.base is not None:
                values = values - self._columns(part, columns, len(self.members))
            whole[part.start : part.start + part.size] = values
        return whole


class _Columns(Source):
    """The columns of low-rank updates, as of a source that knows nothing else."""

    def __init__(self, source: LowRank) -> None:
        self.source = source
        self.n, self.d, self.dtype = source.n, source.d, torch.float64
        self.device, self.unreadable = source.device, source.unreadable
        self.team = source.team

    def block(self, columns: slice, rows: Rows) -> Tensor:
        return self.source.block(columns, rows)

    def result(self, vector: Tensor, rows: Rows) -> Tensor:
        return vector


def _row(rows: Sequence[dict[Any, Entry] | None], i: int) -> dict[Any, Entry]:
    row = rows[i]
    assert row is not None
    return row
