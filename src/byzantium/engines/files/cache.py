"""The last change of each node of a federation, in files, so that all of them can be aggregated.

Where few of many nodes are sampled in a round, more than half of a sample may be Byzantine. So the
server keeps what each node sent last, replaces that of the sampled nodes, and aggregates all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels.torch_passes import column_blocks
from byzantium.core import ByzantiumError, Positive, files, folder_lock, validated
from byzantium.engines.federation.vectors import spread_ratio
from byzantium.engines.files.safetensors import DTYPES, encode_header
from byzantium.engines.files.source import Files, Merged
from byzantium.vectors import Source
from byzantium.vectors.source import Vectors

logger = logging.getLogger("byzantium")

Arrays = Mapping[str, NDArray[Any]]
Rows = NDArray[np.int64]

#: A file of the cache: a digest of the node's name, and the round in which it was written.
NAME = re.compile(r"[0-9a-f]{32}-[0-9]{9}\.safetensors")
# The entries of a file: all floating-point numbers of a change as one vector, and each array of
# whole numbers.
CHANGE, COUNTER = "change", "counter-{}"
# How dtypes of NumPy are named in safetensors.
CODES = {
    **{f"float{bits}": f"F{bits}" for bits in (32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
}
# So many sets of files are kept: if the newest checkpoint is damaged, there is the one before.
SETS = 2


@dataclass(frozen=True)
class _Last:
    """What a node sent last: in which round and, if it could not be used, why."""

    number: int
    fault: str = ""


class ChangeCache:
    """The last change of each node, one file for each in a folder.

    What is in use is part of the state, and not of the folder: a server that was killed continues
    from its checkpoint with the files that this names. So `commit` removes the files that the last
    two states do not name.

    - `folder`: the folder; other files in it are left alone.
    - `age`: how many rounds old a change may be; by default any number.

    >>> import tempfile
    >>> from byzantium import Median
    >>> model = {"w": np.zeros(2, dtype=np.float32)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ChangeCache(folder)
    ...     for node, value in enumerate((1.0, 2.0, 1e6)):
    ...         cache.put(node, 1, {"w": np.full(2, value, dtype=np.float32)}, model)
    ...     Median()(cache.source(cache.nodes(2), model))
    {'w': array([2., 2.], dtype=float32)}
    """

    def __init__(self, folder: Path | str, age: int | None = None) -> None:
        self.folder = Path(folder)
        self.age: int | None = validated("cache", "age", age, Positive | None)
        self._last: dict[Hashable, _Last] = {}
        self._sets: list[set[Path]] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder, so that no other server uses it meanwhile."""
        with folder_lock(self.folder):
            yield

    def put(self, node: Hashable, number: int, row: Arrays, model: Arrays) -> None:
        """Keep the change from a model to a row as the last one of a node.

        - `node`: the name of the node: a whole number or a text.
        - `row`: the arrays that it sent, of the names, shapes and dtypes of the model.
        """
        source = Vectors([row], like=model)
        change = source.relative_to(model)
        arrays = dict(zip(_counters(source), _counter_arrays(source, row), strict=True))
        code = CODES[str(change.compute_dtype).removeprefix("torch.")]
        layout = {CHANGE: (DTYPES[code], (change.d,))}
        layout |= {
            name: (DTYPES[CODES[array.dtype.name]], array.shape) for name, array in arrays.items()
        }
        with files.writing(self._path(node, number)) as file:
            file.write(encode_header(layout, ""))
            for columns in column_blocks(1, change.d, change.compute_dtype):
                block = change.block(columns, np.zeros(1, dtype=np.int64))
                file.write(block.numpy().view(np.uint8).data)
            for array in arrays.values():
                file.write(array.tobytes())
        self._last[node] = _Last(number)

    def put_fault(self, node: Hashable, number: int, fault: str) -> None:
        """Keep that a node sent last what cannot be used, so that it still counts as Byzantine."""
        self._last[node] = _Last(number, fault)

    def faults(self, nodes: Sequence[Any]) -> dict[Any, str]:
        """Why the last change of some nodes cannot be used, for those of which it cannot."""
        return {node: last.fault for node in nodes if (last := self._last[node]).fault}

    def nodes(self, number: int) -> list[Any]:
        """The nodes that were heard, and are not too old in a round, in the order of arrival."""
        return [
            node
            for node, last in self._last.items()
            if self.age is None or number - last.number <= self.age
        ]

    def source(self, nodes: Sequence[Any], model: Arrays) -> Changes:
        """The last changes of nodes, as the input of a rule whose result is the next model."""
        paths = [self._path(node, self._last[node].number) for node in nodes]
        by_node = self.faults(nodes)
        faults = {k: by_node[node] for k, node in enumerate(nodes) if node in by_node}
        return Changes(paths, faults, model, nodes)

    def state_dict(self) -> dict[str, str]:
        """Which files are in use."""
        listed = [[node, last.number, last.fault] for node, last in self._last.items()]
        return {"last": json.dumps(listed)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the files that a state names; an empty state names none.

        A node whose file is gone is absent until it is heard again.
        """
        listed = [(node, _Last(*rest)) for node, *rest in json.loads(state.get("last", "[]"))]
        there = [
            (n, last) for n, last in listed if last.fault or self._path(n, last.number).exists()
        ]
        if len(there) < len(listed):
            logger.warning(
                "%s lacks the last changes of %d of %d nodes, which are absent until they are "
                "heard again",
                *(self.folder, len(listed) - len(there), len(listed)),
            )
        self._last, self._sets = dict(there), []
        self.commit()

    def commit(self) -> None:
        """Remove files that neither this state nor the one before needs; call it after saving."""
        in_use = {self._path(node, last.number) for node, last in self._last.items()}
        self._sets = [*self._sets, in_use][-SETS:]
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if NAME.fullmatch(path.name) and not any(path in one for one in self._sets):
                with suppress(OSError):
                    path.unlink()

    def _path(self, node: Hashable, number: int) -> Path:
        """The file of a node; a node may choose its name, so that is no part of the path."""
        digest = hashlib.sha256(json.dumps(node).encode()).hexdigest()[:32]
        return self.folder / f"{digest}-{number:09d}.safetensors"


class Changes(Source):
    """The last changes of nodes, which are read from files block by block.

    - `paths`: the file of each node.
    - `faults`: why a node has no file, by its index: it counts as Byzantine.
    - `model`: what the aggregate is added to.
    - `names`: the names of the nodes.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        faults: Mapping[int, str],
        model: Arrays,
        names: Sequence[Any],
    ) -> None:
        self.files = Files(paths, force=True)  # a model may be a factor of a low-rank update
        self.model = Vectors([model])
        if self.files.d != self.model.d:
            raise ByzantiumError(
                f"the cache holds changes of {self.files.d} numbers, and the model has "
                f"{self.model.d}; a cache is for one model"
            )
        self.n, self.d, self.names = self.files.n, self.files.d, names
        self.dtype, self.device = self.model.dtype, self.model.device
        self.unreadable = {**self.files.unreadable, **faults}

    def block(self, columns: slice, rows: Rows) -> Tensor:
        return self.files.block(columns, rows)

    def trusted(self, name: str, vector: Any) -> Tensor:
        """The change from the model to a row of the caller's."""
        (model,) = self.model.rows
        return self.model.relative_to(model).trusted(name, vector)

    def result(self, vector: Tensor, rows: Rows) -> Any:
        """The model plus a change, in the form of the model."""
        merged, (model,) = Merged(self.files, vector, rows), self.model.rows
        arrays = {}
        for entry in self.model.floats:
            columns = slice(entry.start, entry.start + entry.size)
            base = torch.from_numpy(np.array(model[entry.key], dtype=np.float64)).reshape(-1)
            arrays[entry.key] = entry.rebuilt(vector[columns].double() + base)
        for name, entry in zip(_counters(self.model), self.model.counters, strict=True):
            arrays[entry.key] = entry.rebuilt(merged[name])
        return self.model.pattern.rebuilt(arrays)


def measure_changes(
    source: Source, rows: Rows, aggregate: NDArray[Any]
) -> tuple[list[float], float | None]:
    """The distance of each change to the aggregate, and the spread-to-mean ratio of all changes.

    The ratio is the mean squared distance of the changes to their mean, over the squared norm of
    the mean, at most 1e100; None if all changes are zero. The changes are read once, block by
    block: with y_i = x_i - a for the aggregate a, the spread is mean |y_i|^2 - |mean(y)|^2.

    - `rows`: the indices of those that were used.
    - `aggregate`: the change that the rule made of them, (d,).
    """
    squares, mean_squared, to_aggregate = np.zeros(len(rows)), 0.0, 0.0
    for columns in column_blocks(len(rows), source.d, torch.float64):
        target = aggregate[columns].astype(np.float64)
        difference = source.block(columns, rows).double().numpy() - target
        squares += np.einsum("ij,ij->i", difference, difference)
        mean = difference.mean(axis=0)
        to_aggregate += float(mean @ mean)
        mean += target
        mean_squared += float(mean @ mean)
    spread = max(0.0, float(squares.mean()) - to_aggregate)
    return np.sqrt(squares).tolist(), spread_ratio(spread, mean_squared)


def _counters(vectors: Vectors) -> list[str]:
    """The names that arrays of whole numbers have in a file."""
    return [COUNTER.format(k) for k in range(len(vectors.counters))]


def _counter_arrays(vectors: Vectors, row: Arrays) -> list[NDArray[Any]]:
    native = (np.asarray(row[entry.key]) for entry in vectors.counters)
    return [array.astype(array.dtype.newbyteorder("<"), order="C") for array in native]
