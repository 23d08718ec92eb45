"""Changes of a model as vectors, and back; integers are no part of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byzantium.core import TooManyRejected
from byzantium.engines.flower.replies import Arrays
from byzantium.rules import Mean
from byzantium.rules.admission import admit
from byzantium.vectors import Source

# How many numbers at a time a distance is computed from.
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


def distance(row: Arrays, other: Arrays) -> float:
    """The distance between the floating-point numbers of two models, computed in chunks."""
    total = 0.0
    for key, array in row.items():
        if array.dtype.kind == "f":
            first, second = array.reshape(-1), other[key].reshape(-1)
            for start in range(0, len(first), CHUNK):
                chunk = slice(start, start + CHUNK)
                difference = np.subtract(first[chunk], second[chunk], dtype=np.float64)
                total += float(difference @ difference)
    return math.sqrt(total)


def rejection_reasons(source: Source) -> Mapping[int, str]:
    """The rows that every rule rejects, and why."""
    try:
        return admit(Mean().stages, source).reasons
    except TooManyRejected as error:
        return error.reasons
