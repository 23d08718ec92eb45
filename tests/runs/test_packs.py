"""Packs: many folders of results in one file, read like folders and unpacked to the same bytes."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from folders import completed, diverged, evaluations, fail, write
from memory import GIGA, LINUX, megabytes, sparse

import byzantium as bz
from byzantium.cli import main
from byzantium.core import folder_lock
from byzantium.papers import Requests, artifact
from byzantium.runs import (
    Certification,
    Job,
    Mimicry,
    Run,
    Store,
    certificates,
    execute,
    pack,
    packs,
    perform,
    unpack,
)
from byzantium.tables import Version

RUNS = [Run(seed=seed, rounds=60) for seed in range(5)]
DONE, DIVERGED, PARTIAL, FAILED, TORN = RUNS
OTHER = Mimicry(rule="Median()", n=11, attackers=2)


def name(job: Job) -> str:
    return type(job).__name__.lower()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A job of every status, and files of every form."""
    store = Store(tmp_path / "results")
    write(store, DONE, evaluations(DONE, [50.0, 90.1]), completed(90.1))
    write(store, DIVERGED, evaluations(DIVERGED, [10.0], loss=math.inf), diverged())
    write(store, PARTIAL, evaluations(PARTIAL, [0.1 + 0.2]))
    for job in (DONE, DIVERGED):  # as jobs write it
        path = store.folder(job) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()), indent=1) + "\n")
    fail(store, FAILED, "it tripped")
    write(store, TORN, evaluations(TORN, [33.3]))
    with (store.folder(TORN) / "metrics.jsonl").open("a") as file:
        file.write('{"round": 60, "lo')
    write(store, OTHER, [{"round": 20, "error": 1e-17}], {"status": "completed", "error": 1e-17})
    (store.folder(OTHER) / "notes.txt").write_text("ä line\r\nand another\x00")
    (store.folder(OTHER) / "input.npy").write_bytes(bytes(range(256)))
    return store


def contents(store: Store) -> dict[str, bytes]:
    """All files of runs."""
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for path in store.root.glob("*/*")
        if not path.name.startswith(".")
    }


def results(store: Store) -> list[str]:
    """All results, in every detail but where they are."""
    return [
        repr((one.job, one.folder, one.status, one.metrics, one.summary, one.round, one.reason))
        for one in store
    ]


def only_pack(store: Store) -> Path:
    (path,) = packs.paths(store.root)
    return path


def line_of(path: Path, job: Job) -> dict[str, Any]:
    lines = map(json.loads, path.read_text().splitlines())
    return next(line for line in lines if line["identity"] == job.identity)


# -- round trip ---------------------------------------------------------------------------------


def test_packs_are_read_like_folders_and_unpacked_to_the_same_bytes(store: Store) -> None:
    files, before = contents(store), results(store)
    jobs = [*RUNS, Run(seed=99)]
    looked = [(one.status, one.metrics, one.reason) for one in store.results(jobs)]
    assert [status for status, *_ in looked] == [
        "completed", "diverged", "unfinished", "failed", "unfinished", "missing",
    ]  # fmt: skip
    changes = pack(store, name)
    assert changes.moved == {store.root / "run.jsonl": 5, store.root / "mimicry.jsonl": 1}
    assert changes.skipped == {}
    assert sorted(os.listdir(store.root)) == [".packing", "mimicry.jsonl", "run.jsonl"]
    assert results(store) == before
    assert [(one.status, one.metrics, one.reason) for one in store.results(jobs)] == looked
    assert store.result(DONE).pack == store.root / "run.jsonl"
    assert store.result(DONE).folder == store.folder(DONE)
    assert unpack(store).moved == changes.moved
    assert packs.paths(store.root) == []
    assert contents(store) == files
    assert results(store) == before
    assert store.result(DONE).pack is None


def test_a_line_holds_values_where_the_same_text_can_be_made_of_them(store: Store) -> None:
    pack(store, lambda job: "all")
    path = only_pack(store)
    line = line_of(path, PARTIAL)
    assert list(line) == ["identity", "config", "metrics"]
    assert line["config"]["rounds"] == 60
    assert line["metrics"][0]["accuracy"] == 0.1 + 0.2
    assert list(line_of(path, TORN)["files"]) == ["metrics.jsonl"]
    assert list(line_of(path, FAILED)["files"]) == ["failed.json"]
    identities = [json.loads(line)["identity"] for line in path.read_text().splitlines()]
    assert identities == sorted(identities)
    assert len(identities) == 6


