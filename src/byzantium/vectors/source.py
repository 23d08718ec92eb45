"""Sources: where vectors are stored, and how their columns are read.

A rule reads its n vectors only in blocks of columns, so they may be stored in one matrix, in n
mappings of named arrays, in n files or on several machines. Rules need not know where.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels.threads import parallel_map
from byzantium._kernels.torch_passes import column_blocks
from byzantium.core import ArgumentTypeError, ByzantiumError, TooManyRejected, type_name
from byzantium.vectors.arrays import (
    FLOATS,
    Row,
    are_numbers,
    columns_of,
    commonest,
    copy_into,
    fault_of,
    flat,
    middle,
)
from byzantium.vectors.team import ALONE, Team

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

# Rules need n x n numbers, 8 GiB for MANY_ROWS rows. A matrix of more rows, and of ROWS_PER_COLUMN
# times as many rows as columns, is most likely a transposed one of few workers.
MANY_ROWS = 1 << 15
ROWS_PER_COLUMN = 10
ROW = "an array, a list of numbers or of arrays, or a mapping of named arrays such as a state dict"
# The largest norm of a vector; of float64, and of all other dtypes.
LARGEST_NORM, LARGEST_NORM_NARROW = 1e150, 1e18


def largest_norm(dtype: torch.dtype) -> float:
    """The norm above which rows of a dtype are rejected.

    Such a row is no honest update, and the square of its norm could overflow its dtype.

    >>> largest_norm(torch.float32)
    1e+18
    """
    return LARGEST_NORM if dtype == torch.float64 else LARGEST_NORM_NARROW


class Source(ABC):
    """n vectors of dimension d, wherever they are stored; read in blocks of columns.

    To add a way of storing vectors, derive from this class and define `block` and `result`.

    - `n`, `d`: the number of vectors, and how many of their columns are here.
    - `dtype`, `device`: those of the vectors; see also `compute_dtype`.
    - `unreadable`: for each row that cannot be read, the reason; such rows count as Byzantine.
    - `norms`: the norms of the rows, if they are known without reading the rows.
    - `names`: the names of the rows in messages; by default their indices.
    - `team`: the machines that hold the vectors together; by default this one alone.
    - `has_coordinates`: whether columns are coordinates of the vectors, which rules by coordinate
      need; otherwise only distances between rows mean anything.
    - `root_loss`: the loss of root data after a step, if the call has it for a rule that tries.

    A source may know inner products without its columns; then it also defines `inner_products` and
    `combined`.

    >>> from byzantium.vectors import as_source
    >>> source = as_source([{"w": torch.ones(2, 2), "b": torch.zeros(1)}] * 3)
    >>> source.n, source.d
    (3, 5)
    """

    n: int
    d: int
    dtype: torch.dtype
    device: torch.device
    unreadable: Mapping[int, str]
    norms: Array | None = None
    names: Sequence[object] | None = None
    team: Team = ALONE
    has_coordinates: bool = True
    root_loss: Callable[[Tensor], float] | None = None

    @property
    def readable(self) -> Rows:
        """The indices of all rows that can be read."""
        rows = np.arange(self.n)
        return np.delete(rows, list(self.unreadable)) if self.unreadable else rows

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype for computing: float64 if the vectors have it, float32 for all others."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @abstractmethod
    def block(self, columns: slice, rows: Rows) -> Tensor:
        """Some columns of some rows, as a matrix of `compute_dtype`."""

    @abstractmethod
    def result(self, vector: Tensor, rows: Rows) -> Any:
        """The aggregate (d,) of some rows, in the form of the vectors."""

    def assembled(self, part: Callable[[slice], Tensor], rows: Rows) -> Any:
        """The same as `result`, from a function that returns some columns of the aggregate."""
        return self.result(part(slice(0, self.d)), rows)

    def row_name(self, row: int) -> str:
        """The name of a row in messages."""
        return str(row if self.names is None else self.names[row])

    def relative_to(self, base: Any) -> Source:
        """A source of the same vectors minus a base, which has the form of one vector."""
        return _relative(self, base)

    def trusted(self, name: str, vector: Any) -> Tensor:
        """A vector of the caller's, of the form of one of these: its numbers, (dimension,).

        - `name`: the name of the vector in messages.
        - `vector`: the vector.
        """
        return _whole(_single(name, vector, self.dimension))

    def inner_products(self, rows: Rows, anchors: Mapping[str, Tensor | None]) -> Array | None:
        """Inner products of rows and anchors about any point, if known without columns.

        None if they are not, or if digits would be lost: then columns are read.
        """
        return None

    def combined(self, weights: Array, anchors: Mapping[str, float]) -> Tensor | None:
        """A weighted sum in a form that `result` takes, if the source computes it by itself.

        - `weights`: the weight of each row, (n,).
        - `anchors`: the weight of each anchor, by name.
        """
        return None

    def check_center(self, pipeline: str, center: Tensor) -> None:
        """Raise an error unless the center that a rule holds is a vector like those here."""
        if center.shape != (self.dimension,):
            raise ByzantiumError(
                f"{pipeline} holds a center of dimension {center.numel()}, got vectors of "
                f"dimension {self.dimension}; reset() forgets it"
            )

    def check_coordinates(self, rule: object) -> None:
        """Raise an error if a rule needs coordinates, and columns here are none."""
        if not self.has_coordinates:
            raise ByzantiumError(
                f"{rule!r} needs the coordinates of the vectors, and of low-rank updates only the "
                "products have any: take full weights, LowRank(..., full=True), or a rule by "
                "weights, such as GeometricMedian()"
            )

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, Tensor, Rows]]:
        """All columns in blocks: which columns, a matrix with them, which of its rows to use."""
        if not self.team.reads:
            return
        for columns in column_blocks(len(rows), self.d, self.compute_dtype):
            yield columns, self.block(columns, rows), np.arange(len(rows))

    @property
    def dimension(self) -> int:
        """The dimension of the whole vectors, also where only some columns are here."""
        return self.team.dimension(self.d)

    def empty_aggregate(self, dtype: torch.dtype) -> Tensor:
        """Memory for the columns of an aggregate that are here, (d,)."""
        return self.team.empty_part(self.d, dtype, self.device)


class Matrix(Source):
    """The rows of one dense floating-point tensor (n, d), which is never copied as a whole.

    >>> source = Matrix(torch.ones(3, 5))
    >>> source.n, source.d
    (3, 5)
    """

    def __init__(self, updates: Tensor) -> None:
        if updates.dtype not in FLOATS:
            raise ArgumentTypeError(
                f"updates must be float16, bfloat16, float32 or float64, got {updates.dtype}"
            )
        if fault := fault_of(updates):
            raise ArgumentTypeError(f"updates must be a dense tensor, got {fault}")
        if updates.ndim != 2:
            raise ByzantiumError(
                f"updates must have shape (n, d), one row per worker, got {tuple(updates.shape)}"
            )
        self.updates = updates.detach().resolve_neg()
        self.n, self.d = updates.shape
        self.dtype, self.device = updates.dtype, updates.device
        self.unreadable = {}

    def block(self, columns: slice, rows: Rows) -> Tensor:
        block = self.updates[:, columns].index_select(0, torch.from_numpy(rows).to(self.device))
        return block.to(self.compute_dtype).contiguous()

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, Tensor, Rows]]:
        """The tensor itself as one block, unless it must be converted."""
        if self.dtype == self.compute_dtype and self.updates.stride(1) == 1:
            yield slice(0, self.d), self.updates, rows
        else:
            yield from super().pieces(rows)

    def result(self, vector: Tensor, rows: Rows) -> Tensor:
        return vector.to(self.dtype)


class Vectors(Source):
    """n mappings, sequences or single arrays, of NumPy or torch, which are read without a copy.

    - `rows`: the n mappings, sequences or arrays.
    - `like`: a row whose form, keys, shapes and dtypes all others must have; by default those that
      most rows have.
    - `strict`: whether a row that differs is an error; otherwise it is unreadable.

    The columns are the floating-point entries, one after the other. Entries of whole numbers and
    truth values, such as counters, take no part in distances: their result is the coordinate-wise
    median of the usable rows, rounded down.
    """

    def __init__(self, rows: Sequence[Any], like: Any = None, strict: bool = True) -> None:
        self.n = len(rows)
        described = [Row.of(row) for row in rows]
        pattern = Row.of(like) if like is not None else commonest(described)
        if like is not None and pattern.fault:
            raise ArgumentTypeError(f"like {pattern.fault}, but must be {ROW}")
        self.unreadable = {}
        for i, row in enumerate(described):
            if strict and row.fault:
                raise ArgumentTypeError(f"vector {i} {row.fault}, but must be {ROW}")
            if reason := row.differs_from(pattern):
                if strict:
                    raise ByzantiumError(f"vector {i} {reason}")
                self.unreadable[i] = reason
        if pattern.fault:
            raise TooManyRejected(
                f"none of {self.n} vectors can be used; vector 0 {pattern.fault}", self.unreadable
            )
        self.pattern = pattern
        self.floats, self.counters, self.d = columns_of(pattern)
        self.rows = [row.arrays for row in described]
        dtypes = {entry.dtype for entry in self.floats}
        wide = torch.float64 in dtypes
        self.dtype = torch.float64 if wide else dtypes.pop() if len(dtypes) == 1 else torch.float32
        devices = (entry.device for entry in self.floats if entry.device is not None)
        self.device = next(devices, torch.device("cpu"))

    def block(self, columns: slice, rows: Rows) -> Tensor:
        width = columns.stop - columns.start
        block = torch.empty(len(rows), width, dtype=self.compute_dtype, device=self.device)
        entries = [
            entry
            for entry in self.floats
            if entry.start < columns.stop and columns.start < entry.start + entry.size
        ]

        def fill(first_row: int, last_row: int) -> None:
            for k in range(first_row, last_row):
                arrays = self.rows[rows[k]]
                for entry in entries:
                    first = max(entry.start, columns.start)
                    last = min(entry.start + entry.size, columns.stop)
                    values = flat(arrays[entry.key])[first - entry.start : last - entry.start]
                    copy_into(values, block[k, first - columns.start : last - columns.start])

        # Copying by torch would leave its threads busy waiting, in competition with ours.
        parallel_map(fill, [(k, k + 1) for k in range(len(rows))], torch.get_num_threads())
        return block

    def result(self, vector: Tensor, rows: Rows) -> Any:
        return self.assembled(vector.__getitem__, rows)

    def assembled(self, part: Callable[[slice], Tensor], rows: Rows) -> Any:
        """One array after the other, so that the whole vector is never in memory twice."""
        arrays = {}
        for entry in self.floats:
            arrays[entry.key] = entry.rebuilt(part(slice(entry.start, entry.start + entry.size)))
        for entry in self.counters:
            median = middle([self.rows[row][entry.key] for row in rows])
            arrays[entry.key] = median if entry.device is None else median.to(entry.device)
        return self.pattern.rebuilt(arrays)

    def relative_to(self, base: Any) -> Source:
        self._check_entries("the base", base)
        return _relative(self, base)

    def trusted(self, name: str, vector: Any) -> Tensor:
        self._check_entries(name, vector)
        # In the order of the columns here, which need not be that of its own entries.
        ordered = {key: Row.of(vector).arrays[key] for key in self.pattern.arrays}
        return super().trusted(name, ordered)

    def _check_entries(self, name: str, vector: Any) -> None:
        if reason := Row.of(vector).differs_from(self.pattern, also_in_form=False):
            raise ByzantiumError(f"{name} {reason}")


class Relative(Source):
    """The vectors of another source minus a base, which is added to the result again."""

    def __init__(self, source: Source, base: Source) -> None:
        self.source, self.base = source, base
        self.n, self.d, self.dtype = source.n, source.d, source.dtype
        self.device, self.unreadable = source.device, source.unreadable
        self.names = source.names

    def _base_part(self, columns: slice) -> Tensor:
        return self.base.block(columns, np.zeros(1, dtype=np.int64))[0].to(self.device)

    def block(self, columns: slice, rows: Rows) -> Tensor:
        return self.source.block(columns, rows) - self._base_part(columns)

    def trusted(self, name: str, vector: Any) -> Tensor:
        whole = self.source.trusted(name, vector)
        return whole - _whole(self.base).to(whole)

    def result(self, vector: Tensor, rows: Rows) -> Any:
        return self.source.assembled(
            lambda columns: vector[columns].double() + self._base_part(columns), rows
        )


def as_source(
    updates: Any,
    *,
    base: Any = None,
    like: Any = None,
    strict: bool = True,
    names: Sequence[object] | None = None,
) -> Source:
    """The vectors of n workers as a `Source`, whatever form they have.

    - `updates`: one matrix (n, d) of torch or NumPy; or n vectors (arrays, or lists of numbers), n
      mappings of named arrays (state dicts), or n lists of arrays; or a `Source`.
    - `base`: a vector, of the same form as the others, that is subtracted from each of them and
      added to the result.
    - `like`: a vector whose form, keys, shapes and dtypes all must have; by default those that
      most have.
    - `strict`: whether a vector that differs in them is an error; otherwise it is rejected.
    - `names`: the names of the vectors in messages; by default their indices.

    >>> as_source([[1.0 * torch.ones(2)], [2.0 * torch.ones(2)]]).d
    2
    """
    source = _source(updates, like, strict)
    if not source.n:
        raise ByzantiumError("updates must hold at least one vector, got n = 0")
    _check_orientation(source.n, source.dimension)
    if names is not None:
        source.names = names
    return source if base is None else source.relative_to(base)


def _check_orientation(n: int, d: int) -> None:
    """Raise an error if rows are most likely columns, before n x n numbers are allocated."""
    if n > max(MANY_ROWS, ROWS_PER_COLUMN * d):
        raise ByzantiumError(
            f"updates must have shape (n, d), one row per worker, got ({n}, {d}), and rules need "
            f"n x n numbers, {8 * n**2 / 2**30:.3g} GiB; if each worker is a column, transpose "
            "updates"
        )


def _relative(source: Source, vector: Any) -> Relative:
    return Relative(source, _single("the base", vector, source.d))


def _single(name: str, vector: Any, d: int) -> Vectors:
    """One vector of the caller's, which must be finite and have d numbers."""
    if fault := Row.of(vector).fault:
        raise ArgumentTypeError(f"{name} {fault}, but must be {ROW}")
    single = Vectors([vector])
    if single.d != d:
        raise ByzantiumError(f"{name} needs as many numbers as each vector, {d}, got {single.d}")
    for _, numbers, _ in single.pieces(single.readable):
        if not numbers.isfinite().all():
            raise ByzantiumError(f"{name} holds numbers that are not finite")
    return single


