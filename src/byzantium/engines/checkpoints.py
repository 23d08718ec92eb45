"""Checkpoints of strangers: safetensors, and the shards that an index names.

Such a file is eight bytes, a header in JSON, and numbers one after the other. Nothing in it is
executed, and its header is believed only where it fits the real size of the file.
"""

from __future__ import annotations

import errno
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, KindError, files

# Of a header or an index; a hundred thousand arrays need less. What is read must fit in memory.
LARGEST_HEADER = 16 << 20
MOST_DIMENSIONS = 64
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
# The beginnings of archives of torch and of pickles themselves.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# Nothing that a contributor did.
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

Bytes = NDArray[np.uint8]


class UnreadableError(ByzantiumError):
    """A checkpoint that cannot be used; why, as the end of a sentence that begins with its name."""


@dataclass(frozen=True)
class Kind:
    """A kind of number: as the format calls it, as it lies in the file, as torch calls it."""

    name: str
    stored: np.dtype[Any]
    dtype: torch.dtype

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point

    def values(self, raw: Bytes) -> NDArray[Any]:
        """The numbers that some bytes are."""
        stored = np.frombuffer(raw, self.stored)
        if self.dtype == torch.bfloat16:
            return np.left_shift(stored, 16, dtype=np.uint32).view(np.float32)
        if self.name in _EIGHTS:
            return _EIGHTS[self.name][stored]
        return stored != 0 if self.dtype == torch.bool else stored


KINDS = {
    name: Kind(name, np.dtype(stored), dtype)
    for name, stored, dtype in (
        ("F64", "<f8", torch.float64),
        ("F32", "<f4", torch.float32),
        ("F16", "<f2", torch.float16),
        ("BF16", "<u2", torch.bfloat16),
        ("F8_E4M3", "u1", torch.float8_e4m3fn),
        ("F8_E5M2", "u1", torch.float8_e5m2),
        ("I64", "<i8", torch.int64),
        ("I32", "<i4", torch.int32),
        ("I16", "<i2", torch.int16),
        ("I8", "i1", torch.int8),
        ("U64", "<u8", torch.uint64),
        ("U32", "<u4", torch.uint32),
        ("U16", "<u2", torch.uint16),
        ("U8", "u1", torch.uint8),
        ("BOOL", "u1", torch.bool),
    )
}
# What each of the 256 numbers of eight bits is.
_EIGHTS = {
    name: torch.arange(256, dtype=torch.uint8).view(KINDS[name].dtype).float().numpy()
    for name in ("F8_E4M3", "F8_E5M2")
}


