"""Small files that would take much memory: refused by their size, before they are read."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from checkpoints import STATES, put, same, saved, simulation, trained
from memory import GIGA, LINUX, megabytes, sparse
from user_data import arrays

import byzantium as bz
from byzantium.core import files
from byzantium.data import Dataset, load, user_files
from byzantium.learning import checkpoint
from byzantium.learning.checkpoint import MAGIC, CheckpointError
from byzantium.runs import Mimicry, Store, load_plugin, perform, records, sweep

PACKAGE = Path(bz.__file__).parent


# -- reading ------------------------------------------------------------------------------------


def test_a_read_has_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert files.read(path, 5) == b"12345"
    sentence = "it has more than 4 bytes"
    with pytest.raises(OSError, match=sentence):
        files.read(path, 4)
    with pytest.raises(OSError, match=sentence):
        files.reading(path, 4)
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="more than"):
            files.read(sparse(path, 1 << 40), 1 << 20)
    assert len(os.listdir("/proc/self/fd")) == opened


def piped(content: bytes) -> Path:
    """A pipe with some bytes, at whose end nobody writes any more."""
    end, start = os.pipe()
    os.write(start, content)
    os.close(start)
    return Path(f"/dev/fd/{end}")


def test_a_pipe_and_a_file_of_the_system_have_one_too() -> None:
    """Neither says its size."""
    assert files.read(piped(b"text"), 4, pipe=True) == b"text"
    with pytest.raises(OSError, match="more than 3 bytes"):
        files.read(piped(b"text"), 3, pipe=True)
    with pytest.raises(OSError, match="more than 3 bytes"):
        files.read(Path("/proc/self/status"), 3)


def test_lines_are_whole_and_not_too_long(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\ntwo\ntor")
    assert list(files.read_lines(path, 100, 4)) == ["one", "", "two"]
    with pytest.raises(OSError, match="a line of more than 3 bytes"):
        list(files.read_lines(path, 100, 3))
    with pytest.raises(OSError, match="more than 11 bytes"):
        list(files.read_lines(path, 11, 4))


# What reads without a largest size, and why that is right.
UNBOUNDED = {
    "core/exports.py",  # of the package
    "core/files.py",  # where the size is checked
    "core/processor.py",  # of the system
    "_kernels/threads.py",  # of the system
    "data/datasets.py",  # of the package
    "papers/published.py",  # of the package
    "reports/report.py",  # of the package
}


def test_files_of_others_are_read_in_one_way() -> None:
    """A new place that reads files by itself is noticed here."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            call = ast.unparse(node.func)
            if call in ("open", "io.open", "np.load", "torch.load") or call.endswith(
                (".read_bytes", ".read_text")
            ):
                given = ast.unparse(node.args[0]) if node.args else ""
                if not given.startswith(("io.BytesIO(", "_archive(")):  # of bytes that were read
                    found.add(path.relative_to(PACKAGE).as_posix())
    assert found <= UNBOUNDED


# -- records ------------------------------------------------------------------------------------


LOOK = """
import byzantium as bz
from byzantium.core import is_locked
from byzantium.runs import Store
assert len(list(Store(sys.argv[2]))) == 1  # loads what is needed
store = Store(sys.argv[1])
def look():
    list(store)
    print(sorted(is_locked(folder) for folder in store.root.iterdir()))
print(peak(look))
"""


@LINUX
def test_sparse_records_take_no_memory(tmp_path: Path) -> None:
    """Each in a folder of its own, which is passed over by its name."""
    jobs = [Mimicry(rule="Median()", n=11, attackers=2, seed=seed) for seed in range(5)]
    store = Store(tmp_path / "bad")
    for job in jobs:
        perform(job, store.folder(job))
    perform(jobs[0], Store(tmp_path / "good").folder(jobs[0]))
    for job, name in zip(jobs, ("config.toml", "metrics.jsonl", "summary.json"), strict=False):
        sparse(store.folder(job) / name, GIGA)
    sparse(store.folder(jobs[3]) / ".working", GIGA)
    (store.folder(jobs[3]) / "summary.json").unlink()
    sparse(store.folder(jobs[3]) / "failed.json", GIGA)
    sparse(store.folder(jobs[4]) / "metrics.jsonl", 200 << 20)  # one line, not too large in all
    taken, said = megabytes(LOOK, store.root, tmp_path / "good")
    assert taken < 100, f"{taken} MB"
    for job in jobs:
        assert re.search(f"{store.folder(job)} is skipped: .*(more than|a line of)", said)
    assert "[False, False, False, False, False]" in said


