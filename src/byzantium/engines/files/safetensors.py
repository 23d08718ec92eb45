"""Checkpoints in safetensors files from contributors who need not be honest, also sharded ones.

A safetensors file is eight bytes, a header in JSON, and contiguous arrays. Nothing in it is
executed, and its header must agree with the real size of the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.engines.files.input_files import (
    Bytes,
    Identity,
    InputFile,
    UnreadableError,
    convert_errors,
    quote,
)

# Bytes of all headers of a checkpoint and its index; a hundred thousand arrays need less.
MAX_HEADER = 64 << 20
MAX_DIMENSIONS = 64
SINGLE_FILE = "model.safetensors"
PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
PICKLE_REASON = (
    "is a pickle by its name, and reading a pickle may execute code of its author; let its "
    "owner convert it, safetensors.torch.save_file(torch.load(path, weights_only=True), new_path), "
    "with pip install safetensors"
)
# The first bytes of archives of torch and of pickles.
PICKLE_PREFIXES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class Dtype:
    """A dtype: its name in safetensors, NumPy's dtype of the stored bytes, and that of torch."""

    name: str
    stored: np.dtype[Any]
    torch: torch.dtype

    @property
    def floating(self) -> bool:
        return self.torch.is_floating_point

    def values(self, raw: Bytes) -> NDArray[Any]:
        """The numbers in some bytes."""
        stored = np.frombuffer(raw, self.stored)
        if self.torch == torch.bfloat16:
            return np.left_shift(stored, 16, dtype=np.uint32).view(np.float32)
        if self.name in _EIGHT_BIT_VALUES:
            return _EIGHT_BIT_VALUES[self.name][stored]
        return stored != 0 if self.torch == torch.bool else stored


DTYPES = {
    name: Dtype(name, np.dtype(stored), dtype)
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
# The dtype and shape of each array of a file, by name.
Layout = Mapping[str, tuple[Dtype, tuple[int, ...]]]
# The value of each of the 256 bytes.
_EIGHT_BIT_VALUES = {
    name: torch.arange(256, dtype=torch.uint8).view(DTYPES[name].torch).float().numpy()
    for name in ("F8_E4M3", "F8_E5M2")
}


@dataclass(frozen=True, slots=True)
class Entry:
    """An array of a checkpoint: its dtype, shape and size, and its file and offset there."""

    dtype: Dtype
    shape: tuple[int, ...]
    file: InputFile
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size * self.dtype.stored.itemsize

    def raw(self, first: int, last: int) -> Bytes:
        """The bytes of some of its numbers."""
        width = self.dtype.stored.itemsize
        return self.file.read(self.offset + first * width, (last - first) * width)

    def copy(self, first: int, last: int, target: NDArray[Any]) -> None:
        """Copy some of its numbers to a target."""
        if self.dtype.stored == target.dtype:
            self.file.fill(target, self.offset + first * self.dtype.stored.itemsize)
        else:
            target[:] = self.dtype.values(self.raw(first, last))


class Checkpoint:
    """The arrays of one checkpoint, of which only the headers are read.

    - `path`: a file, the index of a sharded checkpoint, or a folder with one of them.
    - `single`: the name of the file in a folder without an index.
    - `max_header`: the most bytes that its headers and its index may have together.
    - `identities`: the identity of each file that is opened is added to this set.
    """

    def __init__(
        self,
        path: Path,
        max_header: int = MAX_HEADER,
        identities: set[Identity] | None = None,
        single: str = SINGLE_FILE,
    ) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self.files: list[InputFile] = []
        self.max_header, self.header_bytes = max_header, 0
        self.identities = set() if identities is None else identities
        with convert_errors():
            first, folder = first_file(path, single)
            file = self._open(first, folder)
            if is_index(first):
                self._read_shards(file)
            else:
                self.entries = self._read_header(file)

    @property
    def signature(self) -> bytes:
        """A digest of all names, shapes and dtypes."""
        digest = hashlib.sha256()
        for name, entry in sorted(self.entries.items()):
            digest.update(repr((name, entry.dtype.name, entry.shape)).encode())
        return digest.digest()

    def difference(self, reference: Mapping[str, Entry]) -> str:
        """The first difference from other entries, as a predicate; empty if there is none."""
        for name in reference:
            if name not in self.entries:
                return f"lacks the entry {quote(name)}"
        for name, entry in self.entries.items():
            if name not in reference:
                return f"has an entry {quote(name)} that the others lack"
            other = reference[name]
            if entry.shape != other.shape:
                return f"has the shape {entry.shape} instead of {other.shape} at {quote(name)}"
            if entry.dtype != other.dtype:
                dtypes = f"{entry.dtype.name} instead of {other.dtype.name}"
                return f"has the dtype {dtypes} at {quote(name)}"
        return ""

    def share(self, reference: Mapping[str, Entry]) -> None:
        """Share the names and shapes of equal entries, to save memory."""
        entries = self.entries
        self.entries = {
            name: Entry(e.dtype, e.shape, entries[name].file, entries[name].offset, e.size)
            for name, e in reference.items()
        }

    def changed(self) -> Path | None:
        """A file that was changed since it was opened; None if there is none."""
        return next((file.path for file in self.files if file.changed()), None)

    def _open(self, path: Path, folder: Path | None) -> InputFile:
        file = InputFile(path, folder)
        self.files.append(file)
        self.identities.add(file.identity)
        return file

    def _add_header_bytes(self, size: int, what: str) -> None:
        """Add to the bytes of headers; raise an error if they exceed the limit."""
        limit = self.max_header - self.header_bytes
        if size > limit:
            raise UnreadableError(f"has {what} of more than {limit} bytes")
        self.header_bytes += size

    def _read_shards(self, file: InputFile) -> None:
        self._add_header_bytes(file.size, "an index")
        index = parse_json(file.read(0, file.size).tobytes(), "index")
        shards = index.get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(v, str) for v in shards.values()):
            raise UnreadableError("has an index without a weight_map from names to files")
        folder = file.path.parent
        for shard in dict.fromkeys(shards.values()):
            if shard in ("", ".", "..") or set(shard) & set("/\\\0"):
                raise UnreadableError(f"has an index that leads out of its folder: {quote(shard)}")
            try:
                with convert_errors():
                    entries = self._read_header(self._open(folder / shard, folder))
            except UnreadableError as error:
                raise UnreadableError(f"has a shard {quote(shard)} that {error}") from error
            for name, entry in entries.items():
                if shards.get(name) != shard:
                    raise UnreadableError(
                        f"has {quote(name)} in the shard {quote(shard)}, but not in its index"
                    )
                self.entries[name] = entry
        for name, shard in shards.items():
            if name not in self.entries:
                raise UnreadableError(f"lacks {quote(name)} in its shard {quote(shard)}")

    def _read_header(self, file: InputFile) -> dict[str, Entry]:
        """The arrays of a file, in the order of their offsets."""
        length = header_size(file)
        self._add_header_bytes(length, "a header")
        header = parse_json(file.read(8, length).tobytes(), "header")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            raise UnreadableError("has metadata that are not texts")
        entries = {name: _entry(name, value, 8 + length, file) for name, value in header.items()}
        entries = dict(sorted(entries.items(), key=lambda item: (item[1].offset, item[1].end)))
        end = 8 + length
        for name, entry in entries.items():
            if entry.offset != end:
                what = "overlaps" if entry.offset < end else "leaves a gap to"
                raise UnreadableError(
                    f"has a header in which {quote(name)} {what} the entry before it"
                )
            end = entry.end
        if end != file.size:
            raise UnreadableError(f"has {file.size} bytes where its header says {end}")
        return entries


