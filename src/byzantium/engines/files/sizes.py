"""Weights that the operator vouches for, in a file: the size of each contributor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byzantium.core import ArgumentTypeError, ByzantiumError
from byzantium.runs import records

ENDING = ".safetensors"


def read_weights(path: str | os.PathLike[str]) -> dict[str, float]:
    r"""The sizes in a TOML or JSON file, by the names of their owners.

    A line of TOML is `"site-1.safetensors" = 190`; the quotes and the ending may be omitted.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "sizes.toml")
    ...     _ = path.write_text('site-1 = 190\nsite-2.safetensors = 17834')
    ...     read_weights(path)
    {'site-1': 190, 'site-2.safetensors': 17834}
    """
    weights = _flat(records.read(Path(path)))
    for name, value in weights.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentTypeError(
                f"{os.fspath(path)} must give a number for each name, got {value!r} for {name!r}"
            )
    if not weights:
        raise ByzantiumError(f"{os.fspath(path)} must give a number for each name, got none")
    return weights


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their whole names: without quotes, TOML takes a dot for the start of a table."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = _flat(value) if isinstance(value, Mapping) else {"": value}
        flat |= {f"{name}.{key}" if key else name: one for key, one in inner.items()}
    return flat


def weights_of(weights: Any, names: Sequence[str]) -> tuple[list[float], list[str]]:
    """The weights of some contributors, and the names in `weights` that are none of theirs.

    - `weights`: the weights, by name or in the order of the contributors.
    - `names`: the names of the contributors, whose ending may be omitted in `weights`.

    >>> weights_of({"ada": 3, "eve": 1}, ["ada.safetensors"])
    ([3], ['eve'])
    """
    if not isinstance(weights, Mapping):
        return list(weights), []
    numbers, used = [], set()
    for name in names:
        keys = [key for key in (name, name.removesuffix(ENDING)) if key in weights]
        if not keys:
            raise ByzantiumError(
                f"weights must have a number for each contributor, and there is none for {name!r}; "
                "0 leaves a contributor out"
            )
        numbers.append(weights[keys[0]])
        used.update(keys)
    return numbers, [str(name) for name in weights if name not in used]
