"""Checkpoints in files as the vectors of a rule, read block by block, and their aggregate."""

from __future__ import annotations

import json
import os
import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels.threads import parallel_map
from byzantium._kernels.torch_passes import column_blocks
from byzantium.core import ArgumentTypeError, ByzantiumError, cached_property, files, type_name
from byzantium.engines.files.input_files import (
    Identity,
    UnreadableError,
    identity,
    printable,
    quote,
)
from byzantium.engines.files.safetensors import (
    MAX_HEADER,
    PICKLE_SUFFIXES,
    Checkpoint,
    Entry,
    Layout,
    aligned,
    description_size,
    encode_header,
)
from byzantium.vectors import Source
from byzantium.vectors.arrays import middle

Rows = NDArray[np.int64]
T = TypeVar("T")
# The factors of low-rank updates, as peft and others call them.
LORA = re.compile(r"(^|[._])lora_(embedding_)?(A|B|up|down)([._]|$)")
# The headers of a checkpoint may have this many times the bytes of those of the base, or of the
# median (shards and their index need more), plus this many bytes (for metadata).
HEADER_FACTOR, HEADER_MARGIN = 4, 1 << 20


@dataclass(frozen=True)
class _Extent:
    """Columns of one dtype that are contiguous in one file."""

    start: int
    entry: Entry
    size: int


