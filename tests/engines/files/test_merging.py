"""Checkpoints of strangers: every rule merges them, and nobody among them can do harm by a file."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import inputs
import members
import numpy as np
import pytest
import safetensors
import torch
from agreement import agree, seeded
from click.testing import CliRunner, Result
from members import EVERYTHING, N
from paths import ROOT
from safetensors.torch import load_file, save_file
from safetensors_files import LINUX, cut, joined, saved, sharded, some

import byzantium as bz
from byzantium._kernels import torch_passes as plain
from byzantium.cli import main
from byzantium.core import files as core_files
from byzantium.engines.files import Files, merge
from byzantium.engines.files.input_files import UnreadableError
from byzantium.engines.files.safetensors import DTYPES, Checkpoint

pytestmark = pytest.mark.usefixtures("two_threads")  # which read the files


# -- the same vectors, in files -----------------------------------------------------------------


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_files_are_one_more_form_of_the_matrix(member: members.Rule, tmp_path: Path) -> None:
    for d in (7, 641):
        X = inputs.heterogeneous(N, d)
        source = Files(saved([cut(row) for row in X], tmp_path))
        expected = member.fresh().explain(X, seeded())
        report = member.fresh().explain(source, seeded())
        agree(member, joined(report.aggregate), expected.aggregate)
        agree(member, joined(member.fresh()(source, seeded())), member.fresh()(X, seeded()))
        # Columns are in the order of the file, so that sums are not to the bit.
        assert torch.allclose(report.weights, expected.weights, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("member", members.RULES, ids=members.name)
def test_every_dtype_comes_out_as_it_went_in(
    member: members.Rule, dtype: torch.dtype, tmp_path: Path
) -> None:
    X = inputs.heterogeneous(N, 301).to(dtype)
    result = member.fresh()(Files(saved([cut(row) for row in X], tmp_path)), seeded())
    assert all(array.dtype == dtype for array in result.values())
    agree(member, joined(result), member.fresh()(X, seeded()))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_eight_bits_are_what_torch_says_they_are(dtype: torch.dtype, tmp_path: Path) -> None:
    X = inputs.gaussian(9, 200).to(dtype)
    paths = saved([{"w": row} for row in X], tmp_path)
    median = bz.Median()(Files(paths))["w"]
    assert median.dtype == dtype
    assert torch.equal(median.float(), X.float().median(dim=0).values)


@pytest.mark.parametrize("name", DTYPES)
def test_all_numbers_of_sixteen_bits_or_less_are_read_right(name: str, tmp_path: Path) -> None:
    dtype = DTYPES[name]
    width = dtype.stored.itemsize
    raw = np.arange(1 << 16, dtype=np.uint16 if width > 1 else np.uint8).view(np.uint8)
    values = torch.from_numpy(raw)
    values = values != 0 if dtype.torch == torch.bool else values.view(dtype.torch)
    save_file({"x": values}, tmp_path / "x.safetensors")
    entry = Checkpoint(tmp_path / "x.safetensors").entries["x"]
    assert entry.dtype == dtype
    read = torch.from_numpy(np.array(dtype.values(entry.raw(0, entry.size))))
    expected = values.to(read.dtype)
    assert torch.equal(torch.nan_to_num(read.double()), torch.nan_to_num(expected.double()))


def test_dtypes_may_be_mixed_and_lie_anywhere(tmp_path: Path) -> None:
    """Behind an odd number of bytes nothing is aligned, which the format allows."""
    n, paths = 5, []
    for i in range(n):
        text = json.dumps(
            {
                "t": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]},
                "x": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
                "y": {"dtype": "F64", "shape": [], "data_offsets": [9, 17]},
                "b": {"dtype": "BF16", "shape": [1], "data_offsets": [17, 19]},
            }
        ).encode()
        data = bytes([i % 2]) + np.array([i, 2 * i], "<f4").tobytes()
        data += np.array(0.1 * i).tobytes() + bytes([0x80, 0x3F])
        paths.append(tmp_path / f"{i}.safetensors")
        paths[-1].write_bytes(len(text).to_bytes(8, "little") + text + data)
    merged = bz.Median()(Files(paths))
    assert merged["x"].tolist() == [2, 4]
    assert float(merged["y"]) == 0.2
    assert merged["b"].tolist() == [1]
    assert merged["t"].tolist() == [False]
    merged.save(tmp_path / "merged")
    assert load_file(tmp_path / "merged")["y"].dtype == torch.float64


def test_several_blocks_are_one_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = inputs.heterogeneous(N, 2003)
    paths = saved([cut(row) for row in X], tmp_path)
    expected = [member.fresh()(X, seeded()) for member in members.RULES]
    monkeypatch.setattr(plain, "BLOCK_BYTES", 1 << 12)
    for member, theirs in zip(members.RULES, expected, strict=True):
        merged = member.fresh()(Files(paths), seeded())
        assert torch.allclose(joined(merged), theirs, rtol=1e-12, atol=1e-12)


def test_counters_become_their_median_rounded_down(tmp_path: Path) -> None:
    states = [
        {"x": torch.zeros(2), "steps": torch.tensor([i, -i]), "on": torch.tensor(i > 0)}
        for i in (0, 3, 4, 10**9)
    ]
    merged = bz.Mean()(Files(saved(states, tmp_path)))
    assert merged["steps"].tolist() == [3, -4]
    assert bool(merged["on"])


def test_a_model_can_load_what_comes_out(tmp_path: Path) -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(5)]
    paths = saved([model.state_dict() for model in models], tmp_path)
    models[0].load_state_dict(bz.GeometricMedian()(Files(paths)))
    merge(bz.GeometricMedian(), paths, tmp_path / "merged.safetensors")
    models[1].load_state_dict(load_file(tmp_path / "merged.safetensors"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_base_is_subtracted_first_and_added_again(dtype: torch.dtype, tmp_path: Path) -> None:
    base, deltas = 100 * inputs.gaussian(1, 50)[0], inputs.gaussian(9, 50, seed=1)
    models, base = (base + deltas).to(dtype), base.to(dtype)
    paths = saved([cut(row) for row in models], tmp_path)
    save_file(cut(base), tmp_path / "base.safetensors")
    rule = bz.CenteredClipping(radius=2.0)
    expected = rule([cut(row) for row in models], base=cut(base))
    rule.reset()
    merged = rule(Files(paths), base=tmp_path / "base.safetensors")
    for name, tensor in expected.items():
        assert torch.equal(merged[name], tensor) or torch.allclose(merged[name], tensor, rtol=1e-12)


def test_the_base_says_what_is_right(tmp_path: Path) -> None:
    odd = [{"w": torch.ones(2)}] * 3
    right = [{"w": torch.ones(3) + i} for i in range(4)]
    paths = saved([*odd, *right], tmp_path)
    save_file({"w": torch.zeros(3)}, tmp_path / "base.safetensors")
    report = bz.Median().explain(Files(paths, base=tmp_path / "base.safetensors"))
    assert report.rejected == (0, 1, 2)
    paths[0].write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"the base .*client_00.safetensors"):
        Files(paths, base=paths[0])


@pytest.mark.parametrize("rule", [bz.Krum(f=1), bz.Median()], ids=repr)
def test_nobody_is_blamed_for_a_base_that_is_not_finite(
    rule: bz.Aggregator, tmp_path: Path
) -> None:
    paths = saved([{"w": torch.ones(3) + i} for i in range(7)], tmp_path)
    base = tmp_path / "base.safetensors"
    save_file({"w": torch.tensor([0.0, torch.nan, 0.0])}, base)
    with pytest.raises(bz.ByzantiumError) as told:
        merge(rule, paths, tmp_path / "merged.safetensors", base=base)
    assert str(told.value) == "the base holds numbers that are not finite"
    assert not (tmp_path / "merged.safetensors").exists()


# -- sharded checkpoints ------------------------------------------------------------------------


def test_shards_and_folders_are_checkpoints_like_others(tmp_path: Path) -> None:
    X = inputs.heterogeneous(7, 60)
    paths = saved([cut(row) for row in X], tmp_path)
    paths[1] = sharded(cut(X[1]), tmp_path / "one")
    paths[2] = sharded(cut(X[2]), tmp_path / "two").parent
    (tmp_path / "three").mkdir()
    paths[3] = paths[3].rename(tmp_path / "three" / "model.safetensors").parent
    assert torch.allclose(joined(bz.Krum(f=1)(Files(paths))), bz.Krum(f=1)(X))
    said = merge(bz.Krum(f=1), paths, tmp_path / "merged.safetensors")
    assert len(said["contributors"][1]["sha256"]) == 3


SHARDS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "elsewhere": (
        lambda p: p.write_text('{"weight_map": {"z": "../client_00.safetensors"}}'),
        "leads out of its folder",
    ),
    "no map": (lambda p: p.write_text('{"weight_map": ["z"]}'), "without a weight_map"),
    "twice": (lambda p: p.write_text('{"weight_map": {}, "weight_map": {}}'), "twice"),
    "no JSON": (lambda p: p.write_text('{"weight_map"'), "no JSON"),
    "huge": (lambda p: p.write_text("{" + " " * (2 << 20) + "}"), "an index of more than 10"),
    "absent": (
        lambda p: (p.parent / "model-00001-of-00002.safetensors").unlink(),
        "cannot be opened",
    ),
    "truncated": (
        lambda p: os.truncate(p.parent / "model-00002-of-00002.safetensors", 99),
        "has a shard 'model-00002-of-00002.safetensors' that",
    ),
    "an entry less": (
        lambda p: save_file({"z": torch.ones(())}, p.parent / "model-00001-of-00002.safetensors"),
        "but not in its index",
    ),
    "an entry in no shard": (
        lambda p: p.write_text(
            json.dumps(
                {"weight_map": {**json.loads(p.read_text())["weight_map"],
                                "q": "model-00001-of-00002.safetensors"}}
            )
        ),
        "lacks 'q' in its shard",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", SHARDS)
def test_a_bad_index_or_shard_rejects_its_contributor(fault: str, tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    paths[4] = sharded(cut(X[4]), tmp_path / "sharded")
    spoil, reason = SHARDS[fault]
    spoil(paths[4])
    report = bz.Krum(f=1).explain(Files(paths))
    assert report.rejected == (4,)
    assert reason in report.reasons[4]


# -- files that do not fit ----------------------------------------------------------------------


def lying(header: Any, data: bytes = b"", length: int | None = None) -> Callable[[Path], Any]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return lambda path: path.write_bytes(size.to_bytes(8, "little") + text + data)


def one(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


def patched(**arrays: Any) -> Callable[[Path], Any]:
    """The right file, but for some arrays; None takes one away."""

    def spoil(path: Path) -> None:
        state = {**load_file(path), **arrays}
        save_file({name: value for name, value in state.items() if value is not None}, path)

    return spoil


def instead(make: Callable[[Path], None]) -> Callable[[Path], Any]:
    def spoil(path: Path) -> None:
        path.unlink()
        make(path)

    return spoil


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (lambda p: p.write_bytes(b""), "cut off in its header"),
    "seven bytes": (lambda p: p.write_bytes(b"1234567"), "cut off in its header"),
    "a header beyond the end": (lying(one(), b"12345678", 1 << 62), "cut off in its header"),
    "a huge header": (lying(b"{" + b" " * (2 << 20)), "a header of more than 10"),
    "truncated": (lambda p: os.truncate(p, p.stat().st_size - 1), "where its header says"),
    "longer": (lambda p: p.write_bytes(p.read_bytes() + b"x"), "where its header says"),
    "no JSON": (lying(b"{'w': 1}"), "no JSON in UTF-8"),
    "no UTF-8": (lying(b'{"\xff": 1}'), "no JSON in UTF-8"),
    "half a character": (lying(b'{"\\ud800": {}}'), "no JSON in UTF-8"),
    "a list": (lying(b"[]"), "no object"),
    "nested for ever": (lying(b'{"w":' + b"[" * 200_000), "no JSON"),
    "a number of many digits": (lying(b'{"w": ' + b"9" * 5000 + b"}"), "no JSON"),
    "NaN": (lying(b'{"w": NaN}'), "no JSON"),
    "twice": (lying(b'{"w": 1, "w": 1}'), "twice"),
    "no offsets": (lying({"w": {"dtype": "F32", "shape": [2]}}), "impossible entry for 'w'"),
    "one more word": (lying(one(more=1), b"12345678"), "impossible entry for 'w'"),
    "a negative shape": (lying(one(shape=[-2]), b"12345678"), "impossible entry for 'w'"),
    "a shape of truth": (lying(one(shape=[True, 2]), b"12345678"), "impossible entry for 'w'"),
    "a shape of fractions": (lying(one(shape=[2.0]), b"12345678"), "impossible entry for 'w'"),
    "a huge shape": (lying(one(shape=[2**31] * 60), b"12345678"), "impossible entry for 'w'"),
    "too many dimensions": (lying(one(shape=[2] + [1] * 64), b"12345678"), "entry for 'w'"),
    "another shape than size": (lying(one(shape=[3]), b"12345678"), "impossible entry for 'w'"),
    "offsets backwards": (lying(one(data_offsets=[8, 0]), b"12345678"), "impossible entry for 'w'"),
    "three offsets": (lying(one(data_offsets=[0, 8, 8]), b"12345678"), "impossible entry for 'w'"),
    "a gap": (lying(one(data_offsets=[1, 9]), b"123456789"), "leaves a gap"),
    "overlapping": (
        lying({**one(), "v": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, b"1" * 12),
        "overlaps",
    ),
    "tied": (
        lying({**one(), "v": one()["w"]}, b"12345678"),
        "overlaps",
    ),
    "complex": (lying(one(dtype="C64", shape=[1]), b"12345678"), "of the kind 'C64'"),
    "metadata of numbers": (lying({"__metadata__": {"a": 1}, **one()}, b"1" * 8), "metadata"),
    "an archive of torch": (lambda p: torch.save({"w": torch.ones(2)}, p), "is a pickle"),
    "a pickle": (lambda p: p.write_bytes(pickle.dumps({"w": 1})), "is a pickle"),
    "a folder": (instead(Path.mkdir), "cannot be opened"),
    "a pipe": (instead(os.mkfifo), "it is not a file"),
    "a device": (instead(lambda p: p.symlink_to("/dev/zero")), "it is not a file"),
    "a link to nowhere": (instead(lambda p: p.symlink_to("nowhere")), "No such file"),
    "a key is missing": (patched(z=None), "lacks the entry 'z'"),
    "a key too many": (patched(y=torch.ones(1)), "has an entry 'y' that the others lack"),
    "a shape": (patched(z=torch.ones(1)), "has the shape (1,) instead of () at 'z'"),
    "a dtype": (patched(z=torch.ones(()).double()), "has the dtype F64 instead of F32 at 'z'"),
    "not finite": (patched(z=torch.tensor(torch.nan)), "not finite"),
    "huge": (patched(z=torch.tensor(1e30)), "norm above 1e+18"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_file_is_rejected_by_name_and_counts_as_byzantine(fault: str, tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    spoil, reason = BAD[fault]
    spoil(paths[2])
    report = bz.Krum(f=1).explain(Files(paths))
    assert report.rejected == (2,)
    assert reason in report.reasons[2]
    X[2] = torch.nan
    assert torch.equal(joined(report.aggregate), bz.Krum(f=1)(X))
    with pytest.raises(bz.TooManyRejected, match=r"client_02\.safetensors"):
        bz.TrimmedMean(f=0)(Files(paths))


def test_where_nobody_can_be_read_all_are_named(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b")]
    with pytest.raises(ValueError, match=r"a cannot be opened: No such.*, b cannot be opened"):
        Files(paths)
    with pytest.raises(ValueError, match="at least one checkpoint"):
        Files([])
    with pytest.raises(TypeError, match="a list of files"):
        Files("client.safetensors")


def test_what_a_stranger_writes_is_shown_as_text(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    patched(**{"\x1b[31m" + "x" * 10_000: torch.ones(1)})(paths[0])
    (reason,) = Files(paths).unreadable.values()
    assert reason.isprintable()
    assert len(reason) < 200


def agrees_with_the_library(path: Path) -> bool:
    """Whether we and the library can both read it, or neither; ours may refuse more."""
    try:
        with safetensors.safe_open(str(path), "np") as file:
            theirs = set(file.keys())
    except Exception:
        theirs = None
    try:
        ours = set(Checkpoint(path).entries)
    except UnreadableError:
        return True
    return ours == theirs


@pytest.mark.parametrize("seed", range(4))
def test_damaged_headers_are_refused_and_never_believed(seed: int, tmp_path: Path) -> None:
    damage(random.Random(seed), 150, tmp_path)


@pytest.mark.slow
def test_many_more_damaged_headers_are_refused(tmp_path: Path) -> None:
    damage(random.Random(99), 60_000, tmp_path)


def damage(lot: random.Random, times: int, folder: Path) -> None:
    """Bytes, texts and numbers of a header, changed at random: refused, or read as it is."""
    state = {"w": torch.ones(2, 3), "n": torch.tensor(3), "b": torch.ones(4).bfloat16()}
    save_file(state, folder / "good", metadata={"format": "pt"})
    good = (folder / "good").read_bytes()
    length = int.from_bytes(good[:8], "little")
    words = [b"0", b"-1", b"18446744073709551616", b"1e3", b"null", b"[]", b"{}", b'"F64"', b"true"]
    path, refused = folder / "bad", list[str]()
    for _ in range(times):
        raw = bytearray(good)
        for _ in range(lot.randint(1, 3)):
            at = lot.randrange(8 + length)
            match lot.randrange(5):
                case 0:
                    raw[at] = lot.randrange(256)
                case 1:
                    del raw[at : at + lot.randint(1, 20)]
                case 2:
                    raw[at:at] = lot.choice(words)
                case 3:
                    raw[lot.randrange(8)] = lot.choice((0, 1, 127, 255))
                case 4:
                    digits = [i for i in range(8, 8 + length) if raw[i : i + 1].isdigit()]
                    raw[lot.choice(digits or [at])] = ord(lot.choice("0123456789"))
        if lot.random() < 0.5:  # so that what was put in is looked at
            size = max(len(raw) - (len(good) - length), 0)
            raw[:8] = size.to_bytes(8, "little")
        path.write_bytes(raw)
        assert agrees_with_the_library(path), bytes(raw)
        try:
            found = Checkpoint(path)
        except UnreadableError as error:
            refused.append(str(error))
            continue
        for entry in found.entries.values():
            assert entry.end <= len(raw)
            assert len(entry.dtype.values(entry.raw(0, entry.size))) == entry.size
    assert len(refused) > times // 2
    assert all(reason.isprintable() for reason in refused)


# -- what is written ----------------------------------------------------------------------------


def test_the_output_tells_whom_it_came_from(tmp_path: Path) -> None:
    import hashlib

    X, paths = some(tmp_path)
    patched(z=None)(paths[3])
    paths[5].write_bytes(paths[1].read_bytes())
    save_file(cut(X[1]), paths[6], metadata={"disguised": "yes"})
    rule = bz.Bucketing(s=2) >> bz.GeometricMedian()
    said = merge(rule, paths, tmp_path / "merged.safetensors", seed=3)
    with safetensors.safe_open(str(tmp_path / "merged.safetensors"), "pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "pt"
    assert json.loads(metadata["byzantium"]) == said
    assert said["version"] == bz.__version__
    assert bz.parse(said["rule"]) == rule
    contributors = said["contributors"]
    assert [one["name"] for one in contributors] == [path.name for path in paths]
    assert sum(one["weight"] for one in contributors) == pytest.approx(1)
    assert contributors[3]["rejected"] == "lacks the entry 'z'"
    assert contributors[3]["weight"] == 0
    digest = hashlib.sha256(paths[0].read_bytes()).hexdigest()
    assert contributors[0]["sha256"] == {"client_00.safetensors": digest}
    assert contributors[1]["equal_to"] == ["client_05.safetensors", "client_06.safetensors"]
    assert not contributors[2]["equal_to"]
    again = merge(rule, paths, tmp_path / "again.safetensors", seed=3)
    assert again == said
    assert (tmp_path / "again.safetensors").read_bytes() == (
        tmp_path / "merged.safetensors"
    ).read_bytes()


def through_two_links(out: Path, there: Path) -> None:
    Path(f"{out}.1").symlink_to(there)
    out.symlink_to(f"{out}.1")


OUTPUTS: dict[str, Callable[[Path, Path], None]] = {
    "a link": Path.symlink_to,
    "a hard link": Path.hardlink_to,
    "a link to a link": through_two_links,
}


@pytest.mark.parametrize("way", OUTPUTS)
@pytest.mark.parametrize("which", ["contributor", "rejected", "base", "shard", "index"])
def test_what_is_read_is_never_overwritten(way: str, which: str, tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    paths[3] = sharded(cut(X[3]), tmp_path / "sharded")
    paths[4].write_bytes(b"nonsense")
    save_file(cut(X[0]), tmp_path / "base.safetensors")
    there = {
        "contributor": paths[0],
        "rejected": paths[4],
        "base": tmp_path / "base.safetensors",
        "shard": paths[3].parent / "model-00001-of-00002.safetensors",
        "index": paths[3],
    }[which]
    before = there.read_bytes()
    out = tmp_path / "out.safetensors"
    OUTPUTS[way](out, there)
    for name in (out, there):
        with pytest.raises(ValueError, match="is one of the files that are read"):
            merge(bz.Krum(f=1), paths, name, base=tmp_path / "base.safetensors")
    assert there.read_bytes() == before


def test_a_file_that_changes_meanwhile_is_not_merged(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    merged = bz.Krum(f=1)(Files(paths))
    os.utime(paths[0], ns=(1, 1))
    with pytest.raises(ValueError, match=r"client_00.* was changed while it was read"):
        merged.save(tmp_path / "merged.safetensors")
    assert not list(tmp_path.glob("merged*"))


@pytest.mark.parametrize("rule", ["Krum(f=1)", "Median()"])
def test_a_file_that_is_cut_off_meanwhile_is_named(rule: str, tmp_path: Path) -> None:
    """Whoever sent it may do that; a map would end the program."""
    _, paths = some(tmp_path, d=50_000)
    source = Files(paths)
    os.truncate(paths[2], 4096)
    with pytest.raises(ValueError, match=r"client_02.safetensors was changed while it was read"):
        bz.parse_rule(rule)(source)


def test_no_file_stays_open(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    merged = bz.Krum(f=1)(Files(paths))
    assert len(os.listdir("/proc/self/fd")) == before
    merged.save(tmp_path / "merged.safetensors")
    assert len(os.listdir("/proc/self/fd")) == before


KILLED = """
import sys, time
import byzantium as bz
from byzantium.engines import Files, files
blocks = files.Merged.blocks
def slowly(self, name, numbers):
    for block in blocks(self, name, numbers):
        yield block
        print("written", flush=True)
        time.sleep(60 if sys.argv[2] == name else 0)
