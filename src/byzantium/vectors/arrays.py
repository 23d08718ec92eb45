"""Vectors as named arrays, such as state dicts: their numbers, and whether they fit each other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from byzantium.core import ArgumentTypeError, shown, type_name

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Integers and truth values.
COUNTERS = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
# The forms of a row, by their names in messages.
ARRAY, NUMBERS, LIST, MAPPING = "an array", "a list of numbers", "a list of arrays", "a mapping"

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True)
class Entry:
    """One of the named arrays of a vector.

    - `key`, `shape`, `dtype`: those of the array.
    - `device`: the device of the tensor; None for an array of NumPy.
    - `start`: its first column.
    """

    key: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None
    start: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def rebuilt(self, values: Tensor) -> Any:
        """An array like this one, with other numbers."""
        array = values.to(self.dtype).reshape(self.shape)
        return array.cpu().numpy() if self.device is None else array.to(self.device)


@dataclass(frozen=True)
class Row:
    """The named arrays of one row.

    - `arrays`: the arrays by name.
    - `form`: `ARRAY`, `NUMBERS`, `LIST` or `MAPPING`.
    - `row_type`: the type of the row.
    - `fault`: why there are no arrays, as the end of a sentence.
    """

    arrays: Mapping[Any, Any]
    form: str
    row_type: type
    fault: str = ""

    @classmethod
    def of(cls, row: Any) -> Row:
        """The arrays of a row. One without numbers, or that raises when it is read, has a fault."""
        try:
            return cls._of(row)
        except Exception as error:  # an attacker's row may make NumPy, torch or us raise anything
            return cls({}, "", type(row), f"cannot be read: {type(error).__name__}")

    @classmethod
    def _of(cls, row: Any) -> Row:
        if _is_array(row):
            arrays, form = {0: row}, ARRAY
        elif isinstance(row, Mapping):
            arrays, form = dict(row), MAPPING
        elif are_numbers(row):
            arrays, form = {0: np.array([float(number) for number in row])}, NUMBERS
        elif isinstance(row, list | tuple):
            arrays, form = dict(enumerate(row)), LIST
        else:
            return cls({}, "", type(row), f"is {type_name(row)}")
        for key, array in arrays.items():
            if fault := fault_of(array):
                described = f"is {fault}" if form == ARRAY else f"holds {fault} at {shown(key)}"
                return cls({}, "", type(row), described)
            if isinstance(array, np.ndarray):
                arrays[key] = np.asarray(array)  # of NumPy's own class: matrices are never flat
        return cls(arrays, form, type(row))

    def rebuilt(self, arrays: Mapping[Any, Any]) -> Any:
        """Other arrays in the form of this row."""
        ordered = {key: arrays[key] for key in self.arrays}
        if self.form == ARRAY:
            return ordered[0]
        if self.form == MAPPING:
            return _mapping_like(self.row_type, ordered)
        values = ordered[0].tolist() if self.form == NUMBERS else list(ordered.values())
        return tuple(values) if issubclass(self.row_type, tuple) else values

    @property
    def signature(self) -> Hashable:
        """What rows must have in common; the order of the entries does not matter."""
        return self.form, frozenset(
            (key, tuple(array.shape), _dtype(array), isinstance(array, Tensor))
            for key, array in self.arrays.items()
        )

    @property
    def style(self) -> Hashable:
        """What rows may differ in, and the result takes from most rows: type, order and devices."""
        return self.row_type, tuple(
            (type(key), key, array.device if isinstance(array, Tensor) else None)
            for key, array in self.arrays.items()
        )

    def differs_from(self, pattern: Row, also_in_form: bool = True) -> str:
        """How it differs, as the end of a sentence; empty if it does not."""
        if self.fault:
            return self.fault
        if also_in_form and self.form != pattern.form:
            return f"is {self.form} instead of {pattern.form}"
        for key in pattern.arrays.keys() - self.arrays.keys():
            return f"lacks the entry {shown(key)}"
        for key in self.arrays.keys() - pattern.arrays.keys():
            return f"has an entry {shown(key)} that the others lack"
        for key, array in pattern.arrays.items():
            other = self.arrays[key]
            at = f" at {shown(key)}" if pattern.form in (LIST, MAPPING) else ""
            if tuple(other.shape) != tuple(array.shape):
                shape = shown(tuple(other.shape))
                return f"has the shape {shape} instead of {tuple(array.shape)}{at}"
            if _dtype(other) != _dtype(array):
                return f"has the dtype {other.dtype} instead of {array.dtype}{at}"
            if also_in_form and isinstance(other, Tensor) != isinstance(array, Tensor):
                return f"has {_library(other)} instead of {_library(array)}{at}"
        return ""


def _mapping_like(mapping_type: type, entries: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping of a type; a dict if that is no subclass of dict, or needs arguments."""
    if not issubclass(mapping_type, dict):
        return entries
    try:
        mapping = mapping_type()
        mapping.update(entries)
    except Exception:
        return entries
    return mapping


def commonest(rows: Sequence[Row]) -> Row:
    """The first row with the most frequent signature and, among these, the most frequent style.

    Rows with a fault do not count, unless there are no others.
    """
    usable = [row for row in rows if not row.fault]
    if not usable:
        return rows[0]
    signatures = [row.signature for row in usable]
    most = _most(signatures)
    alike = [row for row, one in zip(usable, signatures, strict=True) if one == most]
    styles = [row.style for row in alike]
    return alike[styles.index(_most(styles))]


