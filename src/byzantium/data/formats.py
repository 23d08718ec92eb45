"""The formats in which data sets are published: IDX, and that of CIFAR."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, cached_property

Pixels = NDArray[np.uint8]

CLASSES = 10
CIFAR_RECORD = 1 + 3 * 32 * 32  # the label, then the image: red, green, blue


@dataclass(frozen=True, eq=False)
class File:
    path: str  # or where else it came from: for the errors
    contents: bytes

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the contents."""
        return hashlib.sha256(self.contents).hexdigest()


class Samples(NamedTuple):
    images: Pixels  # (N, channels, height, width)
    labels: Pixels


def decode_idx(files: dict[str, File]) -> tuple[Samples, Samples]:
    train, test = (
        _samples(
            _idx(files[f"{split}-images-idx3-ubyte"], 3)[:, np.newaxis],
            _idx(files[f"{split}-labels-idx1-ubyte"], 1),
            files[f"{split}-labels-idx1-ubyte"].path,
        )
        for split in ("train", "t10k")
    )
    if train.images.shape[1:] != test.images.shape[1:]:
        raise ByzantiumError(
            f"{files['t10k-images-idx3-ubyte'].path} has images of {test.images.shape[2:]} pixels, "
            f"those to learn from have {train.images.shape[2:]}"
        )
    return train, test


def _idx(file: File, dimensions: int) -> Pixels:
    path, contents = file.path, file.contents
    if contents[:4] != bytes((0, 0, 8, dimensions)):
        raise ByzantiumError(f"{path} is no IDX file of bytes in {dimensions} dimension(s)")
    start = 4 + 4 * dimensions
    shape = np.frombuffer(contents[4:start].ljust(start - 4, b"\0"), dtype=">u4").tolist()
    if len(contents) != start + math.prod(shape):
        raise ByzantiumError(
            f"{path} is truncated or corrupt: it announces {start + math.prod(shape)} bytes and "
            f"has {len(contents)}"
        )
    return np.frombuffer(contents, dtype=np.uint8, offset=start).reshape(shape)


def decode_cifar(files: dict[str, File]) -> tuple[Samples, Samples]:
    batches = {name: _cifar(file) for name, file in files.items()}
    test = batches.pop("test_batch.bin")
    return Samples(*map(np.concatenate, zip(*batches.values(), strict=True))), test


def _cifar(file: File) -> Samples:
    path, contents = file.path, file.contents
    if len(contents) % CIFAR_RECORD:
        raise ByzantiumError(
            f"{path} is truncated or corrupt: {len(contents)} bytes are no multiple of "
            f"{CIFAR_RECORD}"
        )
    records = np.frombuffer(contents, dtype=np.uint8).reshape(-1, CIFAR_RECORD)
    return _samples(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0], path)


def _samples(images: Pixels, labels: Pixels, path: str) -> Samples:
    if len(images) != len(labels) or not len(images):
        raise ByzantiumError(f"{path} has {len(labels)} label(s) for {len(images)} image(s)")
    if not images.size:
        raise ByzantiumError(f"{path} has labels for images of {images.shape[2:]} pixels")
    if labels.max() >= CLASSES:
        raise ByzantiumError(
            f"{path} has the label {labels.max()}, where {CLASSES - 1} is the largest"
        )
    return Samples(images, labels)