class Files(Source):
    """Checkpoints in safetensors, as the input of a rule: `rule(Files(paths))` aggregates them.

    Nothing is loaded as a whole: blocks of columns are read from the files when they are needed.
    The result is a `Merged`. A checkpoint that cannot be read is rejected and counts as Byzantine;
    so is one whose names, shapes or dtypes differ from those of the base or, without a base, from
    those of most others. Entries of integers and booleans become their median, rounded down.

    - `paths`: the checkpoints, one of each contributor: files, indices of sharded checkpoints, or
      folders that hold one of these.
    - `base`: a checkpoint that is subtracted from all first, and added to the result again.
    - `force`: also aggregate the factors of low-rank updates (LoRA), which are refused otherwise.

    >>> import tempfile
    >>> from byzantium import Median
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{k}.safetensors" for k in range(3)]
    ...     for path, value in zip(paths, (1.0, 2.0, 1e6)):
    ...         save_file({"weight": torch.tensor([value, 0.0])}, path)
    ...     Median()(Files(paths))["weight"]
    tensor([2., 0.])
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        base: str | os.PathLike[str] | None = None,
        force: bool = False,
    ) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise ArgumentTypeError("Files needs a list of files, one for each contributor")
        self.paths, self.force = [Path(path) for path in paths], force
        self.n, self.device = len(self.paths), torch.device("cpu")
        if not self.n:
            raise ByzantiumError("Files needs at least one checkpoint, got n = 0")
        self.names = names_of(self.paths)
        self.watch: Callable[[int], None] = lambda done: None
        self.unreadable: dict[int, str] = {}
        self.identities: set[Identity] = set()
        for path in self.paths:
            with suppress(OSError, ValueError):
                self.identities.add(identity(path.stat()))
        self.base = None if base is None else open_trusted("the base", Path(base), self.identities)
        self.root: Checkpoint | None = None
        self.max_header = self._max_header()
        first, checkpoint = self._find_reference()
        self.reference: Mapping[str, Entry] = checkpoint.entries
        self.floats = {name: e for name, e in self.reference.items() if e.dtype.floating}
        self._check_reference()
        ends = np.cumsum([0, *(entry.size for entry in self.floats.values())]).tolist()
        self.starts, self.d = dict(zip(self.floats, ends, strict=False)), ends[-1]
        self.checkpoints = [checkpoint if i == first else self._matching(i) for i in range(self.n)]
        dtypes = {entry.dtype.torch for entry in self.floats.values()}
        only = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
        wide = torch.float64 in dtypes
        self.dtype = torch.float64 if wide else only if only.itemsize > 1 else torch.float32

    def _max_header(self) -> int:
        """The most bytes that the headers of a checkpoint may have, which limits memory and time.

        It depends on the base, or on the median of all checkpoints, not on one contributor.
        """
        answers = (self._attempt(i, description_size) for i in range(self.n))
        sizes = [size for size in answers if size is not None]
        usual = statistics.median_low(sizes or [0]) if self.base is None else self.base.header_bytes
        return min(HEADER_FACTOR * usual + HEADER_MARGIN, MAX_HEADER)

    def _attempt(self, row: int, read: Callable[[Path], T]) -> T | None:
        """Read something of a checkpoint; None, and a reason in `unreadable`, if that fails."""
        if row in self.unreadable:
            return None
        try:
            return read(self.paths[row])
        except UnreadableError as error:
            self.unreadable[row] = str(error)
            return None

    def _read(self, path: Path) -> Checkpoint:
        return Checkpoint(path, self.max_header, self.identities)

    def _find_reference(self) -> tuple[int, Checkpoint]:
        """The checkpoint whose entries all must have, and its row, which is -1 for the base.

        Only a digest of each other checkpoint is stored, so that none takes much memory.
        """
        if self.base is not None:
            return -1, self.base
        rows = range(self.n)
        signatures = [self._attempt(i, lambda path: self._read(path).signature) for i in rows]
        counts = Counter(signature for signature in signatures if signature)
        for row, signature in enumerate(signatures):
            if signature and counts[signature] == max(counts.values()):
                checkpoint = self._attempt(row, self._read)
                if checkpoint and checkpoint.signature == signature:  # not changed meanwhile
                    return row, checkpoint
        reasons = ", ".join(f"{self.row_name(i)} {why}" for i, why in self.unreadable.items())
        raise ByzantiumError(f"no checkpoint can be read: {reasons}")

    def _matching(self, row: int) -> Checkpoint | None:
        """The checkpoint of a row; None if it cannot be read, or differs from the reference."""
        checkpoint = self._attempt(row, self._read)
        if checkpoint is None:
            return None
        if reason := checkpoint.difference(self.reference):
            self.unreadable[row] = reason
            return None
        checkpoint.share(self.reference)
        return checkpoint

    def _check_reference(self) -> None:
        if not self.floats:
            raise ArgumentTypeError("checkpoints must hold floating-point numbers, got none")
        factors = [name for name in self.floats if LORA.search(name)]
        if factors and not self.force:
            raise ByzantiumError(
                f"{quote(factors[0])} is a factor of a low-rank update (LoRA), and the product of "
                "aggregated factors is not the aggregate of the products, which is what counts: "
                "name the folders of the adapters, with their adapter_config.json, or merge each "
                "update into its model first, or aggregate the factors all the same with force"
            )

    def relative_to(self, base: Any) -> Source:
        """The same checkpoints, relative to a base."""
        if not isinstance(base, str | os.PathLike):
            raise ArgumentTypeError(f"the base of files is a file, got {type_name(base)}")
        relative = Files(self.paths, base, self.force)
        relative.watch = self.watch
        return relative

    def open_root(self, root: str | os.PathLike[str]) -> None:
        """Open the root: a checkpoint that the user trusts, with the entries of all others.

        Its header may be as large as that of the base; it is never an output.
        """
        self.root = open_trusted("the root", Path(root), self.identities)
        if reason := self.root.difference(self.reference):
            raise ByzantiumError(f"the root {root} {reason}")

    def trusted(self, name: str, vector: Any) -> Tensor:
        """The numbers of the root, (d,), minus the base."""
        if not isinstance(vector, str | os.PathLike):
            raise ArgumentTypeError(f"{name} of files is a file, got {type_name(vector)}")
        if self.root is None or self.root.path != Path(vector):
            self.open_root(vector)
        return self.root_columns(name, slice(0, self.d))

    def root_columns(self, name: str, part: slice) -> Tensor:
        """Some columns of the root, minus the base."""
        assert self.root is not None
        size, extents = part.stop - part.start, self._extents_of(self.root)
        whole = torch.empty(size, dtype=self.compute_dtype)
        for block in column_blocks(1, size, self.compute_dtype):
            columns = slice(part.start + block.start, part.start + block.stop)
            values, base = whole[block].numpy(), self.base_columns(columns)
            _copy_columns(extents, columns, values)
            if not np.isfinite(values).all():
                raise ByzantiumError(f"{name} holds numbers that are not finite")
            if base is not None:
                values -= base
        return whole

    def checkpoint(self, row: int) -> Checkpoint:
        """The checkpoint of a readable row."""
        checkpoint = self.checkpoints[row]
        assert checkpoint is not None
        return checkpoint

    @cached_property
    def _extents(self) -> dict[int, list[_Extent]]:
        """The extents of each readable row, and of the base at -1."""
        extents = {int(row): self._extents_of(self.checkpoint(row)) for row in self.readable}
        return extents if self.base is None else {-1: self._extents_of(self.base), **extents}

    def _extents_of(self, checkpoint: Checkpoint) -> list[_Extent]:
        extents: list[_Extent] = []
        for name, start in self.starts.items():
            entry = checkpoint.entries[name]
            last = extents[-1] if extents else None
            if (
                last
                and last.entry.file is entry.file
                and last.entry.dtype == entry.dtype
                and last.entry.offset + last.size * entry.dtype.stored.itemsize == entry.offset
            ):
                extents[-1] = _Extent(last.start, last.entry, last.size + entry.size)
            elif entry.size:
                extents.append(_Extent(start, entry, entry.size))
        return extents

    def base_columns(self, columns: slice) -> NDArray[Any] | None:
        """Some columns of the base."""
        if self.base is None:
            return None
        values = torch.empty(columns.stop - columns.start, dtype=self.compute_dtype).numpy()
        _copy_columns(self._extents[-1], columns, values)
        if not np.isfinite(values).all():
            raise ByzantiumError("the base holds numbers that are not finite")
        return values

    def block(self, columns: slice, rows: Rows) -> Tensor:
        block = torch.empty(len(rows), columns.stop - columns.start, dtype=self.compute_dtype)
        values, base = block.numpy(), self.base_columns(columns)

        def fill(k: int, _: int) -> None:
            _copy_columns(self._extents[int(rows[k])], columns, values[k])
            if base is not None:
                values[k] -= base

        # Threads of torch would spin for some milliseconds and compete with these.
        parallel_map(fill, [(k, k + 1) for k in range(len(rows))], torch.get_num_threads())
        return block

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, Tensor, Rows]]:
        for columns, matrix, which in super().pieces(rows):
            yield columns, matrix, which
            self.watch(columns.stop)

    def result(self, vector: Tensor, rows: Rows) -> Merged:
        return Merged(self, vector, rows)


class Merged(Mapping[str, Tensor]):
    """The aggregate of checkpoints: a state dict whose tensors are computed on access.

    `rule(Files(paths))` gives one; `Files` has an example. `save` writes it to a file, block by
    block.

    - `source`: the checkpoints.
    - `vector`: the aggregate of the floating-point entries, one after the other, (d,).
    - `rows`: the numbers of the checkpoints that were used.
    - `start`: the first column of the vector, if it has only some.
    """

    def __init__(self, source: Files, vector: Tensor, rows: Rows, start: int = 0) -> None:
        self.source, self.vector, self.rows, self.start = source, vector, rows, start

    def __len__(self) -> int:
        return len(self.source.reference)

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.reference)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.source.reference[name]
        whole = torch.empty(entry.size, dtype=entry.dtype.torch)
        done = 0
        for block in self.blocks(name, slice(0, entry.size)):
            whole[done : done + len(block)] = block
            done += len(block)
        return whole.reshape(entry.shape)

    def save(self, path: str | os.PathLike[str], metadata: Any = None) -> None:
        """Write it to a safetensors file: completely or not at all, and never over an input.

        - `path`: the file.
        - `metadata`: a value for JSON, written to its metadata under "byzantium".
        """
        path = Path(path)
        check_output(self.source.identities, path)
        layout = self.layout
        files.clear_abandoned(path)
        with files.writing(path) as file:
            file.write(encode_header(layout, json.dumps(metadata)))
            for name in layout:
                for block in self.blocks(name, slice(0, self.source.reference[name].size)):
                    file.write(block.view(torch.uint8).numpy().data)
            self.check_inputs()
            check_output(self.source.identities, path)

    @property
    def layout(self) -> Layout:
        """The dtype and shape of each array, in the order in which they are written."""
        reference = self.source.reference
        return aligned({name: (reference[name].dtype, reference[name].shape) for name in self})

    def check_inputs(self) -> None:
        """Raise an error if a file was changed since it was opened."""
        source = self.source
        for checkpoint in (source.base, source.root, *map(source.checkpoint, self.rows)):
            if checkpoint and (path := checkpoint.changed()):
                raise ByzantiumError(
                    f"{printable(path)} was changed while it was read; nothing is written"
                )

    def blocks(self, name: str, numbers: slice) -> Iterator[Tensor]:
        """Some of the numbers of an entry, a block at a time."""
        source, entry = self.source, self.source.reference[name]
        for block in column_blocks(len(self.rows), numbers.stop - numbers.start, torch.float64):
            part = slice(numbers.start + block.start, numbers.start + block.stop)
            if entry.dtype.floating:
                start = source.starts[name]
                columns = slice(start + part.start, start + part.stop)
                values = self.vector[columns.start - self.start : columns.stop - self.start]
                base = source.base_columns(columns)
                if base is not None:
                    values = values.double() + torch.from_numpy(base)
                yield values.to(entry.dtype.torch)
            else:
                entries = [source.checkpoint(row).entries[name] for row in self.rows]
                raw = [one.raw(part.start, part.stop) for one in entries]
                yield torch.from_numpy(middle([entry.dtype.values(one) for one in raw]))


def check_output(inputs: Collection[Identity], path: Path) -> None:
    """Raise an error unless a file can be written there, and it is no input."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ByzantiumError(f"{path} cannot be written: {folder} is no folder to write in")
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if path.is_dir():
        raise ByzantiumError(f"{path} is a folder; name a file to write")
    if not path.is_file():
        raise ByzantiumError(f"{path} is not a regular file, and is not replaced")
    if identity(status) in inputs:
        raise ByzantiumError(f"{path} is one of the files that are read, and is not overwritten")


def open_trusted(name: str, path: Path, identities: set[Identity]) -> Checkpoint:
    """A checkpoint that the user trusts; if it cannot be read, that is an error."""
    try:
        return Checkpoint(path, identities=identities)
    except UnreadableError as error:
        is_pickle = path.suffix.lower() in PICKLE_SUFFIXES
        error_class = ArgumentTypeError if is_pickle else ByzantiumError
        raise error_class(f"{name} {path} {error}") from error


def _copy_columns(extents: Sequence[_Extent], columns: slice, target: NDArray[Any]) -> None:
    """Copy some columns of a checkpoint, which is given by its extents, to a target."""
    at = max(bisect_right(extents, columns.start, key=lambda extent: extent.start) - 1, 0)
    for extent in extents[at:]:
        if extent.start >= columns.stop:
            break
        first = max(extent.start, columns.start)
        last = min(extent.start + extent.size, columns.stop)
        part = target[first - columns.start : last - columns.start]
        extent.entry.copy(first - extent.start, last - extent.start, part)


def names_of(paths: Sequence[Path]) -> list[str]:
    """The paths relative to the deepest folder that contains all files."""
    absolute = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in absolute])
    return [printable(os.path.relpath(path, folder)) for path in absolute]