def _most(items: Sequence[Item]) -> Item:
    counts = Counter(items)
    return max(counts, key=counts.__getitem__)


def columns_of(pattern: Row) -> tuple[list[Entry], list[Entry], int]:
    """The floating-point entries, the others, and the number of columns."""
    floats, counters, start = [], [], 0
    for key, array in pattern.arrays.items():
        dtype = _dtype(array)
        assert dtype is not None
        device = array.device if isinstance(array, Tensor) else None
        entry = Entry(key, tuple(array.shape), dtype, device, start)
        if dtype in FLOATS:
            floats.append(entry)
            start += entry.size
        else:
            counters.append(entry)
    if not floats:
        raise ArgumentTypeError("updates must hold floating-point numbers, got none")
    return floats, counters, start


def are_numbers(values: Any) -> bool:
    """Whether a list or tuple holds numbers of Python, perhaps some of NumPy among them.

    >>> are_numbers([1.0, 2]), are_numbers([np.ones(2)]), are_numbers([True]), are_numbers([])
    (True, False, False, False)
    """
    return (
        isinstance(values, list | tuple)
        and any(type(value) in (int, float) for value in values)
        and all(isinstance(value, int | float | np.floating | np.integer) for value in values)
        and not any(isinstance(value, bool) for value in values)
    )


def fault_of(array: Any) -> str:
    """Why the numbers of an array cannot be read in place, as a noun; empty if they can.

    >>> fault_of(torch.ones(2)), fault_of(torch.ones(2).to_sparse())
    ('', 'a tensor of layout torch.sparse_coo')
    """
    if not _is_array(array) or isinstance(array, np.ma.MaskedArray):
        return type_name(array)
    if isinstance(array, Tensor) and (fault := _tensor_fault(array)):
        return fault
    return "" if _dtype(array) is not None else f"numbers of the kind {_named(array.dtype)}"


def _tensor_fault(tensor: Tensor) -> str:
    # A subclass may store its numbers anywhere, and do anything when it is read.
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return type_name(tensor)
    if tensor.is_nested or tensor.is_quantized:
        return f"a {'nested' if tensor.is_nested else 'quantized'} tensor"
    if any(getattr(tensor, "names", ())):  # torch had them up to 2.12, and cannot reshape them
        return "a tensor with named dimensions"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_meta or (tensor.device.type == "cpu" and not _is_stored(tensor)):
        return "a tensor without data"
    return ""


def _is_stored(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor lie in its memory, which may have been released."""
    if not tensor.numel() or not tensor.data_ptr():
        return not tensor.numel()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in steps)
    return (last + 1) * tensor.itemsize <= tensor.untyped_storage().nbytes()


def _named(dtype: Any) -> str:
    return "void" if getattr(dtype, "kind", "") == "V" else str(dtype)  # fields have any names


def _library(array: Any) -> str:
    return "a tensor of torch" if isinstance(array, Tensor) else "an array of NumPy"


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray | np.generic)


def _dtype(array: Any) -> torch.dtype | None:
    """The dtype of an array as torch names it; None for texts, objects and complex numbers."""
    if isinstance(array, Tensor):
        return array.dtype if array.dtype in (*FLOATS, *COUNTERS) else None
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        return None
    return getattr(torch, array.dtype.newbyteorder("=").name, None)


def flat(array: Any) -> Any:
    return array.detach().reshape(-1) if isinstance(array, Tensor) else np.reshape(array, -1)


def copy_into(values: Any, target: Tensor) -> None:
    """Copy values into a tensor of a compute dtype; by NumPy where possible."""
    if isinstance(values, Tensor):
        values = values.resolve_neg()  # NumPy does not know of numbers that are still to be negated
        if values.device.type != "cpu":
            target.copy_(values)
            return
        if values.dtype == torch.bfloat16:
            bits = values.view(torch.int16).numpy().view(np.uint16).astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            values = values.numpy()
    if target.device.type != "cpu":
        native = values.dtype.newbyteorder("=")
        target.copy_(torch.from_numpy(np.ascontiguousarray(values, dtype=native)))
    else:
        np.copyto(target.numpy(), values, casting="same_kind")


def middle(arrays: Sequence[Any]) -> Any:
    """The median of each coordinate of whole numbers or truth values, rounded down.

    >>> middle([torch.tensor([1, 7]), torch.tensor([2, 7]), torch.tensor([99, 8])])
    tensor([2, 7])
    """
    stacked = np.stack(
        [a.resolve_neg().cpu().numpy() if isinstance(a, Tensor) else a for a in arrays]
    )
    ordered = np.sort(stacked, axis=0)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    # The floor of (low + high) / 2, which the sum itself might overflow.
    middle = low & high if stacked.dtype == bool else (low & high) + ((low ^ high) >> 1)
    if isinstance(arrays[0], Tensor):
        return torch.from_numpy(np.asarray(middle, dtype=stacked.dtype)).to(arrays[0].device)
    return np.asarray(middle, dtype=stacked.dtype)