def first_file(path: Path, single: str = SINGLE_FILE) -> tuple[Path, Path | None]:
    """The file of a checkpoint that is read first, and the folder that links must not lead out of.

    For a file that the user named there is no such folder.
    """
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise UnreadableError(PICKLE_REASON)
    if path.is_dir():
        index = path / f"{single}.index.json"
        return index if index.exists() else path / single, path
    return path, None


def is_index(path: Path) -> bool:
    """Whether the name of a file is that of the index of a sharded checkpoint."""
    return path.name.endswith(".json")


def header_size(file: InputFile) -> int:
    """The size of the header of a file, from its first eight bytes."""
    start = file.read(0, min(file.size, 8)).tobytes()
    if start.startswith(PICKLE_PREFIXES):
        raise UnreadableError("is a pickle or an archive of torch, which is never read")
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > file.size - 8:
        raise UnreadableError("is not safetensors, or is cut off in its header")
    return length


def description_size(path: Path, single: str = SINGLE_FILE) -> int:
    """How many bytes describe the arrays of a checkpoint: those of its index, or of its header."""
    with convert_errors():
        first, folder = first_file(path, single)
        file = InputFile(first, folder)
        return file.size if is_index(first) else header_size(file)


def _entry(name: str, item: Any, start: int, file: InputFile) -> Entry:
    """An entry from its item in a header; `start` is where the arrays begin in the file."""
    size = file.size
    error = UnreadableError(f"has a header with an impossible entry for {quote(name)}")
    if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
        raise error
    code, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(code, str) or not _are_counts(shape, size) or not _are_counts(offsets, size):
        raise error
    if len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        raise error
    if code not in DTYPES:
        raise UnreadableError(f"holds numbers of the kind {quote(code)} at {quote(name)}")
    dtype, count = DTYPES[code], 0 if 0 in shape else 1
    for dimension in shape:
        count *= dimension
        if count > size:  # before it is too large to compute with
            raise error
    if offsets[1] - offsets[0] != count * dtype.stored.itemsize:
        raise error
    return Entry(dtype, tuple(shape), file, start + offsets[0], count)


def _are_counts(values: Any, size: int) -> bool:
    """Whether these are integers that a file of this size can have, up to 2^31 beside a 0."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value <= max(size, 1 << 31) for value in values
    )


def parse_json(text: bytes, what: str) -> dict[str, Any]:
    """An object of JSON in which every name occurs once."""
    try:
        decoded = text.decode()
        if not decoded.startswith("{"):
            raise UnreadableError(f"has no object of JSON as its {what}")
        value = json.loads(decoded, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()  # raises an error for lone surrogates
    except (UnreadableError, MemoryError):
        raise
    except Exception as error:
        raise UnreadableError(f"has no JSON in UTF-8 as its {what}") from error
    assert isinstance(value, dict)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise UnreadableError("has a header or index in which a name occurs twice")
    return values


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def encode_header(layout: Layout, metadata: str) -> bytes:
    """The first bytes of a file with contiguous arrays.

    - `layout`: the dtype and shape of each array, by name, in the order of the file.
    - `metadata`: the text under "byzantium" in its metadata.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "byzantium": metadata}}
    end = 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + math.prod(shape) * dtype.stored.itemsize
        header[name] = {"dtype": dtype.name, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def aligned(layout: Layout) -> Layout:
    """The same arrays with the widest numbers first, as other writers do it, and then by name."""
    return dict(sorted(layout.items(), key=lambda one: (-one[1][0].stored.itemsize, one[0])))
