"""Data sets in files of your own: x_train, y_train, x_test and y_test in .npz or .safetensors."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, files, import_optional, one_line
from byzantium.data.dataset import Dataset, count_classes

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
USERS = "user_train"
# Bytes of the header of a file in safetensors; five arrays need less.
LARGEST_HEADER = 1 << 20
# How a file is written down where its path does not matter: its name, and a digest of its contents.
RECORDED = re.compile(r"(?P<name>[^/\\\0]+\.(npz|safetensors)) sha256:(?P<digest>[0-9a-f]{16})")
# Where the files that were written down in this process are.
_places: dict[str, str] = {}


def is_file(text: str) -> bool:
    """Whether a text names a file of data, by its path or as `with_digest` writes it."""
    return text.endswith((".npz", ".safetensors")) or RECORDED.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Whether a text names a file of data by its path."""
    return is_file(text) and RECORDED.fullmatch(text) is None


def with_digest(text: str) -> str:
    """The name of a file and a digest of its contents, which stand for its path in a run.

    A text that is written so already stays as it is.
    """
    if not is_path(text):
        return text
    path = Path(os.path.expanduser(text))
    digest = _digest_of(path)
    name = f"{path.name} sha256:{digest[:16]}"
    _places[name] = str(path.absolute())
    return name


def path_of(text: str) -> str | None:
    """The path of a file that `with_digest` named in this process; None if there is none."""
    return _places.get(text)


def remember_path(text: str, path: str) -> None:
    """Remember the path of a file that `with_digest` named; `read` checks its digest."""
    _places.setdefault(text, path)


def read(text: str) -> Dataset:
    """The data set in a file of your own, .npz or .safetensors.

    The file holds the arrays x_train, y_train, x_test and y_test, and user_train if it is known to
    whom each sample belongs. Pickled data are refused. Samples of uint8 are pixels: they are
    divided by 255, and (N, height, width) or (N, height, width, channels) becomes (N, channels,
    height, width). Whole numbers as targets are classes, of which there are at most as many as
    samples; other numbers mean regression.

    - `text`: the path of the file, or what `recorded` made of it.

    >>> import numpy as np, tempfile
    >>> x, y = np.zeros((6, 28, 28), dtype=np.uint8), np.array([0, 1, 2, 0, 1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    ...     print(read(f"{folder}/mine.npz"))
    <mine: 6 samples to learn from and 6 to test with, 1 x 28 x 28, 3 classes>
    """
    path = _found(text) if RECORDED.fullmatch(text) else Path(os.path.expanduser(text))
    try:
        contents = files.read(path, files.quarter_of_memory())
    except OSError as error:
        raise ByzantiumError(f"{path} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(contents).hexdigest()
    if (match := RECORDED.fullmatch(text)) and match["digest"] != digest[:16]:
        raise ByzantiumError(
            f"{path} has changed: its contents were sha256:{match['digest']}... and are "
            f"sha256:{digest[:16]}..."
        )
    return _dataset(path, _arrays(path, contents), {path.name: f"sha256:{digest}"})


def _found(text: str) -> Path:
    match = RECORDED.fullmatch(text)
    assert match is not None
    folder = os.environ.get("BYZANTIUM_DATA")
    places = [_places.get(text), match["name"], folder and os.path.join(folder, match["name"])]
    for one in filter(None, places):
        if Path(one).is_file():
            return Path(one)
    raise ByzantiumError(f"the data of this run, {text}, were not found; say where: --data PATH")


def _digest_of(path: Path) -> str:
    try:
        status = path.stat()
        if not path.is_file():
            raise ByzantiumError(f"{path} is not a file of data")
        return _digested(str(path.absolute()), status.st_mtime_ns, status.st_size, status.st_ino)
    except OSError as error:
        raise ByzantiumError(f"{path} cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=64)
def _digested(path: str, *status: int) -> str:
    """Many runs of a sweep have the same data: they are read once."""
    with files.reading(Path(path), files.quarter_of_memory()) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _arrays(path: Path, contents: bytes) -> dict[str, NDArray[Any]]:
    names = (*ARRAYS, USERS)
    try:
        if path.suffix == ".safetensors":
            library = import_optional("safetensors.numpy", "files", f"{path.name}")
            if int.from_bytes(contents[:8], "little") > LARGEST_HEADER:
                raise ValueError(f"its header has more than {LARGEST_HEADER} bytes")
            arrays = library.load(contents)
            return {name: arrays[name] for name in names if name in arrays}
        if not zipfile.is_zipfile(io.BytesIO(contents)):
            raise ValueError("it is no .npz file, an archive that numpy.savez writes")
        with np.load(io.BytesIO(contents), allow_pickle=False) as file:
            assert isinstance(file, np.lib.npyio.NpzFile)
            assert file.zip is not None
            size = sum(one.file_size for one in file.zip.infolist())
            if size > files.quarter_of_memory():
                raise ValueError(f"they have {size} bytes, more than a quarter of the memory")
            return {name: file[name] for name in names if name in file.files}
    except ImportError:
        raise
    except Exception as error:  # zipfile, zlib, NumPy and safetensors each have their own types
        why = one_line(str(error)) or type(error).__name__
        raise ByzantiumError(f"{path} holds no arrays that can be read: {why}") from error


def _dataset(path: Path, arrays: Mapping[str, NDArray[Any]], digests: Mapping[str, str]) -> Dataset:
    if missing := [name for name in ARRAYS if name not in arrays]:
        raise ByzantiumError(f"{path} lacks the array {missing[0]}; it needs {', '.join(ARRAYS)}")
    x = [_samples(path, name, arrays[name]) for name in ("x_train", "x_test")]
    y = [_targets(path, name, arrays[name]) for name in ("y_train", "y_test")]
    if y[0].dtype != y[1].dtype:
        raise ByzantiumError(
            f"{path}: y_train and y_test must both hold classes or both hold numbers"
        )
    classes = count_classes(str(path), *y)
    users = _targets(path, USERS, arrays[USERS]) if USERS in arrays else None
    return Dataset(path.stem, x[0], y[0], x[1], y[1], classes, digests, users)


def _samples(path: Path, name: str, array: NDArray[Any]) -> torch.Tensor:
    if array.ndim < 2 or not (
        np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
    ):
        raise ByzantiumError(
            f"{path}: {name} must hold numbers of shape (N, ...), got {array.dtype} of shape "
            f"{array.shape}"
        )
    samples = torch.from_numpy(array.astype(np.float32))
    if array.dtype != np.uint8:
        return samples
    if samples.ndim == 3:
        samples = samples[:, None]
    elif samples.ndim == 4 and samples.shape[1] not in (1, 3, 4) and samples.shape[3] in (1, 3, 4):
        samples = samples.movedim(3, 1).contiguous()
    return samples / 255


def _targets(path: Path, name: str, array: NDArray[Any]) -> torch.Tensor:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if np.issubdtype(array.dtype, np.integer) and array.ndim == 1:
        return torch.from_numpy(array.astype(np.int64))
    if np.issubdtype(array.dtype, np.floating) and array.ndim in (1, 2) and name != USERS:
        return torch.from_numpy(array.astype(np.float32))
    raise ByzantiumError(
        f"{path}: {name} must hold a number for each sample, got {array.dtype} of shape "
        f"{array.shape}"
    )