class Opened:
    """A file that stays open, and of which any part may be read.

    It is not mapped: the system ends a program that reads where a mapped file was cut off
    meanwhile, and whoever sent the file could do that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with files.reading(path) as file:
            self.stat = os.fstat(file.fileno())
            self.descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)

    def fill(self, target: NDArray[Any], offset: int) -> None:
        """Read as many bytes as the target has, which lie one after the other."""
        rest = target.view(np.uint8).data
        while rest:
            try:
                count = os.preadv(self.descriptor, [rest], offset)
            except OSError as error:
                raise type(error)(error.errno, error.strerror, str(self.path)) from error
            if not count:
                raise ByzantiumError(f"{self.path} was cut off while it was read")
            rest, offset = rest[count:], offset + count

    def read(self, offset: int, count: int) -> Bytes:
        raw = np.empty(count, np.uint8)
        self.fill(raw, offset)
        return raw


@dataclass(frozen=True)
class Entry:
    """A named array: its kind and shape, and where in which file it lies."""

    kind: Kind
    shape: tuple[int, ...]
    file: Opened
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size * self.kind.stored.itemsize

    def raw(self, first: int, last: int) -> Bytes:
        """The bytes of some of its numbers."""
        width = self.kind.stored.itemsize
        return self.file.read(self.offset + first * width, (last - first) * width)

    def copy(self, first: int, last: int, target: NDArray[Any]) -> None:
        """Some of its numbers, to where they are wanted."""
        if self.kind.stored == target.dtype:
            self.file.fill(target, self.offset + first * self.kind.stored.itemsize)
        else:
            target[:] = self.kind.values(self.raw(first, last))


class Checkpoint:
    """The named arrays of one checkpoint, of which the headers alone are read.

    path: a file, the index of a sharded checkpoint, or a folder with one of them.
    """

    def __init__(self, path: Path) -> None:
        self.entries: dict[str, Entry] = {}
        self.stats: dict[Path, os.stat_result] = {}
        try:
            if path.is_dir():
                path = path / INDEX if (path / INDEX).exists() else path / WHOLE
            if path.name.endswith(".json"):
                self._open_shards(path)
            else:
                self.entries = self._open(path)
        except OSError as error:
            if error.errno in OURS:
                raise
            raise UnreadableError(f"cannot be opened: {error.strerror}") from error

    @property
    def signature(self) -> frozenset[tuple[str, str, tuple[int, ...]]]:
        return frozenset((name, e.kind.name, e.shape) for name, e in self.entries.items())

    def differs_from(self, pattern: Mapping[str, Entry]) -> str:
        """In what, as the end of a sentence; empty where it does not."""
        for name in pattern:
            if name not in self.entries:
                return f"lacks the entry {shown(name)}"
        for name, entry in self.entries.items():
            if name not in pattern:
                return f"has an entry {shown(name)} that the others lack"
            right = pattern[name]
            if entry.shape != right.shape:
                return f"has the shape {entry.shape} instead of {right.shape} at {shown(name)}"
            if entry.kind != right.kind:
                kinds = f"{entry.kind.name} instead of {right.kind.name}"
                return f"has the dtype {kinds} at {shown(name)}"
        return ""

    def changed(self) -> Path | None:
        """A file of it that is no longer what it was when it was opened."""
        for path, before in self.stats.items():
            now = path.stat()
            same = os.path.samestat(now, before) and now.st_size == before.st_size
            if not same or now.st_mtime_ns != before.st_mtime_ns:
                return path
        return None

    def _open(self, path: Path) -> dict[str, Entry]:
        file = Opened(path)
        self.stats[path] = file.stat
        return read_header(file)

    def _open_shards(self, path: Path) -> None:
        with files.reading(path) as file:
            self.stats[path] = os.fstat(file.fileno())
            text = file.read(LARGEST_HEADER + 1)
        if len(text) > LARGEST_HEADER:
            raise UnreadableError(f"has an index of more than {LARGEST_HEADER} bytes")
        index = _parsed(text, "index")
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
            raise UnreadableError("has an index without a weight_map from names to files")
        for shard in dict.fromkeys(places.values()):
            if shard in ("", ".", "..") or set(shard) & set("/\\\0"):
                raise UnreadableError(f"has an index that leads out of its folder: {shown(shard)}")
            try:
                found = self._open(path.parent / shard)
            except UnreadableError as error:
                raise UnreadableError(f"has a shard {shown(shard)} that {error}") from error
            for name, entry in found.items():
                if places.get(name) != shard:
                    raise UnreadableError(
                        f"has {shown(name)} in the shard {shown(shard)}, but not in its index"
                    )
                self.entries[name] = entry
        for name, shard in places.items():
            if name not in self.entries:
                raise UnreadableError(f"lacks {shown(name)} in its shard {shown(shard)}")


def refuse_pickled(path: Path) -> None:
    """Raise a sentence that says what to do instead."""
    if path.suffix.lower() in PICKLED:
        raise KindError(
            f"{path} is a pickle by its name, and reading a pickle may execute what a stranger "
            "wrote; let its owner convert it, safetensors.torch.save_file(torch.load(path, "
            "weights_only=True), new_path), with pip install 'byzantium[files]'"
        )


def read_header(file: Opened) -> dict[str, Entry]:
    """The arrays of a file, in the order in which they lie there."""
    size = file.stat.st_size
    start = file.read(0, min(size, 8)).tobytes()
    if start.startswith(PICKLES):
        raise UnreadableError("is a pickle or an archive of torch, which is never read")
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise UnreadableError("is not safetensors, or is cut off in its header")
    if length > LARGEST_HEADER:
        raise UnreadableError(f"has a header of more than {LARGEST_HEADER} bytes")
    header = _parsed(file.read(8, length).tobytes(), "header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise UnreadableError("has metadata that are not texts")
    entries = {name: _entry(name, said, 8 + length, file) for name, said in header.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].offset, item[1].end)))
    end = 8 + length
    for name, entry in entries.items():
        if entry.offset != end:
            what = "overlaps" if entry.offset < end else "leaves a gap to"
            raise UnreadableError(f"has a header in which {shown(name)} {what} the entry before it")
        end = entry.end
    if end != size:
        raise UnreadableError(f"has {size} bytes where its header says {end}")
    return entries


def _entry(name: str, said: Any, start: int, file: Opened) -> Entry:
    size = file.stat.st_size
    wrong = UnreadableError(f"has a header with an impossible entry for {shown(name)}")
    if not isinstance(said, dict) or said.keys() != {"dtype", "shape", "data_offsets"}:
        raise wrong
    dtype, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(dtype, str) or not _counts(shape, size) or not _counts(offsets, size):
        raise wrong
    if len(offsets) != 2 or len(shape) > MOST_DIMENSIONS:
        raise wrong
    if dtype not in KINDS:
        raise UnreadableError(f"holds numbers of the kind {shown(dtype)} at {shown(name)}")
    kind, count = KINDS[dtype], 0 if 0 in shape else 1
    for dimension in shape:
        count *= dimension
        if count > size:  # before it is too large to compute with
            raise wrong
    if offsets[1] - offsets[0] != count * kind.stored.itemsize:
        raise wrong
    return Entry(kind, tuple(shape), file, start + offsets[0], count)


def _counts(values: Any, most: int) -> bool:
    """Whether these are whole numbers that a file of this size can have; 0 hides larger ones."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= max(most, 1 << 31) for value in values
    )


def _parsed(text: bytes, what: str) -> dict[str, Any]:
    """An object of JSON in which nothing is said twice."""
    try:
        decoded = text.decode()
        if not decoded.startswith("{"):
            raise UnreadableError(f"has no object of JSON as its {what}")
        value = json.loads(decoded, object_pairs_hook=_once, parse_constant=_constant)
        json.dumps(value, ensure_ascii=False).encode()  # no halves of characters
    except UnreadableError:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"has no JSON in UTF-8 as its {what}") from error
    assert isinstance(value, dict)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said = dict(pairs)
    if len(said) < len(pairs):
        raise UnreadableError("has a header or index in which a name occurs twice")
    return said


def _constant(name: str) -> None:
    raise ValueError(name)


def shown(name: str, most: int = 100) -> str:
    """A name that a stranger chose, as it can be printed."""
    return repr(name if len(name) <= most else f"{name[:most]}...")


def encode_header(entries: Mapping[str, tuple[Kind, tuple[int, ...]]], said: str) -> bytes:
    """The beginning of a file with these arrays one after the other.

    said: what the file tells of itself, as JSON.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "byzantium": said}}
    end = 0
    for name, (kind, shape) in entries.items():
        start, end = end, end + int(np.prod(shape, dtype=object)) * kind.stored.itemsize
        header[name] = {"dtype": kind.name, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
