"""Checkpoints of strangers: safetensors, and the shards that an index names.

Such a file is eight bytes, a header in JSON, and numbers one after the other. Nothing in it is
executed, and its header is believed only where it fits the real size of the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.engines.files.open_files import Bytes, Opened, UnreadableError, rejecting, shown

# Bytes of all headers of a checkpoint and its index; a hundred thousand arrays need less.
LARGEST_HEADER = 64 << 20
MOST_DIMENSIONS = 64
INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
PICKLE = (
    "is a pickle by its name, and reading a pickle may execute what a stranger wrote; let its "
    "owner convert it, safetensors.torch.save_file(torch.load(path, weights_only=True), new_path), "
    "with pip install 'byzantium[files]'"
)
# The beginnings of archives of torch and of pickles themselves.
PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


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


@dataclass(frozen=True, slots=True)
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

    - `path`: a file, the index of a sharded checkpoint, or a folder with one of them.
    - `most`: the most bytes that its headers and its index may have together.
    - `seen`: to which what tells each file that is opened from all others is added.
    """

    def __init__(
        self, path: Path, most: int = LARGEST_HEADER, seen: set[tuple[int, int]] | None = None
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.files: list[Opened] = []
        self.most, self.claimed = most, 0
        self.seen = set() if seen is None else seen
        with rejecting():
            first, folder = first_file(path)
            file = self._opened(first, folder)
            if is_index(first):
                self._read_shards(file)
            else:
                self.entries = self._read_header(file)

    @property
    def signature(self) -> bytes:
        """A digest of all names, shapes and dtypes."""
        digest = hashlib.sha256()
        for name, entry in sorted(self.entries.items()):
            digest.update(repr((name, entry.kind.name, entry.shape)).encode())
        return digest.digest()

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

    def share(self, pattern: Mapping[str, Entry]) -> None:
        """Take the names and shapes from a pattern that it does not differ from, to hold less."""
        found = self.entries
        self.entries = {
            name: Entry(right.kind, right.shape, found[name].file, found[name].offset, right.size)
            for name, right in pattern.items()
        }

    def changed(self) -> Path | None:
        """A file of it that is no longer what it was when it was opened."""
        return next((file.path for file in self.files if file.changed()), None)

    def _opened(self, path: Path, folder: Path | None) -> Opened:
        file = Opened(path, folder)
        self.files.append(file)
        self.seen.add(file.identity)
        return file

    def _claim(self, size: int, what: str) -> None:
        """Raise an error where this is more than may still be read."""
        if size > self.most - self.claimed:
            raise UnreadableError(f"has {what} of more than {self.most - self.claimed} bytes")
        self.claimed += size

    def _read_shards(self, file: Opened) -> None:
        self._claim(file.size, "an index")
        index = _parsed(file.read(0, file.size).tobytes(), "index")
        places = index.get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
            raise UnreadableError("has an index without a weight_map from names to files")
        folder = file.path.parent
        for shard in dict.fromkeys(places.values()):
            if shard in ("", ".", "..") or set(shard) & set("/\\\0"):
                raise UnreadableError(f"has an index that leads out of its folder: {shown(shard)}")
            try:
                with rejecting():
                    found = self._read_header(self._opened(folder / shard, folder))
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

    def _read_header(self, file: Opened) -> dict[str, Entry]:
        """The arrays of a file, in the order in which they lie there."""
        length = header_size(file)
        self._claim(length, "a header")
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
                raise UnreadableError(
                    f"has a header in which {shown(name)} {what} the entry before it"
                )
            end = entry.end
        if end != file.size:
            raise UnreadableError(f"has {file.size} bytes where its header says {end}")
        return entries


def first_file(path: Path) -> tuple[Path, Path | None]:
    """Which file of a checkpoint is read first, and the folder that it must not lead out of.

    A file that the user named may lead anywhere.
    """
    if path.suffix.lower() in PICKLED:
        raise UnreadableError(PICKLE)
    if path.is_dir():
        return path / INDEX if (path / INDEX).exists() else path / WHOLE, path
    return path, None


def is_index(path: Path) -> bool:
    """Whether a file is by its name the index of a sharded checkpoint."""
    return path.name.endswith(".json")


def header_size(file: Opened) -> int:
    """The size of the header of a file, as its first bytes say."""
    start = file.read(0, min(file.size, 8)).tobytes()
    if start.startswith(PICKLES):
        raise UnreadableError("is a pickle or an archive of torch, which is never read")
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > file.size - 8:
        raise UnreadableError("is not safetensors, or is cut off in its header")
    return length


def size_of_description(path: Path) -> int:
    """The bytes in which a checkpoint describes its arrays: in its index, or else in its header."""
    with rejecting():
        first, folder = first_file(path)
        file = Opened(first, folder)
        return file.size if is_index(first) else header_size(file)


def _entry(name: str, said: Any, start: int, file: Opened) -> Entry:
    size = file.size
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
    except (UnreadableError, MemoryError):
        raise
    except Exception as error:
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
