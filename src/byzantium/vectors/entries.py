"""The entries of low-rank updates: products of factors, and arrays; whether updates fit each other.

A contributor chooses what is in an update, so everything about it is checked before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ArgumentTypeError, ByzantiumError, shown, type_name
from byzantium.vectors.arrays import FLOATS, copy_into, fault_of, flat
from byzantium.vectors.factors import Product, Stack

Rows = NDArray[np.int64]
Signature = tuple[bool, tuple[int, ...], torch.dtype]


@dataclass(frozen=True)
class Entry:
    """A matrix of an update as a product, or one of its arrays."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stored: Product | None
    array: Any = None

    @property
    def factored(self) -> bool:
        return self.stored is not None

    @property
    def product(self) -> Product:
        assert self.stored is not None
        return self.stored

    @property
    def rank(self) -> int:
        return 0 if self.stored is None else len(self.stored.a)

    @property
    def signature(self) -> tuple[bool, tuple[int, ...], torch.dtype]:
        return self.factored, self.shape, self.dtype

    def values(self, columns: slice) -> Tensor:
        """Some numbers of an array, in float64."""
        values = flat(self.array)[columns]
        target = torch.empty(len(values), dtype=torch.float64)
        copy_into(values, target)
        return target


def entries_of(update: Any) -> dict[Any, Entry]:
    """The entries of an update; raises an error whose message is a predicate if it has none."""
    if not isinstance(update, Mapping):
        raise ArgumentTypeError(f"is {type_name(update)} instead of a mapping of products")
    entries = {}
    for name, value in update.items():
        if isinstance(value, tuple):
            entries[name] = _product(name, value)
            continue
        if fault := fault_of(value):
            raise ArgumentTypeError(f"holds {fault} at {shown(name)}")
        array = value.detach() if isinstance(value, Tensor) else _as_tensor(value)
        entries[name] = Entry(tuple(array.shape), array.dtype, None, array.cpu())
    return entries


def _product(name: Any, value: tuple[Any, ...]) -> Entry:
    if len(value) not in (2, 3):
        raise ByzantiumError(f"holds {len(value)} things instead of (B, A, scale) at {shown(name)}")
    for factor in value[:2]:
        if fault := fault_of(factor):
            raise ArgumentTypeError(f"holds {fault} as a factor at {shown(name)}")
    b, a = (
        factor.detach().cpu() if isinstance(factor, Tensor) else _as_tensor(factor)
        for factor in value[:2]
    )
    scale = float(value[2]) if len(value) == 3 else 1.0
    if b.dtype not in FLOATS or a.dtype != b.dtype:
        raise ArgumentTypeError(f"holds factors of {b.dtype} and {a.dtype} at {shown(name)}")
    if b.ndim != 2 or a.ndim != 2 or b.shape[1] != len(a) or not len(a):
        shapes = f"{shown(tuple(b.shape))} and {shown(tuple(a.shape))}"
        raise ByzantiumError(f"has factors of shapes {shapes} at {shown(name)}, with no product")
    return Entry((b.shape[0], a.shape[1]), b.dtype, Product(b, a, scale))


def _as_tensor(array: Any) -> Tensor:
    """An array of NumPy as a tensor; a copy, because it may be read-only or of other byte order."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def trusted_entries(name: str, update: Any) -> dict[Any, Entry]:
    try:
        return entries_of(update)
    except ByzantiumError as error:
        raise type(error)(f"{name} {error}") from error


def difference(row: Mapping[Any, Entry], pattern: Mapping[Any, Any]) -> str:
    """How an update differs in names and shapes, as the end of a sentence; empty if not."""
    for name in pattern.keys() - row.keys():
        return f"lacks the entry {shown(name)}"
    for name in row.keys() - pattern.keys():
        return f"has an entry {shown(name)} that the others lack"
    for name, (factored, shape, dtype) in pattern.items():
        entry, at = row[name], f"at {shown(name)}"
        if entry.factored != factored:
            return f"has {'a product' if entry.factored else 'an array'} that others have not {at}"
        if entry.shape != shape:
            return f"has the shape {shown(entry.shape)} instead of {shape} {at}"
        if entry.dtype != dtype:
            return f"has the dtype {entry.dtype} instead of {dtype} {at}"
    return ""


def norm_bound(row: Mapping[Any, Entry]) -> float:
    """An upper bound on the norm of an update, from those of its factors; perhaps not finite.

    It is taken in the precision of the factors. Where a square is too small for that, the factor is
    so small that the bound holds for any finite square of the other.
    """
    total = 0.0
    for entry in row.values():
        if entry.stored is not None:
            b, a, scale = entry.stored
            dtype = b.dtype if b.dtype.itemsize > 2 else torch.float32
            factors = (torch.linalg.vector_norm(one, dtype=dtype) for one in (b, a))
            size = abs(scale) * math.prod(map(float, factors))
        elif entry.dtype in FLOATS:
            size = float(torch.linalg.vector_norm(entry.array, dtype=torch.float64))
        else:
            continue
        total += size * size  # a power would raise an error where it is not finite
    return math.sqrt(total)


def norm(row: Mapping[Any, Entry]) -> float:
    """The norm of an update; NaN or infinite if one of its numbers is."""
    total = 0.0
    for entry in row.values():
        if entry.dtype not in FLOATS:
            continue
        if entry.factored:
            with np.errstate(invalid="ignore"):
                stack = Stack([entry.product])
                # A factor of zeros may hide an infinite one in the other.
                square = float(stack.squares()[0]) + 0.0 * float(stack.sizes[0])
        else:
            norm = torch.linalg.vector_norm(entry.array, dtype=torch.float64)
            square = float(norm) ** 2 if norm < 1e154 else math.inf
        total += square
    return math.sqrt(total) if total >= 0 else math.nan


def distinct(rows: Sequence[dict[Any, Entry] | None]) -> tuple[list[dict[Any, Entry]], Rows]:
    """The distinct usable updates, and for each update which of them it is; -1 for others."""
    members: list[dict[Any, Entry]] = []
    which = np.full(len(rows), -1, dtype=np.int64)
    seen: dict[Hashable, list[int]] = {}
    for i, row in enumerate(rows):
        if row is None:
            continue
        alike = seen.setdefault(tuple(sorted(map(_digest, row.values()))), [])
        equal = next((k for k in alike if _are_equal(members[k], row)), None)
        if equal is None:
            equal = len(members)
            alike.append(equal)
            members.append(row)
        which[i] = equal
    return members, which


def _digest(entry: Entry) -> tuple[float, ...]:
    """Some numbers of an entry: equal ones have equal digests."""
    if entry.stored is None:
        return (float(flat(entry.array)[0]),) if math.prod(entry.shape) else ()
    b, a, scale = entry.stored
    return scale, *(float(one.reshape(-1)[0]) for one in (b, a) if one.numel())


def _are_equal(one: Mapping[Any, Entry], other: Mapping[Any, Entry]) -> bool:
    """Whether all factors, scales and arrays are equal."""
    return all(_is_equal(entry, other[name]) for name, entry in one.items())


def _is_equal(one: Entry, other: Entry) -> bool:
    if one.stored is None or other.stored is None:
        return torch.equal(one.array, other.array)
    (b, a, scale), (other_b, other_a, other_scale) = one.stored, other.stored
    if scale != other_scale or a.shape != other_a.shape:
        return False
    return torch.equal(b, other_b) and torch.equal(a, other_a)
