"""The last changes of nodes on disk give what the same changes in memory give, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import members
import numpy as np
import pytest
import torch
from memory import LINUX, megabytes

import byzantium as bz
from byzantium.core import BusyError
from byzantium.engines.files.cache import NAME, ChangeCache, measure_changes
from byzantium.vectors import as_source

Arrays = dict[str, np.ndarray[Any, Any]]
HOSTILE_NAMES = ["../../escape", "a" * 5000, "", "\0", "\x1b[31m", "/etc/passwd", "ä\n", 2**64 - 1]


def model() -> Arrays:
    """Arrays of all kinds: of no dimension, empty, of other precision, whole numbers."""
    return {
        "weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "half": np.linspace(0, 1, 5, dtype=np.float16),
        "wide": np.linspace(0, 1, 3, dtype=">f8"),
        "batches": np.array(7, dtype=np.int64),
        "lora_A": np.array(1.5, dtype=np.float32),
        "nothing": np.zeros((0, 3), dtype=np.float32),
        "mask": np.array([True, False, True]),
        "bytes": np.array([[200, 3]], dtype=np.uint8),
        "__metadata__": np.ones((2, 2), dtype=np.float32, order="F"),
    }


def row(seed: int, before: Arrays, size: float = 0.1) -> Arrays:
    rng = np.random.default_rng(seed)

    def changed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.dtype.kind == "f":
            change = 0.5 + size * rng.standard_normal(array.shape)
            return np.asarray(array + change, dtype=array.dtype)
        if array.dtype.kind == "b":
            return np.asarray(rng.random(array.shape) < 0.5)
        return np.asarray(array + rng.integers(0, 9, array.shape), dtype=array.dtype)

    return {key: changed(array) for key, array in before.items()}


def equal(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        (one[key].dtype, one[key].shape) == (other[key].dtype, other[key].shape)
        and one[key].tobytes() == other[key].tobytes()
        for key in one
    )


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("member", members.EVERYTHING, ids=members.name)
def test_every_rule_gives_the_same_bits_as_with_rows_in_memory(
    tmp_path: Path, member: members.Rule, narrow: bool
) -> None:
    before = {key: a for key, a in model().items() if not narrow or a.dtype.itemsize < 8}
    rows = [row(k, before) for k in range(members.N)]
    cache = ChangeCache(tmp_path)
    for k, one in enumerate(rows):
        cache.put(k, 1, one, before)
    ours, theirs = member.fresh(), member.fresh()
    root = row(99, before)
    for seed in (0, 1):
        for rule, source in (
            (ours, cache.source(cache.nodes(1), before)),
            (theirs, as_source(rows, base=before, strict=False)),
        ):
            generator = torch.Generator().manual_seed(seed)
            report = rule.explain(source, generator, root=root)
            if rule is ours:
                mine = report
        assert equal(mine.aggregate, report.aggregate)
        assert torch.equal(mine.weights, report.weights)


def test_the_changes_are_those_to_the_model_that_a_node_was_sent(tmp_path: Path) -> None:
    """A node that was last heard three rounds ago changed another model."""
    cache = ChangeCache(tmp_path)
    models = [{"w": np.full(2, 10.0 * t, dtype=np.float32)} for t in range(4)]
    for node in range(3):
        cache.put(node, node, {"w": models[node]["w"] + np.float32(node)}, models[node])
    now = models[3]
    after = bz.Mean()(cache.source(cache.nodes(3), now))
    assert np.allclose(after["w"], 30.0 + 1.0)
    cache.put(0, 3, {"w": now["w"] + np.float32(4)}, now)
    after = bz.Median()(cache.source(cache.nodes(3), now))
    assert np.allclose(after["w"], 30.0 + 2.0)


def test_a_node_that_sent_what_cannot_be_used_counts_as_byzantine(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    for node in range(5):
        cache.put(node, 1, row(node, before), before)
    bad = row(5, before)
    bad["weight"][0, 0] = np.nan
    cache.put("NaN", 1, bad, before)
    cache.put_fault("empty", 1, "lacks everything")
    source = cache.source(cache.nodes(4), before)
    report = bz.Krum(f=2).explain(source)
    assert report.reasons == {5: "not finite, or of norm above 1e+150", 6: "lacks everything"}
    assert source.row_name(6) == "empty"
    with pytest.raises(bz.TooManyRejected, match="2 are unusable"):
        bz.Krum(f=1)(source)
    cache.put("empty", 2, row(6, before), before)
    assert list(bz.Krum(f=2).explain(cache.source(cache.nodes(4), before)).reasons) == [5]


def test_a_change_that_is_too_old_is_absent(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path, age=3)
    cache.put("old", 1, row(0, before), before)
    cache.put_fault("older", 1, "lacks everything")
    cache.put("new", 3, row(1, before), before)
    assert cache.nodes(4) == ["old", "older", "new"]
    assert cache.nodes(5) == ["new"]
    assert cache.nodes(7) == []
    for age in (0, -1, 1.5, True):
        with pytest.raises(bz.ByzantiumError, match="age"):
            ChangeCache(tmp_path, age=age)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=lambda name: ascii(name)[:12])
def test_a_node_may_have_any_name(tmp_path: Path, name: str | int) -> None:
    before, cache = model(), ChangeCache(tmp_path / "cache")
    cache.put(name, 1, row(0, before), before)
    cache.put(str(name) + "2", 1, row(1, before), before)
    again = ChangeCache(tmp_path / "cache")
    again.load_state_dict(cache.state_dict())
    assert again.nodes(2) == [name, str(name) + "2"]
    found = bz.Mean()(again.source([name], before))
    assert np.allclose(found["weight"], row(0, before)["weight"])
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert all(NAME.fullmatch(path.name) for path in (tmp_path / "cache").iterdir())


def test_a_number_and_a_text_are_two_nodes(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    cache.put(7, 1, row(0, before), before)
    cache.put("7", 1, row(1, before), before)
    assert cache.nodes(1) == [7, "7"]
    for name, seed in ((7, 0), ("7", 1)):
        found = bz.Mean()(cache.source([name], before))
        assert np.allclose(found["weight"], row(seed, before)["weight"])


# -- a server that is killed -----------------------------------------------------------------------


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_stay_for_as_long_as_one_of_the_last_two_states_needs_them(tmp_path: Path) -> None:
    before, cache, states, kept = model(), ChangeCache(tmp_path), [], []
    (tmp_path / "notes.txt").write_text("not ours")
    for number in range(1, 6):
        for node in (0, number):
            cache.put(node, number, row(10 * number + node, before), before)
        states.append(cache.state_dict())
        cache.commit()
        kept.append(names(tmp_path))
        for state in states[-2:]:
            other = ChangeCache(tmp_path)
            other._last = {}
            assert len(json.loads(state["last"])) == len(_resumed(tmp_path, state))
    # Nodes 0 to 5, the file of node 0 in the round before, and what is not ours.
    assert [len(one) for one in kept] == [3, 5, 6, 7, 8]
    assert all("notes.txt" in one for one in kept)


def _resumed(folder: Path, state: dict[str, str]) -> list[Any]:
    """The nodes that a new server finds, without removing anything."""
    cache = ChangeCache(folder)
    cache.commit = lambda: None  # type: ignore[method-assign]
    cache.load_state_dict(state)
    return cache.nodes(9)


def test_a_killed_server_goes_on_with_the_files_of_its_checkpoint(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    for node in range(5):
        cache.put(node, 1, row(node, before), before)
    state, expected = cache.state_dict(), bz.Median()(cache.source(cache.nodes(1), before))
    cache.commit()
    cache.put(0, 2, row(50, before), before)  # of a round that is not in the checkpoint
    cache.put(9, 2, row(51, before), before)
    again = ChangeCache(tmp_path)
    again.load_state_dict(state)
    assert again.nodes(2) == [0, 1, 2, 3, 4]
    assert equal(bz.Median()(again.source(again.nodes(2), before)), expected)
    assert len(names(tmp_path)) == 5
    fresh = ChangeCache(tmp_path)
    fresh.load_state_dict({})
    assert fresh.nodes(1) == []
    assert not names(tmp_path)


def test_a_node_whose_file_is_gone_is_absent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    for node in range(3):
        cache.put(node, 1, row(node, before), before)
    cache.put_fault(3, 1, "lacks everything")
    next(tmp_path.iterdir()).unlink()
    again = ChangeCache(tmp_path)
    again.load_state_dict(cache.state_dict())
    assert len(again.nodes(1)) == 3
    assert 3 in again.nodes(1)
    assert "lacks the last changes of 1 of 4 nodes" in caplog.text


def test_a_file_that_was_cut_off_counts_as_byzantine(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    for node in range(3):
        cache.put(node, 1, row(node, before), before)
    path = sorted(tmp_path.iterdir())[0]
    path.write_bytes(path.read_bytes()[:-1])
    report = bz.TrimmedMean(f=1).explain(cache.source(cache.nodes(1), before))
    assert len(report.reasons) == 1


def test_a_cache_of_another_model_is_an_error_and_one_folder_has_one_server(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    cache.put(0, 1, row(0, before), before)
    with pytest.raises(bz.ByzantiumError, match="a cache is for one model"):
        cache.source([0], {"w": np.zeros(3, dtype=np.float32)})
    with cache.open(), pytest.raises(BusyError), ChangeCache(tmp_path).open():
        pass


# -- numbers ---------------------------------------------------------------------------------------


def test_distances_and_spread_are_those_of_a_slow_loop(tmp_path: Path) -> None:
    before, cache = model(), ChangeCache(tmp_path)
    rows = [row(k, before, size=0.3) for k in range(7)]
    for k, one in enumerate(rows):
        cache.put(k, 1, one, before)
    source = cache.source(cache.nodes(1), before)
    used = np.array([0, 2, 3, 6])
    X = np.array([source.block(slice(0, source.d), np.array([k]))[0].tolist() for k in used])
    aggregate = X[1] + 0.25
    distances, ratio = measure_changes(source, used, aggregate)
    expected = [sum((x - a) ** 2 for x, a in zip(one, aggregate, strict=True)) ** 0.5 for one in X]
    assert distances == pytest.approx(expected)
    mean = [sum(column) / 4 for column in X.T]
    spread = sum(sum((x - m) ** 2 for x, m in zip(one, mean, strict=True)) for one in X) / 4
    assert ratio == pytest.approx(spread / sum(m * m for m in mean))
    still = ChangeCache(tmp_path / "still")
    for k in range(3):
        still.put(k, 1, before, before)
    source = still.source([0, 1, 2], before)
    assert measure_changes(source, np.arange(3), np.zeros(source.d)) == ([0, 0, 0], None)


PEAK = """
import numpy as np
import byzantium as bz
from byzantium.engines.files.cache import ChangeCache
folder, rule = sys.argv[1:]
model = {"w": np.zeros((1000, 1000), dtype=np.float32)}
cache, rng = ChangeCache(folder), np.random.default_rng(0)

def put(k):
    cache.put(k, 1, {"w": rng.standard_normal((1000, 1000), dtype=np.float32)}, model)

rule = bz.parse_rule(rule, f=5)
put(0)
rule.explain(cache.source([0] * 25, model))  # compiles

def work():
    for k in range(40):
        put(k)
    rule.explain(cache.source(cache.nodes(1), model))

print(peak(work))
"""


@LINUX
def test_40_changes_of_4_megabytes_are_never_in_memory_together(tmp_path: Path) -> None:
    most, said = megabytes(PEAK, tmp_path, "Krum()")
    assert not said
    assert most < 80, most
