"""Vectors that are files: n checkpoints, of which blocks of columns are read where they lie."""

from __future__ import annotations

import json
import os
import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from byzantium.engines.files.open_files import UnreadableError, identity, named, shown
from byzantium.engines.files.safetensors import (
    LARGEST_HEADER,
    PICKLED,
    Checkpoint,
    Entry,
    Kind,
    encode_header,
    size_of_description,
)
from byzantium.vectors import Source
from byzantium.vectors.arrays import middle

Rows = NDArray[np.int64]
T = TypeVar("T")
# The factors of low-rank updates, as peft and others call them.
LORA = re.compile(r"(^|[._])lora_(embedding_)?(A|B|up|down)([._]|$)")
# How much larger the headers of a checkpoint may be than those of the base or of most: so many
# times, because shards and their index need more, and so many bytes, for metadata.
TIMES, MORE = 4, 1 << 20


@dataclass(frozen=True)
class _Run:
    """Columns that lie one after the other in one file, and are of one kind."""

    start: int
    entry: Entry
    size: int


class Files(Source):
    """Checkpoints in safetensors, as the input of a rule: `rule(Files(paths))` aggregates them.

    Nothing is loaded as a whole: blocks of columns are read from the files when they are needed.
    The result is a `Merged`. A checkpoint that cannot be read is rejected and counts as Byzantine;
    so is one whose names, shapes or dtypes differ from those of the base or, without a base, from
    those that most have. Entries of whole numbers and truth values become their median, rounded
    down.

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
        self.names = _names(self.paths)
        self.watch: Callable[[int], None] = lambda done: None
        self.unreadable: dict[int, str] = {}
        self.seen: set[tuple[int, int]] = set()
        for path in self.paths:
            with suppress(OSError, ValueError):
                self.seen.add(identity(path.stat()))
        self.base = None if base is None else _opened(Path(base), self.seen)
        self.most = self._largest_header()
        right, model = self._model()
        self.pattern: Mapping[str, Entry] = model.entries
        self.floats = {name: e for name, e in self.pattern.items() if e.kind.floating}
        self._check_pattern()
        ends = np.cumsum([0, *(entry.size for entry in self.floats.values())]).tolist()
        self.starts, self.d = dict(zip(self.floats, ends, strict=False)), ends[-1]
        self.checkpoints = [model if i == right else self._fitting(i) for i in range(self.n)]
        kinds = {entry.kind.dtype for entry in self.floats.values()}
        only = next(iter(kinds)) if len(kinds) == 1 else torch.float32
        wide = torch.float64 in kinds
        self.dtype = torch.float64 if wide else only if only.itemsize > 1 else torch.float32

    def _largest_header(self) -> int:
        """The most bytes of all headers of a checkpoint, which decide what it takes to read them.

        Not one contributor decides it, but the base, or the median of all.
        """
        found = (self._tried(i, size_of_description) for i in range(self.n))
        sizes = [size for size in found if size is not None]
        usual = statistics.median_low(sizes or [0]) if self.base is None else self.base.claimed
        return min(TIMES * usual + MORE, LARGEST_HEADER)

    def _tried(self, row: int, look: Callable[[Path], T]) -> T | None:
        """What is found in the checkpoint of a row; None, and why, where it cannot be read."""
        if row in self.unreadable:
            return None
        try:
            return look(self.paths[row])
        except UnreadableError as error:
            self.unreadable[row] = str(error)
            return None

    def _read(self, path: Path) -> Checkpoint:
        return Checkpoint(path, self.most, self.seen)

    def _signature(self, path: Path) -> bytes:
        return self._read(path).signature

    def _model(self) -> tuple[int, Checkpoint]:
        """A checkpoint whose entries are right, and its row; the base is at -1.

        Of each checkpoint only a digest is stored: one that is not right takes no memory.
        """
        if self.base is not None:
            return -1, self.base
        signatures = [self._tried(i, self._signature) for i in range(self.n)]
        counts = Counter(signature for signature in signatures if signature)
        for row, signature in enumerate(signatures):
            if signature and counts[signature] == max(counts.values()):
                checkpoint = self._tried(row, self._read)
                if checkpoint and checkpoint.signature == signature:  # not changed meanwhile
                    return row, checkpoint
        told = ", ".join(f"{self.row_name(i)} {why}" for i, why in self.unreadable.items())
        raise ByzantiumError(f"no checkpoint can be read: {told}")

    def _fitting(self, row: int) -> Checkpoint | None:
        """The checkpoint of a row; None where it cannot be read, or is not as the pattern is."""
        checkpoint = self._tried(row, self._read)
        if checkpoint is None:
            return None
        if reason := checkpoint.differs_from(self.pattern):
            self.unreadable[row] = reason
            return None
        checkpoint.share(self.pattern)
        return checkpoint

    def _check_pattern(self) -> None:
        if not self.floats:
            raise ArgumentTypeError("checkpoints must hold floating-point numbers, got none")
        factors = [name for name in self.floats if LORA.search(name)]
        if factors and not self.force:
            raise ByzantiumError(
                f"{shown(factors[0])} is a factor of a low-rank update (LoRA), and the product of "
                "aggregated factors is not the aggregate of the products, which is what counts: "
                "merge each update into its model first, or aggregate the factors all the same "
                "with force"
            )

    def relative_to(self, base: Any) -> Source:
        """The same checkpoints, relative to a base."""
        if not isinstance(base, str | os.PathLike):
            raise ArgumentTypeError(f"the base of files is a file, got {type_name(base)}")
        relative = Files(self.paths, base, self.force)
        relative.watch = self.watch
        return relative

    def checkpoint(self, row: int) -> Checkpoint:
        """The checkpoint of a row that can be read."""
        found = self.checkpoints[row]
        assert found is not None
        return found

    @cached_property
    def _runs(self) -> dict[int, list[_Run]]:
        """Of each readable row; of the base, at -1."""
        runs = {int(row): self._runs_of(self.checkpoint(row)) for row in self.readable}
        return runs if self.base is None else {-1: self._runs_of(self.base), **runs}

    def _runs_of(self, checkpoint: Checkpoint) -> list[_Run]:
        runs: list[_Run] = []
        for name, start in self.starts.items():
            entry = checkpoint.entries[name]
            last = runs[-1] if runs else None
            if (
                last
                and last.entry.file is entry.file
                and last.entry.kind == entry.kind
                and last.entry.offset + last.size * entry.kind.stored.itemsize == entry.offset
            ):
                runs[-1] = _Run(last.start, last.entry, last.size + entry.size)
            elif entry.size:
                runs.append(_Run(start, entry, entry.size))
        return runs

    def _copy(self, row: int, columns: slice, target: NDArray[Any]) -> None:
        runs = self._runs[row]
        at = max(bisect_right(runs, columns.start, key=lambda run: run.start) - 1, 0)
        for run in runs[at:]:
            if run.start >= columns.stop:
                break
            first, last = max(run.start, columns.start), min(run.start + run.size, columns.stop)
            wanted = target[first - columns.start : last - columns.start]
            run.entry.copy(first - run.start, last - run.start, wanted)

    def based(self, columns: slice) -> NDArray[Any] | None:
        """Some columns of the base."""
        if self.base is None:
            return None
        values = torch.empty(columns.stop - columns.start, dtype=self.compute_dtype).numpy()
        self._copy(-1, columns, values)
        if not np.isfinite(values).all():
            raise ByzantiumError("the base holds numbers that are not finite")
        return values

    def block(self, columns: slice, rows: Rows) -> Tensor:
        block = torch.empty(len(rows), columns.stop - columns.start, dtype=self.compute_dtype)
        values, based = block.numpy(), self.based(columns)

        def fill(k: int, _: int) -> None:
            self._copy(int(rows[k]), columns, values[k])
            if based is not None:
                values[k] -= based

        # Threads of torch would go on spinning and compete with ours for some milliseconds.
        parallel_map(fill, [(k, k + 1) for k in range(len(rows))], torch.get_num_threads())
        return block

    def pieces(self, rows: Rows) -> Iterator[tuple[slice, Tensor, Rows]]:
        for columns, matrix, which in super().pieces(rows):
            yield columns, matrix, which
            self.watch(columns.stop)

    def result(self, vector: Tensor, rows: Rows) -> Merged:
        return Merged(self, vector, rows)


class Merged(Mapping[str, Tensor]):
    """The aggregate of checkpoints: a state dict whose tensors are made when they are asked for.

    `rule(Files(paths))` gives one; `Files` has an example. `save` writes it to a file, block by
    block.

    - `source`: the checkpoints.
    - `vector`: the aggregate of the floating-point entries, one after the other, (d,).
    - `rows`: the numbers of the checkpoints that were used.
    """

    def __init__(self, source: Files, vector: Tensor, rows: Rows) -> None:
        self.source, self.vector, self.rows = source, vector, rows

    def __len__(self) -> int:
        return len(self.source.pattern)

    def __iter__(self) -> Iterator[str]:
        return iter(self.source.pattern)

    def __getitem__(self, name: str) -> Tensor:
        entry = self.source.pattern[name]
        whole = torch.empty(entry.size, dtype=entry.kind.dtype)
        done = 0
        for block in self._blocks(name):
            whole[done : done + len(block)] = block
            done += len(block)
        return whole.reshape(entry.shape)

    def save(self, path: str | os.PathLike[str], said: Any = None) -> None:
        """Write it to a file in safetensors: whole or not at all, and never over what was read.

        - `path`: the file.
        - `said`: what to note in its metadata, under "byzantium".
        """
        path = Path(path)
        check_output(self.source, path)
        # The widest numbers first, as others write it, so that all are aligned.
        names = sorted(self, key=lambda name: (-self._kind(name).stored.itemsize, name))
        entries = {name: (self._kind(name), self.source.pattern[name].shape) for name in names}
        files.clear_abandoned(path)
        with files.writing(path) as file:
            file.write(encode_header(entries, json.dumps(said)))
            for name in names:
                for block in self._blocks(name):
                    file.write(block.view(torch.uint8).numpy().data)
            self.check_inputs()
            check_output(self.source, path)

    def check_inputs(self) -> None:
        """Raise an error if a file was changed since it was opened."""
        for checkpoint in (self.source.base, *map(self.source.checkpoint, self.rows)):
            if checkpoint and (path := checkpoint.changed()):
                raise ByzantiumError(
                    f"{named(path)} was changed while it was read; nothing is written"
                )

    def _kind(self, name: str) -> Kind:
        return self.source.pattern[name].kind

    def _blocks(self, name: str) -> Iterator[Tensor]:
        """The numbers of an entry, a block at a time."""
        source, entry = self.source, self.source.pattern[name]
        for part in column_blocks(len(self.rows), entry.size, torch.float64):
            if entry.kind.floating:
                start = source.starts[name]
                columns = slice(start + part.start, start + part.stop)
                values, based = self.vector[columns], source.based(columns)
                if based is not None:
                    values = values.double() + torch.from_numpy(based)
                yield values.to(entry.kind.dtype)
            else:
                found = [source.checkpoint(row).entries[name] for row in self.rows]
                raw = [one.raw(part.start, part.stop) for one in found]
                yield torch.from_numpy(middle([entry.kind.values(one) for one in raw]))


def check_output(source: Files, path: Path) -> None:
    """Raise an error unless a file may be written there, and is none of those that are read."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ByzantiumError(f"{path} cannot be written: {folder} is no folder to write in")
    try:
        there = path.stat()
    except FileNotFoundError:
        return
    if path.is_dir():
        raise ByzantiumError(f"{path} is a folder; name a file to write")
    if not path.is_file():
        raise ByzantiumError(f"{path} is not a regular file, and is not replaced")
    if identity(there) in source.seen:
        raise ByzantiumError(f"{path} is one of the files that are read, and is not overwritten")


def _opened(base: Path, seen: set[tuple[int, int]]) -> Checkpoint:
    try:
        return Checkpoint(base, seen=seen)
    except UnreadableError as error:
        kind = ArgumentTypeError if base.suffix.lower() in PICKLED else ByzantiumError
        raise kind(f"the base {base} {error}") from error


def _names(paths: Sequence[Path]) -> list[str]:
    """What tells them apart: without the folder that all are in."""
    whole = [os.path.abspath(path) for path in paths]
    folder = os.path.commonpath([os.path.dirname(path) for path in whole])
    names = [os.path.relpath(path, folder) for path in whole]
    return [named(name) for name in names]