files.Merged.blocks = slowly
bz.Mean()(Files(sys.argv[3:])).save(sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("old", [None, b"the old one"])
def test_killed_in_mid_write_leaves_nothing_of_that_name(
    number: signal.Signals, old: bytes | None, tmp_path: Path
) -> None:
    _, paths = some(tmp_path)
    out = tmp_path / "merged.safetensors"
    if old:
        out.write_bytes(old)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), "b.weight", *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout
    with process.stdout:
        for _ in range(2):  # a.weight is written, and b.weight begun
            assert process.stdout.readline() == b"written\n"
        assert len(list(tmp_path.glob("merged.*.writing"))) == 1
        process.send_signal(number)
        process.wait()
    left = set(tmp_path.glob("*.writing"))
    assert (out.read_bytes() if out.exists() else None) == old
    if number == signal.SIGINT:
        assert not list(tmp_path.glob("*.writing"))
    # What a killed one left is removed by the next; what another is writing, or has of another
    # name, is not.
    other = tmp_path / f"other.{'0' * 16}.writing"
    other.write_bytes(b"")
    with core_files.writing(out):
        (theirs,) = set(tmp_path.glob("merged.*.writing")) - left
        bz.Mean()(Files(paths)).save(out)
        assert set(tmp_path.glob("*.writing")) == {theirs, other}


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    _, paths = some(tmp_path, d=50_000)
    code = (
        "import resource, signal, sys, byzantium as bz\n"
        "from byzantium.engines import merge\n"
        "bz.Mean()(__import__('torch').ones(3, 3))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"
        "try:\n    merge(bz.Mean(), sys.argv[2:], sys.argv[1])\n"
        "except OSError as error:\n    print(error)\n"
    )
    out = tmp_path / "merged.safetensors"
    done = subprocess.run(
        [sys.executable, "-c", code, str(out), *map(str, paths)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(out) in done.stdout
    assert not list(tmp_path.glob("merged*"))


def test_that_we_may_open_no_more_files_is_nobodys_fault(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/proc/self/fd"))) + 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            Files(paths)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 5, hard))
        assert torch.equal(joined(bz.Krum(f=1)(Files(paths))), bz.Krum(f=1)(X))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.pt", "a.pth", "pytorch_model.bin", "a.CKPT", "a.pkl"])
def test_pickles_are_refused_with_what_to_do_instead(name: str, tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    torch.save({"w": torch.ones(2)}, tmp_path / name)
    with pytest.raises(TypeError, match=r"the base .*execute .*safetensors\.torch\.save_file"):
        Files(paths, base=tmp_path / name)
    report = bz.Krum(f=1).explain(Files([*paths, tmp_path / name]))
    assert report.rejected == (len(paths),)
    assert re.search(r"execute .*safetensors\.torch\.save_file", report.reasons[len(paths)])


@pytest.mark.parametrize(
    "name",
    [
        "base_model.model.q_proj.lora_A.weight",
        "q_proj.lora_B.default.weight",
        "lora_embedding_A",
        "lora_unet_down.lora_up.weight",
    ],
)
def test_low_rank_factors_are_refused_unless_forced(name: str, tmp_path: Path) -> None:
    paths = saved([{name: torch.ones(2, 2) + i} for i in range(5)], tmp_path)
    with pytest.raises(
        ValueError, match="product of aggregated factors is not the aggregate of the products"
    ):
        bz.Median()(Files(paths))
    assert bz.Median()(Files(paths, force=True))[name][0, 0] == 3
    save_file({"w": torch.ones(2, 2)}, paths[0])
    with pytest.raises(ValueError, match="factor"):  # what most have counts
        Files(paths)


def test_one_contributor_with_low_rank_factors_stops_nobody(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    patched(lora_A=torch.ones(2))(paths[0])
    assert bz.Krum(f=1).explain(Files(paths)).rejected == (0,)


# -- memory -------------------------------------------------------------------------------------

PEAK = """
import sys, threading
from pathlib import Path
import torch, byzantium as bz
from byzantium.engines import merge

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

text, d, small, out, base, *paths = sys.argv[1:]
rule = bz.parse(text)
merge(rule, [small] * 25, out)  # compiles
rule.reset()
before, peak, done = anonymous(), [0], threading.Event()

def look():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous())

watcher = threading.Thread(target=look)
watcher.start()
merge(rule, paths, out, base=base or None)
done.set()
watcher.join()
extra = peak[0] - before - 4 * int(d)
assert extra <= 64 << 20, f"{text} took {extra >> 20} MB beside the result"
print(text, extra >> 20, "MB")
"""


def peak_memory(text: str, d: int, folder: Path, based: bool) -> None:
    small = folder / "small.safetensors"
    save_file({"w": torch.randn(100_000)}, small)
    paths = [folder / f"{i}.safetensors" for i in range(26)]
    for path in paths:
        save_file({str(k): torch.randn(d // 5) for k in range(5)}, path)
    out, base = folder / "out.safetensors", paths[25] if based else ""
    arguments = [text, str(d), str(small), str(out), str(base), *map(str, paths[:25])]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    for path in paths:
        path.unlink()


@LINUX
@pytest.mark.parametrize(
    ("text", "based"),
    [
        ("Krum(f=5)", True),
        ("Bucketing(s=2) >> GeometricMedian()", False),
        pytest.param("Median()", False, marks=pytest.mark.slow),  # to tell whose values count
    ],
)
def test_files_are_never_stacked(text: str, based: bool, tmp_path: Path) -> None:
    peak_memory(text, 2_000_000, tmp_path, based)


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize("text", ["Krum(f=5)", "Bucketing(s=2) >> GeometricMedian()", "Median()"])
def test_25_files_of_50_million_parameters_fit_beside_the_result(text: str, tmp_path: Path) -> None:
    peak_memory(text, 50_000_000, tmp_path, based=False)


# -- the command --------------------------------------------------------------------------------


def byzantium(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, [str(word) for word in arguments])
    assert result.exit_code == code, result.output
    return result


def test_the_command_merges_and_tells_who_counted(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    patched(z=None)(paths[3])
    paths[5].write_bytes(paths[1].read_bytes())
    out = tmp_path / "merged.safetensors"
    told = byzantium("aggregate", "--rule", "Krum(f=2)", *paths, "-o", out)
    X[3], X[5] = torch.nan, X[1]
    assert torch.equal(joined(load_file(out)), bz.Krum(f=2)(X))
    assert "rejected: lacks the entry 'z'" in told.stdout
    assert "equal to client_05.safetensors" in told.stdout
    assert "f must count them all" in told.stdout
    assert f"merged: {out}" in told.stdout


def test_the_command_tells_the_same_as_json(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    out, rule = tmp_path / "merged.safetensors", "Bucketing(s=2) >> GeometricMedian()"
    options = ["--rule", rule, "--base", str(paths[0]), "--seed", "3", "--json"]
    told = byzantium("aggregate", *options, *paths, "-o", out)
    said = json.loads(told.stdout)
    with safetensors.safe_open(str(out), "pt") as file:
        assert json.loads(file.metadata()["byzantium"]) == said
    assert said == merge(bz.parse_rule(rule), paths, out, base=paths[0], seed=3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rule", "Krum(f=2)", "-o", "client_00.safetensors"], "is not overwritten"),
        (["--rule", "Krum(f=2)", "-o", "."], "is a folder"),
        (["--rule", "Krum(f=0)", "-o", "out", "old.pt"], "reading a pickle may execute"),
        (["--rule", "Krum(f=2)", "-o", "out", "nobody"], "does not exist"),
        (["--rule", "Krum(f=2)", "-o", "out", "--base", "old.pt"], "may execute"),
        (["--rule", "Krum(f=0)", "-o", "out", "text"], "worker text (is not safetensors"),
        (["--rule", "Krum(f=3)", "-o", "out"], "needs at least 2f + 3 = 9 vectors"),
        (["--rule", "Krun(f=3)", "-o", "out"], "did you mean 'Krum'"),
        (["--rule", "Bucketing(s=2)", "-o", "out"], "must end in a rule"),
        (["--rule", "Mean()", "-o", "text/out"], "text is no folder"),
        (["--rule", "Mean()", "-o", "/dev/null"], "/dev/null is not a regular file"),
        (["-o", "out"], "--rule"),
    ],
)
def test_the_command_fails_with_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    some(tmp_path)
    Path("text").write_text("not a checkpoint")
    Path("old.pt").touch()
    given = [f"client_{i:02}.safetensors" for i in range(7)]
    told = byzantium("aggregate", *given, *arguments, code=2)
    assert sentence in told.output.replace("\n", " ")
    assert not Path("out").exists()
    assert not list(tmp_path.glob("*.writing"))


def test_the_example_makes_its_point() -> None:
    example = ROOT / "examples" / "merging.py"
    told = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, check=True
    ).stdout
    table = {name.strip(): float(value) for name, value in re.findall(r"│ (.+?) │ ([\d.]+)", told)}
    assert table["Mean()"] < 20
    assert min(table["Median()"], table["GeometricMedian()"]) > table["base"] + 5
