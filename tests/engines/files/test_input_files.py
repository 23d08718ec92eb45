"""What a contributor uploads: how many files, where they lead, what they are called, how large."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import inputs
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from safetensors_files import LINUX, cut, joined, saved, sharded, some
from torch import Tensor

import byzantium as bz
from byzantium.cli import main
from byzantium.engines.files import Files, merge

pytestmark = pytest.mark.usefixtures("two_threads")


# -- how many -----------------------------------------------------------------------------------


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def opened() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_shards(state: dict[str, Tensor], folder: Path, count: int = 1100) -> Path:
    """In so many shards, one array after the other."""
    folder.mkdir()
    places = {name: f"{k % count}.safetensors" for k, name in enumerate(state)}
    for place in set(places.values()):
        save_file({name: state[name] for name in state if places[name] == place}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


@pytest.mark.parametrize("right", [True, False])
def test_a_thousand_shards_exhaust_no_descriptors(right: bool, tmp_path: Path) -> None:
    X = inputs.heterogeneous(5, 1100)
    states = [{str(k): value.reshape(1) for k, value in enumerate(row)} for row in X]
    paths = saved(states, tmp_path)
    odd = states[2] if right else {f"odd {name}": array for name, array in states[2].items()}
    paths[2] = in_shards(odd, tmp_path / "many")
    before, most = opened(), 0

    def watch(*_: int) -> None:
        nonlocal most
        most = max(most, opened())

    with descriptors(before + 300):
        said = merge(bz.Krum(f=1), paths, tmp_path / "merged.safetensors", watch=watch)
    assert most <= before + (before + 300) // 2 + 4
    assert bool(said["contributors"][2]["rejected"]) is not right
    if right:
        assert len(said["contributors"][2]["sha256"]) == 1101
    else:
        X[2] = torch.nan
    merged = load_file(tmp_path / "merged.safetensors")
    assert torch.equal(torch.cat([merged[str(k)] for k in range(1100)]), bz.Krum(f=1)(X))


def test_a_file_that_is_replaced_before_it_is_opened_again_is_noticed(tmp_path: Path) -> None:
    X = inputs.heterogeneous(60, 40).float()
    paths = saved([cut(row) for row in X], tmp_path)
    with descriptors(opened() + 40):
        source = Files(paths)
        # The first was opened long ago. The new one has its size and its time.
        times = paths[0].stat()
        save_file(cut(X[1]), tmp_path / "other")
        os.utime(tmp_path / "other", ns=(times.st_atime_ns, times.st_mtime_ns))
        (tmp_path / "other").replace(paths[0])
        with pytest.raises(ValueError, match=r"client_00.* was changed while it was read"):
            bz.Median()(source)


def test_a_file_that_is_written_to_is_noticed_even_if_its_time_is_put_back(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    merged = bz.Krum(f=1)(Files(paths))
    times = paths[0].stat()
    save_file(cut(X[1]), tmp_path / "other")
    paths[0].write_bytes((tmp_path / "other").read_bytes())
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ValueError, match=r"client_00.* was changed while it was read"):
        merged.save(tmp_path / "merged.safetensors")


def test_a_file_that_is_gone_is_a_changed_one(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    merged = bz.Krum(f=1)(Files(paths))
    paths[0].unlink()
    with pytest.raises(ValueError, match=r"client_00.* was changed while it was read"):
        merged.save(tmp_path / "merged.safetensors")


# -- where they lead ----------------------------------------------------------------------------


def reason(path: Path, others: list[Path]) -> str:
    """Why a contributor is rejected among others; empty if it is not."""
    source = Files([path, *others])
    bz.Krum(f=1)(source)
    return source.unreadable.get(0, "")


def elsewhere(state: dict[str, Tensor], folder: Path) -> Path:
    """A checkpoint that is nobody's business."""
    folder.mkdir()
    save_file(state, folder / "private.safetensors")
    return folder / "private.safetensors"


@pytest.mark.parametrize("way", ["absolute", "relative", "through a folder", "through two links"])
def test_a_link_leads_a_contributor_out_of_its_folder_and_is_rejected(
    way: str, tmp_path: Path
) -> None:
    X, paths = some(tmp_path)
    private = elsewhere(cut(X[0]), tmp_path / "elsewhere")
    eve = tmp_path / "eve"
    eve.mkdir()
    target = {
        "absolute": private,
        "relative": Path("../elsewhere/private.safetensors"),
        "through a folder": Path("way/private.safetensors"),
        "through two links": Path("way/../elsewhere/private.safetensors"),
    }[way]
    (eve / "way").symlink_to(private.parent)
    (eve / "model.safetensors").symlink_to(target)
    assert reason(eve, paths[1:]) == "leads out of its folder by a link"
    index = sharded(cut(X[0]), tmp_path / "shards")
    shard = index.parent / "model-00001-of-00002.safetensors"
    shard.rename(private)
    shard.symlink_to(private)
    expected = f"has a shard {shard.name!r} that leads out of its folder by a link"
    for named in (index, index.parent):
        assert reason(named, paths[1:]) == expected
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / index.name).symlink_to(index)
    assert reason(tmp_path / "index", paths[1:]) == "leads out of its folder by a link"


