"""Small files in the IDX format, as MNIST's."""

from __future__ import annotations

import gzip
import struct
import tarfile
from pathlib import Path

import numpy as np

TRAIN, TEST = 7, 3  # samples
ROWS, COLUMNS = 4, 5
Files = dict[str, bytes]


def idx(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def idx_files(seed: int = 0) -> Files:
    rng = np.random.default_rng(seed)
    files = {}
    for split, n in (("train", TRAIN), ("t10k", TEST)):
        files[f"{split}-images-idx3-ubyte"] = idx(rng.integers(256, size=(n, ROWS, COLUMNS)))
        files[f"{split}-labels-idx1-ubyte"] = idx(rng.integers(10, size=n))
    return files


def write(folder: Path, files: Files, *, zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, contents in files.items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(contents) if zipped else contents)
    return folder


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    """The header of a file in an archive, which need not be true."""
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, link
    return member.tobuf(tarfile.GNU_FORMAT)
