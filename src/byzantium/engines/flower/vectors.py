"""Changes of a model as vectors, and back; whole numbers are no part of them."""

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

# Numbers that are looked at together when distances are taken.
CHUNK = 1 << 18


def change(model: Arrays, row: Arrays) -> NDArray[np.float64]:
    """What was changed, as one vector."""
    parts = [
        np.subtract(row[key], array, dtype=np.float64).reshape(-1)
        for key, array in model.items()
        if array.dtype.kind == "f"
    ]
    return np.concatenate(parts)


def moved(model: Arrays, row: Arrays, vector: NDArray[Any]) -> Arrays:
    """The model, changed by a vector; whole numbers are those of the row."""
    result, start = dict(row), 0
    for key, array in model.items():
        if array.dtype.kind == "f":
            part = vector[start : start + array.size].reshape(array.shape)
            result[key] = np.asarray(array + part, dtype=array.dtype)
            start += array.size
    return result


def distance(row: Arrays, other: Arrays) -> float:
    """Between the numbers of two models, looked at in pieces."""
    total = 0.0
    for key, array in row.items():
        if array.dtype.kind == "f":
            ours, theirs = array.reshape(-1), other[key].reshape(-1)
            for start in range(0, len(ours), CHUNK):
                piece = slice(start, start + CHUNK)
                apart = np.subtract(ours[piece], theirs[piece], dtype=np.float64)
                total += float(apart @ apart)
    return math.sqrt(total)


def unusable(source: Source) -> Mapping[int, str]:
    """The rows that no rule would take, and why."""
    try:
        return admit(Mean().stages, source).reasons
    except TooManyRejected as error:
        return error.reasons