def test_a_link_within_the_folder_and_one_that_the_user_names_are_followed(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    index = sharded(cut(X[0]), tmp_path / "own")
    shard = index.parent / "model-00001-of-00002.safetensors"
    (index.parent / "deep").mkdir()
    shard.rename(index.parent / "deep" / "shard")
    shard.symlink_to("deep/shard")
    (tmp_path / "alias").symlink_to(index.parent)
    (tmp_path / "link.safetensors").symlink_to(elsewhere(cut(X[0]), tmp_path / "elsewhere"))
    for path in (index, index.parent, tmp_path / "alias", tmp_path / "link.safetensors"):
        assert reason(path, paths[1:]) == ""


def in_the_cache(index: Path, model: Path) -> Path:
    """As Hugging Face lays a sharded checkpoint out: a snapshot of links to blobs."""
    snapshot = model / "snapshots" / "1f0e2d"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    for k, path in enumerate(sorted(index.parent.iterdir())):
        path.rename(model / "blobs" / f"{k:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{k:064x}")
    return snapshot


def test_the_cache_of_hugging_face_links_within_itself(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    index = sharded(cut(X[0]), tmp_path / "own")
    snapshot = in_the_cache(index, tmp_path / "hub" / "models--eve--model")
    for path in (snapshot, snapshot / index.name):
        assert reason(path, paths[1:]) == ""
    said = merge(bz.Krum(f=1), [snapshot, *paths[1:]], tmp_path / "merged.safetensors")
    names = {index.name, *(f"model-0000{k}-of-00002.safetensors" for k in (1, 2))}
    assert set(said["contributors"][0]["sha256"]) == names
    blob = tmp_path / "hub" / "models--eve--model" / "blobs" / f"{1:064x}"
    with pytest.raises(ValueError, match="is one of the files that are read"):
        merge(bz.Krum(f=1), [snapshot, *paths[1:]], blob)


def test_what_only_looks_like_the_cache_leads_nowhere(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    other = in_the_cache(sharded(cut(X[0]), tmp_path / "a"), tmp_path / "hub" / "models--bob--b")
    mine = in_the_cache(sharded(cut(X[0]), tmp_path / "b"), tmp_path / "hub" / "models--eve--e")
    plain = in_the_cache(sharded(cut(X[0]), tmp_path / "c"), tmp_path / "no model")
    assert "by a link" in reason(plain, paths[1:])
    blobs = mine.parents[1] / "blobs"
    (blobs / f"{1:064x}").unlink()
    (blobs / f"{1:064x}").symlink_to(other.parents[1] / "blobs" / f"{1:064x}")
    assert "by a link" in reason(mine, paths[1:])
    blobs.rename(mine.parents[1] / "away")
    blobs.symlink_to(other.parents[1] / "blobs")
    assert "by a link" in reason(mine, paths[1:])


def test_a_shard_of_a_rejected_contributor_is_not_overwritten(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    index = sharded(cut(X[0]) | {"odd": torch.ones(1)}, tmp_path / "own")
    shard = index.parent / "model-00001-of-00002.safetensors"
    before = shard.read_bytes()
    with pytest.raises(ValueError, match="is one of the files that are read"):
        merge(bz.Krum(f=1), [index, *paths[1:]], shard)
    assert shard.read_bytes() == before


# -- what they are called -----------------------------------------------------------------------


def command(*arguments: Any) -> Any:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, [str(word) for word in arguments])
    assert result.exit_code == 0, result.output
    return result


NAMES = {
    "a pickle": "eve.pt",
    "no UTF-8": os.fsdecode(b"eve\xff.safetensors"),
    "an escape sequence": "eve\x1b[2J.safetensors",
    "a line": "eve\nclient_00.safetensors",
    "markup": "[bold]eve[red]:skull:.safetensors",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stops_nobody(name: str, tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    eve = tmp_path / NAMES[name]
    save_file(cut(X[0]), tmp_path / "temporary")
    (tmp_path / "temporary").rename(eve)
    out = tmp_path / "merged.safetensors"
    told = command("aggregate", "--rule", "Krum(f=1)", eve, *paths[1:], "-o", out).stdout
    assert all(line.isprintable() for line in told.split("\n"))
    said = json.loads(
        command("aggregate", "--rule", "Krum(f=1)", "--json", eve, *paths[1:], "-o", out).stdout
    )
    assert bool(said["contributors"][0]["rejected"]) is (name == "a pickle")
    X[0] = torch.nan if name == "a pickle" else X[0]
    assert torch.equal(joined(load_file(out)), bz.Krum(f=1)(X))


def test_the_name_of_a_changed_file_is_shown_as_text(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    paths[0] = paths[0].rename(tmp_path / "eve\x1b[2J\n.safetensors")
    merged = bz.Krum(f=1)(Files(paths))
    os.utime(paths[0], ns=(1, 1))
    with pytest.raises(ValueError, match="was changed") as caught:
        merged.save(tmp_path / "merged.safetensors")
    assert str(caught.value).isprintable()


def test_a_link_to_nowhere_and_a_pipe_stop_nobody(tmp_path: Path) -> None:
    _, paths = some(tmp_path)
    spoils: list[Callable[[Path], None]] = [lambda path: path.symlink_to("nowhere"), os.mkfifo]
    for spoil in spoils:
        paths[0].unlink()
        spoil(paths[0])
        out = tmp_path / "merged.safetensors"
        told = command("aggregate", "--rule", "Krum(f=1)", *paths, "-o", out).stdout
        assert "rejected: cannot be opened" in told


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_we_may_not_read_stops_nobody() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        with unprivileged():
            _, paths = some(folder)
            paths[0].chmod(0)
            (folder / "eve").mkdir()
            paths[1] = paths[1].rename(folder / "eve" / "eve.safetensors")
            (folder / "eve").chmod(0)
            out = folder / "merged.safetensors"
            out.write_bytes(b"the old one")  # so that it is compared with what is read
            source = Files(paths)
            assert set(source.unreadable.values()) == {"cannot be opened: Permission denied"}
            bz.TrimmedMean(f=2)(source).save(out)
            paths[1] = paths[2]
            told = command("aggregate", "--rule", "TrimmedMean(f=2)", *paths, "-o", out)
            # A narrow table breaks its lines.
            assert "Permission denied" in re.sub(r"[│\s]+", " ", told.stdout)
            (folder / "eve").chmod(0o700)


# -- how large ----------------------------------------------------------------------------------

PEAK = """
import gc, sys
from pathlib import Path
import byzantium as bz
from byzantium.engines import Files, merge

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

out, base, *paths = sys.argv[1:]
honest = [path for path in paths if "client" in path]
merge(bz.Median(), honest, out, base=base or None)
gc.collect()
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
said = merge(bz.Median(), paths, out, base=base or None)
extra = resident("VmHWM") - before
assert extra <= 64 << 20, f"{extra >> 20} MB"
rejected = {one["name"] for one in said["contributors"] if one["rejected"]}
assert rejected == {Path(path).name for path in paths if "client" not in path}, said
"""


def empty_entries(size: int) -> bytes:
    """As many entries without numbers as fit into a header of this size."""
    entry = '"%06d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(entry % k for k in range(size // (len(entry % 0) + 1))) + "}").encode()


HEADERS = {
    "270,000 empty entries": lambda: [empty_entries(14 << 20)],
    "as many as are looked at": lambda: [empty_entries(1_040_000)] * 3,
    "lists": lambda: [b'{"w":[' + b"{}," * 340_000 + b"{}]}"] * 3,
}


@LINUX
@pytest.mark.parametrize(
    ("which", "based"), [*((which, False) for which in HEADERS), ("270,000 empty entries", True)]
)
def test_a_header_takes_no_more_memory_than_is_promised(
    which: str, based: bool, tmp_path: Path
) -> None:
    _, paths = some(tmp_path)
    for k, header in enumerate(HEADERS[which]()):
        paths.append(tmp_path / f"eve_{k}.safetensors")
        paths[-1].write_bytes(len(header).to_bytes(8, "little") + header)
    out, base = tmp_path / "merged.safetensors", paths[0] if based else ""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(out), str(base), *map(str, paths)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_entries_of_rejected_checkpoints_are_not_held(tmp_path: Path) -> None:
    X, paths = some(tmp_path)
    for k in (1, 2):
        save_file(cut(X[k]) | {f"{i}": torch.ones(1) for i in range(k)}, paths[k])
    source = Files(paths)
    assert sorted(source.unreadable) == [1, 2]
    assert [row for row, held in enumerate(source.checkpoints) if held is None] == [1, 2]


def test_headers_may_differ_in_their_metadata_and_be_in_shards(tmp_path: Path) -> None:
    X = inputs.heterogeneous(5, 600)
    states = [{f"a.rather.long.name.{k}": v.reshape(1) for k, v in enumerate(row)} for row in X]
    paths = saved(states, tmp_path)
    save_file(states[0], paths[0], metadata={"notes": "x" * 900_000})
    paths[1] = in_shards(states[1], tmp_path / "shards", 3)
    assert not Files(paths).unreadable
    assert not Files(paths, base=paths[2]).unreadable
    paths = [in_shards(state, tmp_path / f"all {k}", 3) for k, state in enumerate(states)]
    assert not Files([*paths[:4], tmp_path / "client_04.safetensors"]).unreadable