def _whole(single: Source) -> Tensor:
    """The numbers of a source with one row, (d,)."""
    return single.block(slice(0, single.d), np.zeros(1, dtype=np.int64))[0]


def _source(updates: Any, like: Any, strict: bool) -> Source:
    if isinstance(updates, Tensor):
        return Matrix(updates)
    if isinstance(updates, Source):
        return updates
    if isinstance(updates, np.ndarray):
        if fault := fault_of(updates):
            raise ArgumentTypeError(f"updates must be an array of numbers, got {fault}")
        if updates.ndim != 2:
            raise ByzantiumError(
                f"updates must have shape (n, d), one row per worker, got {updates.shape}"
            )
        _check_orientation(*updates.shape)
        return Vectors(list(np.asarray(updates)), like, strict)
    if isinstance(updates, Sequence) and not isinstance(updates, str | bytes):
        if not len(updates):
            raise ByzantiumError("updates must hold at least one vector, got n = 0")
        if are_numbers(updates):
            raise ByzantiumError(
                f"updates must have shape (n, d), one row per worker, got {len(updates)} numbers"
            )
        return Vectors(updates, like, strict)
    raise ArgumentTypeError(
        "updates must be one matrix (n, d), or n vectors, mappings or lists of arrays, "
        f"got {type_name(updates)}"
    )