def test_a_line_of_metrics_is_checked_before_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": "no number"}\n' + "no JSON\n")
    with pytest.raises(bz.ByzantiumError, match="line 1 has the round 'no number'"):
        records.metrics(path, 3, {})


@pytest.mark.parametrize("name", ["summary.json", "failed.json", "config.toml", "seconds"])
def test_a_record_that_is_nested_or_huge_is_one_sentence(name: str, tmp_path: Path) -> None:
    read: dict[str, Callable[[Path], Any]] = {
        "summary.json": lambda path: records.summary(path, "accuracy", {}),
        "failed.json": records.failure,
        "config.toml": records.configuration,
        "seconds": records.seconds,
    }
    path = tmp_path / name
    for content in (b"[" * 900_000, b"a = " + b"[" * 15_000, b'{"a":' * 100_000, bytes(2 << 20)):
        path.write_bytes(content)
        with pytest.raises(bz.ByzantiumError, match=f"{name} cannot be read: .+") as caught:
            read[name](path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000


def test_a_sweep_and_a_plugin_have_a_largest_size(tmp_path: Path) -> None:
    with pytest.raises(bz.ByzantiumError, match=r"mine.toml cannot be read: it has more than"):
        sweep.load(sparse(tmp_path / "mine.toml", 1 << 40))
    with pytest.raises(bz.ByzantiumError, match=r"mine.py cannot be read: it has more than"):
        load_plugin(sparse(tmp_path / "mine.py", 1 << 40))


# -- checkpoints --------------------------------------------------------------------------------


def compressed(content: bytes) -> bytes:
    """The same archive, with its entries deflated."""
    new = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in old.infolist():
            archive.writestr(entry.filename, old.read(entry))
    return new.getvalue()


def overlapping(content: bytes) -> bytes:
    """The same archive, in which one entry is listed a thousand times."""
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"x"  # so that the list is written anew
        largest = max(archive.filelist, key=lambda entry: entry.file_size)
        archive.filelist += [largest] * 1000
    return file.getvalue()


def older_format(state: Any) -> bytes:
    content = io.BytesIO()
    torch.save(state, content, _use_new_zipfile_serialization=False)
    return content.getvalue()


STATE = STATES[3]
LARGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "400 GB": (lambda path: sparse(path, 400 * GIGA, MAGIC), "cannot be read: it has more than"),
    "zeros": (lambda path: sparse(path, 9 << 20, MAGIC + b"0" * 65), "its checksum does not match"),
    "compressed": (lambda path: put(path, compressed(saved(STATE))), "it has compressed entries"),
    "overlapping": (lambda path: put(path, overlapping(saved(STATE))), "larger than the file"),
    "no archive": (lambda path: put(path, older_format(STATE)), "File is not a zip file"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_checkpoint_that_would_take_much_memory_is_passed_over(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the newest checkpoint and, in another folder, as the model of a finished run."""
    expected = simulation()
    list(expected)
    make, sentence = LARGE[name]
    for place, bad in (("a", "checkpoint-000000004.pt"), ("b", "model.pt")):
        folder = tmp_path / place
        checkpoint.save(folder, 3, STATES[2])
        make(folder / bad)
        with pytest.raises(CheckpointError, match=re.escape(sentence)):
            checkpoint.load(folder / bad)
        caplog.clear()
        assert same(trained(folder).result(), expected.result())
        assert sentence in caplog.text


LIMITED = """
import resource, sys; from pathlib import Path
from byzantium.learning import checkpoint
from byzantium.learning.checkpoint import MAGIC
lines = Path("/proc/self/status").read_text().splitlines()
size = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmSize:"))
resource.setrlimit(resource.RLIMIT_AS, (size + (200 << 20),) * 2)
print(checkpoint.newest(Path(sys.argv[1]))["number"])
"""


def test_a_checkpoint_for_which_there_is_no_memory_is_passed_over(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 3, {"number": 3})
    large = checkpoint.save(tmp_path, 4, {"number": 4, "zeros": torch.zeros(64 << 20)})
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "3\n", done.stderr
    assert f"{large} does not hold a state" in done.stderr


LOAD = """
from byzantium.learning import checkpoint
print(peak(lambda: checkpoint.load(Path(sys.argv[1]))))
"""


@LINUX
def test_a_compressed_checkpoint_is_never_expanded(tmp_path: Path) -> None:
    content = compressed(saved({"zeros": torch.zeros(100 << 18)}))
    assert len(content) < 1 << 20
    put(tmp_path / "checkpoint.pt", content)
    taken, said = megabytes(LOAD, tmp_path / "checkpoint.pt")
    assert "compressed entries" in said
    assert taken < 50, f"{taken} MB"


def test_a_whole_checkpoint_is_read_as_before(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 4, STATE)
    content = path.read_bytes()
    digest, rest = content[len(MAGIC) :][:64], content[len(MAGIC) + 65 :]
    assert hashlib.sha256(rest).hexdigest().encode() == digest
    assert same(checkpoint.load(path), torch.load(io.BytesIO(rest), weights_only=True))


# -- data sets ----------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("here")
def test_more_classes_than_samples_are_refused() -> None:
    y = np.arange(60) % 3
    y[7] = 5_000_000
    for changes in ({"y_train": y}, {"y_test": np.array([0] * 8 + [69])}):
        np.savez_compressed("my.npz", **arrays(**changes))
        with pytest.raises(
            bz.ByzantiumError,
            match=r"has a label (5000000|69), but only 69 samples: .* regression, .*floating-point",
        ):
            load("my.npz")
    pairs = [(torch.zeros(2), 0), (torch.zeros(2), 5_000_000)]
    with pytest.raises(bz.ByzantiumError, match="a label 5000000, but only 4 samples"):
        Dataset.of_torch("mine", pairs, pairs)
    np.savez("my.npz", **arrays(y_test=np.array([0] * 8 + [68])))
    assert load("my.npz").classes == 69
    assert Dataset.of_torch("mine", pairs[:1], pairs[:1], classes=10).classes == 10
    years = {"y_train": 1990.0 + np.arange(60), "y_test": 1990.0 + np.arange(9)}
    np.savez("my.npz", **arrays(**years))
    assert load("my.npz").classes == 0


@pytest.mark.usefixtures("here")
def test_a_billion_samples_of_no_numbers_are_refused() -> None:
    nothing: dict[str, Any] = {
        name: np.zeros((10**9, 0), dtype=np.float32)
        for name in ("x_train", "y_train", "x_test", "y_test")
    }
    np.savez("my.npz", **nothing)
    assert Path("my.npz").stat().st_size < 3000
    with pytest.raises(bz.ByzantiumError, match="at least one number in each sample and target"):
        load("my.npz")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", ["my.npz", "my.safetensors"])
def test_a_data_set_is_no_larger_than_the_memory(name: str) -> None:
    sparse(Path(name), 400 * GIGA)
    with pytest.raises(bz.ByzantiumError, match=f"{name} cannot be read: it has more than"):
        load(name)
    with pytest.raises(bz.ByzantiumError, match=f"{name} cannot be read: it has more than"):
        user_files.with_digest(name)


@pytest.mark.usefixtures("here")
def test_arrays_that_expand_beyond_the_memory_are_refused() -> None:
    np.savez_compressed("my.npz", **arrays())
    with zipfile.ZipFile("my.npz", "a") as archive:
        archive.comment = b"x"
        archive.getinfo("x_train.npy").file_size = 1 << 45
    with pytest.raises(bz.ByzantiumError, match=r"they have \d+ bytes, more than a quarter"):
        load("my.npz")


@pytest.mark.usefixtures("here")
def test_a_header_of_many_entries_is_refused() -> None:
    many = {f"{k}": np.zeros(0) for k in range(30_000)}
    safetensors.numpy.save_file(arrays() | many, "my.safetensors")
    with pytest.raises(bz.ByzantiumError, match="its header has more than 1048576 bytes"):
        load("my.safetensors")


@pytest.mark.usefixtures("here")
def test_a_shape_that_the_file_does_not_hold_takes_no_memory() -> None:
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f4", "fortran_order": False, "shape": (1 << 42, 3)}
    )
    np.savez("my.npz", **arrays(x_train=None))
    with zipfile.ZipFile("my.npz", "a") as archive:
        archive.writestr("x_train.npy", content.getvalue())
    with pytest.raises(bz.ByzantiumError, match=r"holds no arrays that can be read: .+"):
        load("my.npz")
