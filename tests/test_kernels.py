"""Networks sort; kernels survive threads, and folders of compiled code in any state."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import inputs
import numba
import numpy as np
import pytest
import torch

import byzantium as bz
from byzantium.aggregation import kernels
from byzantium.aggregation.network import network

WIDE = 30_001  # columns that are worth several threads

pytestmark = pytest.mark.usefixtures("two_threads")


def outputs(n: int, first: int, last: int, in_order: bool, values: tuple[int, ...]) -> list[int]:
    """A network, run by hand."""
    net = network(n, first, last, in_order=in_order)
    spare = [-1] * net.places

    def read(place: int) -> int:
        return values[~place] if place < 0 else spare[place]

    for a, b, low, high in net.comparators.tolist():
        smaller, larger = sorted((read(a), read(b)))
        assert {a, b}.isdisjoint({low, high} - {-1}), "a comparator writes where it reads"
        if low >= 0:
            spare[low] = smaller
        if high >= 0:
            spare[high] = larger
    return [read(place) for place in net.chosen.tolist()]


@pytest.mark.parametrize("n", range(1, 11))
def test_networks_bring_out_the_wanted_ranks_of_all_zeros_and_ones(n: int) -> None:
    """The zero-one principle: a network that sorts these sorts everything."""
    for values in itertools.product((0, 1), repeat=n):
        assert outputs(n, 0, n, True, values) == sorted(values)
        for trim in range((n + 1) // 2):
            middle = sorted(values)[trim : n - trim]
            assert sorted(outputs(n, trim, n - trim, False, values)) == middle


def test_pruning_leaves_out_what_the_median_does_not_need() -> None:
    full, median = network(25, 0, 25, in_order=True), network(25, 12, 13, in_order=False)
    assert len(median.comparators) < 0.85 * len(full.comparators)
    assert len(network(25, 0, 25, in_order=False).comparators) == 0  # the mean needs no order


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_number_of_threads_does_not_change_the_result(threads: int) -> None:
    X = inputs.gaussian(25, WIDE).float()
    before = torch.get_num_threads()
    expected = [rule(X) for rule in (bz.Median(), bz.Krum(f=5))]
    try:
        torch.set_num_threads(threads)
        assert torch.equal(bz.Median()(X), expected[0])
        assert torch.equal(bz.Krum(f=5)(X), expected[1])
    finally:
        torch.set_num_threads(before)


def test_four_threads_may_aggregate_at_once() -> None:
    matrices = [inputs.gaussian(13, WIDE, seed=k).float() for k in range(4)]
    rules = (bz.Median(), bz.TrimmedMean(f=2), bz.MeaMed(f=2), bz.GeometricMedian())
    expected = [[rule(X) for rule in rules] for X in matrices]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            results = pool.map(lambda X: [rule(X) for rule in rules], matrices)
            for ours, theirs in zip(results, expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


ONCE = "import byzantium as bz, torch; print(bz.Median()(torch.tensor([[1.], [2.], [4.]])).item())"


def in_a_new_process(home: Path, cache: str, code: str = ONCE) -> str:
    environment = {**os.environ, "HOME": str(home), "NUMBA_CACHE_DIR": cache}
    sources = (
        f"{home}{os.pathsep}{Path(bz.__file__).parents[1]}"  # a package in the home comes first
    )
    environment |= {"PYTHONPATH": sources, "XDG_CACHE_HOME": str(home / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_code_is_kept_on_disk_between_processes(tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    assert in_a_new_process(tmp_path, str(cache)) == "2.0"
    written = sorted((path.name, path.stat().st_mtime_ns) for path in cache.rglob("*.nb?"))
    assert written
    assert in_a_new_process(tmp_path, str(cache)) == "2.0"
    assert written == sorted((path.name, path.stat().st_mtime_ns) for path in cache.rglob("*.nb?"))


def test_no_folder_to_keep_it_in_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where each folder would: root could write to a folder without permission."""
    package = tmp_path / "byzantium"
    source = Path(bz.__file__).parent
    for path in source.rglob("*.py"):
        target = package / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for folder in {path.parent for path in package.rglob("*.py")}:
        (folder / "__pycache__").write_text("in the way")
    (tmp_path / "cache").write_text("in the way")
    assert in_a_new_process(tmp_path, str(tmp_path / "cache" / "numba")) == "2.0"