def test_what_is_packed_is_never_done_again_and_what_is_not_done_begins_again(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    jobs = [Mimicry(rule="Median()", n=11, attackers=2, seed=seed) for seed in range(2)]
    perform(jobs[0], store.folder(jobs[0]))
    write(store, jobs[1])
    pack(store, name)
    done = execute(jobs, store)
    assert [result.status for result in done] == ["completed", "completed"]
    assert [result.pack is None for result in done] == [False, True]  # the folder wins
    assert len(list(store)) == 2
    assert pack(store, lambda job: "another").moved == {tmp_path / "mimicry.jsonl": 1}
    assert [result.status for result in store] == ["completed", "completed"]
    assert [path.name for path in store.folder(jobs[1]).iterdir() if path.suffix] == ["run.log"]


def test_the_input_of_a_packed_certification_is_read(tmp_path: Path) -> None:
    store, search = Store(tmp_path), Certification(rule="Median()", n=5, f=1, draws=2)
    (before,) = certificates(execute([search], store))
    changes = pack(store, name)
    assert changes.skipped == {}
    (after,) = certificates(execute([search], store))
    assert np.array_equal(before.findings[0].rows, after.findings[0].rows)
    assert str(before) == str(after)


def test_models_and_logs_stay_in_the_folder(store: Store) -> None:
    for file in ("model.pt", "run.log", ".lock", ".seconds"):
        (store.folder(DONE) / file).write_text("kept")
    before = results(store)
    changes = pack(store, name)
    assert changes.remainders == [store.folder(DONE)]
    left = {path.name for path in store.folder(DONE).iterdir()}
    assert {"model.pt", "run.log"} <= left <= {"model.pt", "run.log", ".lock", ".seconds"}
    assert results(store) == before
    assert pack(store, name).moved == {}
    unpack(store)
    assert (store.folder(DONE) / "model.pt").read_text() == "kept"
    assert results(store) == before


# -- folders that stay --------------------------------------------------------------------------


def test_folders_that_cannot_be_packed_stay_and_are_named(store: Store) -> None:
    (store.folder(PARTIAL) / "checkpoint-000000030.pt").write_bytes(b"state")
    (store.folder(FAILED) / "summary.json").write_text("{")
    shutil.move(store.folder(DIVERGED), store.root.parent / "elsewhere")
    store.folder(DIVERGED).symlink_to(store.root.parent / "elsewhere")
    (store.folder(TORN) / "metrics.jsonl").rename(store.root.parent / "metrics")
    (store.folder(TORN) / "metrics.jsonl").symlink_to(store.root.parent / "metrics")
    files = contents(store)
    with folder_lock(store.folder(DONE)):
        changes = pack(store, name)
    reasons = {
        DONE: "a process works on it",
        DIVERGED: "it is not a folder",
        PARTIAL: "it is not finished, and continues from its checkpoint",
        TORN: "metrics.jsonl is a link",
    }
    for job, reason in reasons.items():
        assert changes.skipped[str(store.folder(job))] == reason
    assert "summary.json cannot be read" in changes.skipped[str(store.folder(FAILED))]
    assert list(changes.moved) == [store.root / "mimicry.jsonl"]
    stay = {name: text for name, text in files.items() if not name.startswith(OTHER.identity)}
    assert contents(store) == stay


def test_a_folder_that_is_further_behind_than_its_pack_stays(store: Store) -> None:
    pack(store, name)
    write(store, DONE)
    changes = pack(store, name)
    reason = "it is not finished, and a pack has it finished"
    assert changes.skipped == {str(store.folder(DONE)): reason}
    assert store.result(DONE).status == "unfinished"  # the folder wins
    (changed,) = unpack(store).skipped.values()
    assert changed.endswith("is there, and differs")
    shutil.rmtree(store.folder(DONE))
    assert store.result(DONE).status == "completed"


def test_a_folder_that_changes_while_it_is_packed_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = packs.encode

    def changed(identity: str, contents: dict[str, bytes]) -> bytes:
        (store.root / identity / "notes.txt").write_text("new")
        return whole(identity, contents)

    monkeypatch.setattr(packs, "encode", changed)
    before = results(store)
    changes = pack(store, name)
    assert set(changes.skipped.values()) == {"it was changed meanwhile"}
    assert len(changes.skipped) == 6
    monkeypatch.undo()
    assert results(store) == before
    pack(store, name)
    assert results(store) == before
    assert not store.folder(DONE).exists()


def test_two_processes_do_not_pack_at_once(store: Store) -> None:
    with folder_lock(store.root / ".packing"), pytest.raises(bz.core.BusyError):
        pack(store, name)


# -- merging ------------------------------------------------------------------------------------


def test_new_folders_join_the_packs_that_are_there(store: Store) -> None:
    pack(store, name)
    path = store.root / "run.jsonl"
    lines = path.read_text().splitlines()
    new = Run(seed=7, rounds=60)
    write(store, new, evaluations(new, [1.0]), completed(1.0))
    write(store, PARTIAL, evaluations(PARTIAL, [2.0]), completed(2.0))  # done by now
    assert store.result(PARTIAL).accuracy == 2.0
    assert pack(store, name).moved == {path: 2}
    merged = path.read_text().splitlines()
    assert merged == sorted(merged)
    assert len(set(lines) & set(merged)) == 4
    assert store.result(PARTIAL).accuracy == 2.0
    assert store.result(new).accuracy == 1.0
    assert pack(store, name).moved == {}


def test_runs_of_an_artifact_are_packed_under_its_name(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=1, only="krum")
    Requests(store).add("table2", version)
    jobs = artifact("table2", version).jobs
    for job in [*jobs, DONE]:
        write(store, job, [], completed(1.0))
    done = CliRunner().invoke(main, ["pack", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'run.jsonl'}: 1 packed" in done.output
    assert f"{tmp_path / 'table2.jsonl'}: {len(jobs)} packed" in done.output
    done = CliRunner().invoke(main, ["pack", str(tmp_path), "--unpack"])
    assert f"{tmp_path / 'run.jsonl'}: 1 unpacked" in done.output
    assert len(list(tmp_path.glob("*/config.toml"))) == len(jobs) + 1
    done = CliRunner().invoke(main, ["pack", str(tmp_path), "--unpack"])
    assert done.output == "nothing to unpack\n"


# -- hostile packs ------------------------------------------------------------------------------

BAD = DIVERGED.identity


def edited(**changes: Any) -> Callable[[bytes], bytes]:
    """A line with other values."""
    return lambda line: json.dumps({**json.loads(line), **changes}).encode() + b"\n"


def edited_in(part: str, **changes: Any) -> Callable[[bytes], bytes]:
    return lambda line: edited(**{part: {**json.loads(line)[part], **changes}})(line)


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda line: line[: len(line) // 2] + b"\n",
    "cut off": lambda line: line[: len(line) // 2],
    "empty": lambda line: b"\n",
    "huge": lambda line: line[:-2] + b" " * (packs.LONGEST_LINE + 1) + b"}\n",
    "huge number": lambda line: line[:-2] + b',"x":' + b"9" * 10_000 + b"}\n",
    "binary": lambda line: bytes(range(10)) + b"\xff\xfe\n",
    "binary after the identity": lambda line: line[:40] + b"\xff\xfe" + line[40:],
    "nested": lambda line: line[:-2] + b',"x":' + b"[" * 200_000 + b"\n",
    "nested and closed": lambda line: line[:-2] + b',"x":' + b"[" * 90000 + b"]" * 90000 + b"}\n",
    "list": lambda line: b"[1, 2]\n",
    "two identities": lambda line: line[:-2] + b',"identity":"0123456789abcdef"}\n',
    "identity of another job": lambda line: line.replace(BAD.encode(), b"0123456789abcdef"),
    "no configuration": edited(config=None),
    "configuration is a list": edited(config=[1]),
    "configuration is too long": edited_in("config", rule="Mean()" + " " * 20_000),
    "configuration of another kind": edited_in("config", kind="Rnu"),
    "unknown field": edited_in("config", **{"\x1b[31m": 1}),
    "NaN in the configuration": edited_in("config", momentum=math.nan),
    "NaN in the summary": edited_in("summary", seconds=math.nan),
    "status": edited_in("summary", status="diverged in round -1"),
    "summary is a number": edited(summary=3),
    "no accuracy": edited_in("summary", status="completed"),
    "metrics are a text": edited(metrics="none"),
    "metrics are numbers": edited(metrics=[1, 2]),
    "NaN as a round": edited(metrics=[{"round": math.nan}]),
    "rounds in disorder": edited(metrics=[{"round": 3}, {"round": 2}]),
    "weights": edited(metrics=[{"round": 3, "weights": [1.0, 2.0]}]),
    "files are a list": edited(files=[1]),
    "a file is a number": edited(files={"summary.json": 1}),
    "a file is there twice": edited(files={"metrics.jsonl": ""}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_line_is_named_in_a_sentence_and_the_others_are_read(
    what: str, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    pack(store, lambda job: "all")
    path = only_pack(store)
    lines = path.read_bytes().splitlines(keepends=True)
    bad = [HOSTILE[what](line) if BAD.encode() in line else line for line in lines]
    if what == "cut off":
        bad.sort(key=lambda line: line.endswith(b"\n"), reverse=True)
    path.write_bytes(b"".join(bad))
    assert {one.job for one in store} == {DONE, PARTIAL, FAILED, TORN, OTHER}
    sentences = [record.getMessage() for record in caplog.records]
    assert len(sentences) == 1
    assert " is skipped: " in sentences[0]
    assert len(sentences[0]) < 1000
    assert sentences[0].isprintable()
    if "onfiguration" not in what and what != "unknown field":  # which a job brings itself
        assert store.results([DIVERGED])[0].status in ("damaged", "missing")
    assert store.results([DONE])[0].status == "completed"
    changes = unpack(store)
    assert store.result(DONE).pack is None
    if path.exists():  # a line that is no files at all stays; one with bad files is unpacked
        (name_of_line,) = changes.skipped
        assert name_of_line.endswith(f" of {path}")
        assert path.read_bytes() in bad
    else:
        assert DIVERGED not in {one.job for one in store}


def test_a_pack_with_a_bad_line_is_not_written(store: Store) -> None:
    pack(store, lambda job: "all")
    path = only_pack(store)
    path.write_bytes(path.read_bytes() + b"no JSON\n")
    before = path.read_bytes()
    write(store, Run(seed=9))
    with pytest.raises(bz.ByzantiumError, match=r"line 7 of .*all.jsonl cannot be read: it "):
        pack(store, name)
    assert path.read_bytes() == before
    assert store.folder(Run(seed=9)).exists()


def test_a_job_that_is_packed_twice_is_read_once(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = results(store)
    pack(store, lambda job: "all")
    path = only_pack(store)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[2]]))
    (store.root / "zzz.jsonl").write_bytes(lines[1])
    assert results(store) == before
    said = {record.getMessage().partition(" is skipped: ")[2] for record in caplog.records}
    assert said == {"line 3 holds the same job", "all.jsonl holds the same job"}


def test_thousands_of_bad_lines_are_not_thousands_of_sentences(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    pack(store, lambda job: "all")
    (store.root / "bad.jsonl").write_bytes(b"no JSON\n" * 5000)
    assert len(list(store)) == 6
    assert len(caplog.records) == packs.MOST_FAULTS + 1
    assert "4990 other lines of it cannot be read" in caplog.text


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "closed"])
def test_what_is_not_a_file_is_not_read(
    what: str, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    before = results(store)
    pack(store, lambda job: "all")
    odd = store.root / "odd.jsonl"
    if what == "link":
        elsewhere = store.root.parent / "elsewhere.jsonl"
        elsewhere.write_bytes(only_pack(store).read_bytes())
        odd.symlink_to(elsewhere)
    elif what == "folder":
        odd.mkdir()
    elif what == "pipe":
        os.mkfifo(odd)
    else:
        sparse(odd, packs.LARGEST_PACK + 1)
    assert results(store) == before
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{odd} is skipped: it ")
    with pytest.raises(bz.ByzantiumError, match=r"odd.jsonl cannot be read"):
        pack(store, name)
    changes = unpack(store)
    assert str(odd) in changes.skipped
    assert results(store) == before


@pytest.mark.parametrize("file", ["../../x", "a/b", ".lock", "state-1.pt", "run.log", "", "a\0"])
def test_a_line_writes_nothing_but_plain_files_of_its_folder(file: str, store: Store) -> None:
    pack(store, lambda job: "all")
    path = only_pack(store)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = [edited(files={file: "x"})(line) if BAD.encode() in line else line for line in lines]
    path.write_bytes(b"".join(changed))
    changes = unpack(store)
    (reason,) = changes.skipped.values()
    assert "which cannot be" in reason
    assert not store.folder(DIVERGED).exists()
    assert len(path.read_bytes().splitlines()) == 1
    assert {one.name for one in store.root.parent.iterdir()} == {"results"}


def test_unpacking_follows_no_link(store: Store) -> None:
    pack(store, lambda job: "all")
    elsewhere = store.root.parent / "elsewhere"
    elsewhere.mkdir()
    store.folder(DONE).symlink_to(elsewhere)
    (reason,) = unpack(store).skipped.values()
    assert reason.endswith("is a link")
    assert list(elsewhere.iterdir()) == []


READ = """
from byzantium.runs import Store
assert len(list(Store(sys.argv[2]))) == 1  # loads what is needed
print(peak(lambda: print(len(list(Store(sys.argv[1]))))))
"""


@LINUX
def test_sparse_packs_take_no_memory(store: Store, tmp_path: Path) -> None:
    write(Store(tmp_path / "good"), DONE)
    pack(store, lambda job: "all")
    sparse(store.root / "sparse.jsonl", GIGA)
    start = b'{"identity":"0123456789abcdef",'
    sparse(store.root / "named.jsonl", GIGA // 2, start)
    sparse(store.root / "larger.jsonl", 2 * GIGA)
    taken, said = megabytes(READ, store.root, tmp_path / "good")
    assert taken < 100, f"{taken} MB"
    assert said.startswith("6\n")
    for file in ("sparse", "named", "larger"):
        assert f"{file}.jsonl is skipped: it has more than" in said


# -- kill -9 ------------------------------------------------------------------------------------

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from byzantium.runs import Store, pack, unpack
import byzantium.runs.run, byzantium.runs.mimicry, filelock, byzantium.runs.certification

source, work, verb = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
EVENTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "open"}

def results(root):
    return [repr((r.job, r.status, r.metrics, r.summary, r.reason)) for r in Store(root)]

expected, left, point = results(source), -1, 0
while left:
    point += 1
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work)
    child = os.fork()
    if not child:
        left = point
        def hook(event, arguments):
            global left
            if event in EVENTS and str(work) in str(arguments[0]):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        pack(Store(work), lambda job: "all") if verb == "pack" else unpack(Store(work))
        os._exit(0)
    left = os.waitpid(child, 0)[1]
    assert results(work) == expected, point
    changes = pack(Store(work), lambda job: "all") if verb == "pack" else unpack(Store(work))
    assert changes.skipped == {}, (point, changes)
    assert results(work) == expected, point
    names = sorted(name for name in os.listdir(work))
    folders = [name for name in names if len(name) == 16]
    assert names == [".packing", "all.jsonl"] if verb == "pack" else len(folders) == 3, names
print(point)
"""


@pytest.mark.parametrize("verb", ["pack", "unpack"])
def test_a_kill_at_any_moment_loses_nothing(verb: str, store: Store, tmp_path: Path) -> None:
    """A process is killed at each operation on a file, one after the other."""
    for job in (DIVERGED, FAILED, TORN):
        shutil.rmtree(store.folder(job))
    if verb == "unpack":
        pack(store, lambda job: "all")
        shutil.rmtree(store.root / ".packing")
    command = [sys.executable, "-c", KILLED, str(store.root), str(tmp_path / "work"), verb]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 25


# -- reading fast -------------------------------------------------------------------------------


def test_a_pack_that_has_not_changed_is_not_indexed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(store, lambda job: "all")
    packs._index.cache_clear()
    decoded, decode = 0, packs.decode

    def counted(line: bytes) -> dict[str, bytes]:
        nonlocal decoded
        decoded += 1
        return decode(line)

    monkeypatch.setattr(packs, "decode", counted)
    for job in (DONE, PARTIAL, DONE):
        assert Store(store.root).result(job).pack is not None
    assert packs._index.cache_info().misses == 1
    assert decoded == 3  # lines of other jobs are not decoded
    write(store, Run(seed=8))
    pack(store, lambda job: "all")
    assert store.result(Run(seed=8)).pack is not None
    assert packs._index.cache_info().misses == 2
