"""Vectors that come as named arrays, such as state dicts: what they hold, and whether they fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byzantium.core import KindError, kind_of

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Entry:
    """One of the named arrays that a vector consists of; `start` is its first column."""

    key: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    of_numpy: bool
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Row:
    """The named arrays of one row.

    form:  the type in which they were given, a mapping or a sequence; None for a single array.
    fault: why there are none, as the end of a sentence.
    """

    arrays: Mapping[Any, Any]
    form: type | None
    fault: str = ""

    @classmethod
    def of(cls, row: Any) -> Row:
        form: type | None = type(row)
        if _is_array(row):
            arrays, form = {0: row}, None
        elif isinstance(row, Mapping):
            arrays = dict(row)
        elif isinstance(row, list | tuple):
            arrays = dict(enumerate(row))
        else:
            return cls({}, None, f"is {kind_of(row)}")
        for key, array in arrays.items():
            if not _is_array(array):
                return cls({}, None, f"holds {kind_of(array)} at {key!r}")
            if _dtype(array) is None:
                return cls({}, None, f"holds numbers of the kind {array.dtype} at {key!r}")
        return cls(arrays, form)

    def rebuilt(self, arrays: Mapping[Any, Any]) -> Any:
        """Other arrays in the form of this row."""
        ordered = {key: arrays[key] for key in self.arrays}
        if self.form is None:
            return ordered[0]
        if issubclass(self.form, Mapping):
            return self.form(ordered) if issubclass(self.form, dict) else ordered
        return tuple(ordered.values()) if issubclass(self.form, tuple) else list(ordered.values())

    @property
    def signature(self) -> tuple[tuple[Any, tuple[int, ...], torch.dtype | None], ...]:
        return tuple((key, tuple(a.shape), _dtype(a)) for key, a in self.arrays.items())

    def differs_from(self, pattern: Row) -> str:
        """How it differs, as the end of a sentence; empty if it does not."""
        if self.fault:
            return self.fault
        for key in pattern.arrays.keys() - self.arrays.keys():
            return f"lacks the entry {key!r}"
        for key in self.arrays.keys() - pattern.arrays.keys():
            return f"has an entry {key!r} that the others lack"
        for key, array in pattern.arrays.items():
            other = self.arrays[key]
            if tuple(other.shape) != tuple(array.shape):
                shapes = f"{tuple(other.shape)} instead of {tuple(array.shape)}"
                return f"has the shape {shapes} at {key!r}"
            if _dtype(other) != _dtype(array):
                return f"has the dtype {other.dtype} instead of {array.dtype} at {key!r}"
        return ""


def commonest(rows: Sequence[Row]) -> Row:
    """The row whose keys, shapes and dtypes most have; of several, the first."""
    signatures = [frozenset(row.signature) if not row.fault else None for row in rows]
    counts = [signatures.count(s) if s is not None else 0 for s in signatures]
    return rows[counts.index(max(counts))]


def columns_of(pattern: Row) -> tuple[list[Entry], list[Entry], int]:
    """The floating-point entries, the others, and the number of columns."""
    floats, counters, start = [], [], 0
    for key, array in pattern.arrays.items():
        dtype = _dtype(array)
        assert dtype is not None
        of_numpy = not isinstance(array, Tensor)
        entry = Entry(key, tuple(array.shape), dtype, of_numpy, start)
        if dtype in FLOATS:
            floats.append(entry)
            start += entry.size
        else:
            counters.append(entry)
    if not floats:
        raise KindError("updates must hold floating-point numbers, got none")
    return floats, counters, start


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _dtype(array: Any) -> torch.dtype | None:
    """The dtype of an array as torch names it; None for texts, objects and complex numbers."""
    if isinstance(array, Tensor):
        dtype = array.dtype
        counts = not (dtype.is_floating_point or dtype.is_complex)
        return dtype if counts or dtype in FLOATS else None
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        return None
    return getattr(torch, array.dtype.newbyteorder("=").name, None)


def flat(array: Any) -> Any:
    return array.detach().reshape(-1) if isinstance(array, Tensor) else np.reshape(array, -1)


def copy_into(values: Any, target: Tensor) -> None:
    """Copy values into a tensor of a working dtype; by NumPy where possible."""
    if isinstance(values, Tensor):
        if values.device.type != "cpu":
            target.copy_(values)
            return
        if values.dtype == torch.bfloat16:
            bits = values.view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            values = values.numpy()
    if target.device.type != "cpu":
        target.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    else:
        np.copyto(target.numpy(), values, casting="same_kind")


def middle(arrays: Sequence[Any]) -> Any:
    """The median of each coordinate of whole numbers or truth values, rounded down.

    >>> middle([torch.tensor([1, 7]), torch.tensor([2, 7]), torch.tensor([99, 8])])
    tensor([2, 7])
    """
    stacked = np.stack([a.cpu().numpy() if isinstance(a, Tensor) else a for a in arrays])
    ordered = np.sort(stacked, axis=0)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    # The floor of (low + high) / 2, which the sum itself might overflow.
    middle = low & high if stacked.dtype == bool else (low & high) + ((low ^ high) >> 1)
    if isinstance(arrays[0], Tensor):
        return torch.from_numpy(np.asarray(middle, dtype=stacked.dtype)).to(arrays[0].device)
    return np.asarray(middle, dtype=stacked.dtype)
