"""Changes of a model as vectors, and back; integers are no part of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byzantium.core import TooManyRejected
from byzantium.rules import Mean
from byzantium.rules.admission import admit
from byzantium.runs.values import LARGEST
from byzantium.vectors import Source

Arrays = dict[str, NDArray[Any]]

# How many numbers of a reply are measured at a time.
CHUNK = 1 << 18


def layout(arrays: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and shape of each array; two models can be compared by it."""
    return {key: (str(array.dtype), tuple(array.shape)) for key, array in arrays.items()}


def wide_dtype(array: NDArray[Any]) -> Any:
    """The dtype to compute in: float64, or float32 for fewer bits."""
    return np.float64 if array.dtype.itemsize == 8 else np.float32


def change_vector(model: Arrays, row: Arrays) -> NDArray[np.float64]:
    """The change from the model to a row, as one vector."""
    parts = [
        np.subtract(row[key], array, dtype=np.float64).reshape(-1)
        for key, array in model.items()
        if array.dtype.kind == "f"
    ]
    return np.concatenate(parts)


def apply_change(model: Arrays, row: Arrays, vector: NDArray[Any]) -> Arrays:
    """The model, changed by a vector; integers are those of the row."""
    result, start = dict(row), 0
    for key, array in model.items():
        if array.dtype.kind == "f":
            part = vector[start : start + array.size].reshape(array.shape)
            result[key] = np.asarray(array + part, dtype=array.dtype)
            start += array.size
    return result


def measure(
    model: Arrays, rows: Sequence[Arrays], aggregate: Arrays
) -> tuple[list[float], float | None]:
    """The distance of each row to the aggregate, and the spread-to-mean ratio of all rows.

    The ratio is the mean squared distance of the rows to their mean, over the squared distance of
    that mean to the model, at most 1e100; None if all rows are the model. With a the aggregate and
    y_i = x_i - a,

        mean_i |x_i - mean(x)|^2 = mean_i |y_i|^2 - |mean(y)|^2,    mean(x) = a + mean(y),

    so one reading of the rows, in chunks, gives the ratio and the distances. Few digits are
    lost in the difference: for any mixture a of n rows, |mean(y)|^2 is at most n times the spread.
    """
    squares, mean_squared, to_aggregate = np.zeros(len(rows)), 0.0, 0.0
    for key, start in model.items():
        if start.dtype.kind != "f":
            continue
        parts = [_flat(row[key]) for row in rows]
        origin, target = _flat(start), _flat(aggregate[key])
        for first in range(0, len(origin), CHUNK):
            chunk = slice(first, first + CHUNK)
            total = np.zeros(len(origin[chunk]))
            for k, part in enumerate(parts):
                difference = np.subtract(part[chunk], target[chunk], dtype=np.float64)
                squares[k] += difference @ difference
                total += difference
            total /= len(rows)
            to_aggregate += float(total @ total)
            total += np.subtract(target[chunk], origin[chunk], dtype=np.float64)
            mean_squared += float(total @ total)
    spread = max(0.0, float(squares.mean()) - to_aggregate)
    return np.sqrt(squares).tolist(), spread_ratio(spread, mean_squared)


def spread_ratio(spread: float, mean_squared: float) -> float | None:
    """The spread-to-mean ratio, at most 1e100; None if all rows are the model."""
    if not spread and not mean_squared:
        return None
    return min(spread / mean_squared if mean_squared else math.inf, LARGEST)


def _flat(array: NDArray[Any]) -> Any:
    """An array as a vector of which slices can be taken, without a copy of the whole."""
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def rejection_reasons(source: Source) -> Mapping[int, str]:
    """The rows that every rule rejects, and why."""
    try:
        return admit(Mean().stages, source).reasons
    except TooManyRejected as error:
        return error.reasons
