"""Networks sort; kernels survive threads, forks, and folders that cannot be written."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import inputs
import pytest
import torch

import byzantium as bz
from byzantium.aggregation import kernels
from byzantium.aggregation.network import network

WIDE = 30_001  # columns that are worth several threads


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_aggregates_too() -> None:
    X = inputs.gaussian(25, WIDE).float()
    rules = (bz.Median(), bz.Bucketing(s=5) >> bz.Median(), bz.Krum(f=5), bz.CenteredClipping(1.0))
    expected = [rule(X, torch.Generator().manual_seed(1)) for rule in rules]
    rules[-1].reset()
    child = os.fork()
    if child == 0:
        ours = [rule(X, torch.Generator().manual_seed(1)) for rule in rules]
        same = all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


ONCE = "import byzantium as bz, torch; print(bz.Median()(torch.tensor([[1.], [2.], [4.]])).item())"


def median_in_a_new_process(home: Path, cache: str) -> str:
    environment = {**os.environ, "HOME": str(home), "NUMBA_CACHE_DIR": cache}
    environment |= {"PYTHONPATH": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ONCE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_compiled_code_is_kept_on_disk_between_processes(tmp_path: Path) -> None:
    cache = tmp_path / "compiled"
    assert median_in_a_new_process(tmp_path, str(cache)) == "2.0"
    written = sorted((path.name, path.stat().st_mtime_ns) for path in cache.rglob("*.nb?"))
    assert written
    assert median_in_a_new_process(tmp_path, str(cache)) == "2.0"
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
    assert median_in_a_new_process(tmp_path, str(tmp_path / "cache" / "numba")) == "2.0"


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled code could not be written down, but it is there."""
    calls = []

    def kernel(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.njit", lambda function, **options: function)
    kernels._compiled(kernel)(1, 2)
    assert calls == [(1, 2), (1, 2)]