NORM = """
import numpy as np
from byzantium.aggregation import kernels

total = np.zeros(1)
kernels.squared_norms(np.ones(3), np.zeros(1, np.int64), total, 0, 3)
print(total[0])
"""
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
"""


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    """The compiled code can be written down in part, but it is there."""
    pytest.importorskip("resource", reason="no limits on this system")
    cache = tmp_path / "compiled"
    assert in_a_new_process(tmp_path, str(cache), FULL + NORM) == "3.0"
    assert cache.exists()
    assert not list(cache.rglob("*.nb?*"))


def test_another_processor_has_compiled_code_of_its_own(tmp_path: Path) -> None:
    cache = str(tmp_path / "compiled")
    plain = 'import os; os.environ["NUMBA_CPU_NAME"] = "generic"\n'
    assert in_a_new_process(tmp_path, cache, plain + NORM) == "3.0"
    assert in_a_new_process(tmp_path, cache, NORM) == "3.0"
    assert len(list(Path(cache).rglob("*.nbi"))) == 1
    assert len(list(Path(cache).rglob("*.nbc"))) == 2


# -- damaged files -----------------------------------------------------------------------------


def test_a_new_process_replaces_what_is_damaged(tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    assert in_a_new_process(tmp_path, str(cache), NORM) == "3.0"
    sound = {path: path.stat().st_size for path in files(cache)}
    for path in sound:
        os.truncate(path, 100)
    assert in_a_new_process(tmp_path, str(cache), NORM) == "3.0"
    assert files(cache) == list(sound)
    assert all(path.stat().st_size > 100 for path in sound)


class Kernel:
    """A kernel of a process that has not compiled anything yet, with its files in some folder."""

    def __init__(self, folder: Path | str) -> None:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            self.kernel = kernels._compiled(kernels._squared_norms)
        finally:
            numba.config.CACHE_DIR = before

    def __call__(self, dtype: str = "float64") -> float:
        """1 + 4 + 4."""
        total = np.zeros(1)
        self.kernel(np.array([1, 2, 2], dtype), np.zeros(1, np.int64), total, 0, 3)
        return float(total[0])

    @property
    def loaded(self) -> bool:
        """Whether what was called was not compiled."""
        hits: int = sum(self.kernel.stats.cache_hits.values())  # type: ignore[attr-defined]
        return hits > 0


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.nb?"))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    kernel = Kernel(tmp_path)
    assert kernel() == 9
    assert not kernel.loaded
    assert [path.suffix for path in files(tmp_path)] == [".nbc", ".nbi"]
    return tmp_path


def in_the_way(path: Path) -> None:
    path.unlink()
    path.mkdir()


def unreadable(path: Path) -> None:
    """A link to itself: root may read whatever can be read at all."""
    path.unlink()
    path.symlink_to(path.name)


def flipped(path: Path, bit: int = 1000) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut off by a byte": lambda path: os.truncate(path, path.stat().st_size - 1),
    "too long": lambda path: path.write_bytes(path.read_bytes() + b"."),
    "a bit flipped": flipped,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "text": lambda path: path.write_text("nothing to see here"),
    "unreadable": unreadable,
}


@pytest.mark.parametrize("which", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_of_compiled_code_is_replaced(
    filled: Path, damage: str, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    (path,) = filled.rglob(f"*{which}")
    DAMAGES[damage](path)
    kernel = Kernel(filled)
    assert kernel() == 9
    assert not kernel.loaded
    assert bool(caplog.messages) == (damage != "gone")
    kernel = Kernel(filled)
    assert kernel() == 9
    assert kernel.loaded, "it was not replaced"


@pytest.mark.parametrize("which", [".nbi", ".nbc"])
def test_a_damaged_file_that_cannot_be_replaced_is_no_error(filled: Path, which: str) -> None:
    (path,) = filled.rglob(f"*{which}")
    in_the_way(path)
    kernel = Kernel(filled)
    assert [kernel(), kernel()] == [9, 9]
    assert path.is_dir()


def test_no_flipped_bit_goes_unnoticed(filled: Path) -> None:
    kept = Kernel(filled).kernel._cache._cache_file  # type: ignore[attr-defined]
    (key,) = kept._load_index()
    assert kept.load(key) is not None
    random = np.random.default_rng(0)
    for path in files(filled):
        sound = path.read_bytes()
        for bit in random.integers(8 * len(sound), size=300):
            flipped(path, int(bit))
            assert kept.load(key) is None, (path.name, bit)
            path.write_bytes(sound)
    assert kept.load(key) is not None


def test_code_that_was_compiled_for_other_types_is_not_run(tmp_path: Path) -> None:
    """Two processes that save at once may both choose the first name there is."""
    for dtype in ("float32", "float64"):
        assert Kernel(tmp_path / dtype)(dtype) == 9
    theirs, ours = (files(tmp_path / dtype)[0] for dtype in ("float32", "float64"))
    assert theirs.name == ours.name
    ours.write_bytes(theirs.read_bytes())
    kernel = Kernel(tmp_path / "float64")
    assert kernel("float64") == 9
    assert not kernel.loaded


@pytest.mark.parametrize(
    "folder", ["/dev/null/nowhere", "n" * 5000, "/proc/nowhere", "\0", "\udcff", "~", " "]
)
def test_nonsense_for_a_folder_is_no_error(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Kernel(folder)() == 9
