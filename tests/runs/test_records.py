"""Results that are damaged, or a stranger's: named in a sentence, passed over, and not touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import folders
import pytest
from click.testing import CliRunner

from byzantium.cli import main
from byzantium.learning import checkpoint
from byzantium.papers.requests import Requests
from byzantium.runs import Event, Mimicry, Run, Store, execute, perform
from byzantium.tables import Version

JOB = Run(rounds=60, n=5, f=1, rule="Median()")
OTHER = JOB.varied(seed=1)
QUICK = Mimicry(rule="Mean()", n=4, attackers=1, d=3, draws=1)


def filled(root: Path) -> Store:
    """Two finished runs."""
    store = Store(root)
    for job in (JOB, OTHER):
        folders.write(store, job, folders.evaluations(job, [40.0, 50.0]), folders.completed(50.0))
    return store


def snapshot(root: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (status.st_ino, status.st_mtime_ns, status.st_size)
        for path in [root, *root.rglob("*")]
        for status in [path.lstat()]
    }


# -- looking ---------------------------------------------------------------------------------------

LOOKER = """
import sys; from byzantium.runs import Mimicry, Store
store, job = Store(sys.argv[1]), Mimicry(rule="Mean()", n=4, attackers=1, d=3, draws=1)
print("ready", flush=True)
while True:
    store.result(job)
"""


def test_looking_at_a_job_never_makes_it_fail(tmp_path: Path) -> None:
    """Another process looks at it all the time; it is begun and stopped again and again."""
    store = Store(tmp_path)
    command = [sys.executable, "-c", LOOKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as looker:
        assert looker.stdout is not None
        assert looker.stdout.readline() == "ready\n"
        try:
            for _ in range(300):
                assert perform(QUICK, store.folder(QUICK), stop=lambda: True) is None
            assert perform(QUICK, store.folder(QUICK)) is not None
            assert looker.poll() is None
        finally:
            looker.kill()


def test_looking_writes_nothing(tmp_path: Path) -> None:
    store, unfinished = filled(tmp_path), JOB.varied(seed=2)
    folders.write(store, unfinished, folders.evaluations(unfinished, [40.0]))
    before = snapshot(tmp_path)
    assert [result.status for result in store].count("completed") == 2
    assert store.result(unfinished).status == "unfinished"
    assert store.result(JOB.varied(seed=3)).status == "missing"
    assert perform(JOB, store.folder(JOB)) == store.result(JOB).summary
    store.table()
    assert snapshot(tmp_path) == before


READER = """
import os, sys; from byzantium.runs import Run, Store, perform

def look():
    store, job = Store(sys.argv[1]), Run(rounds=60, n=5, f=1, rule="Median()")
    assert perform(job, store.folder(job))["accuracy"] == 50.0
    return sorted(result.status for result in store)

if os.geteuid() == 0:  # root may write anywhere, and load what others may not read
    look()
    os.seteuid(65534)
print(look())
"""


def test_a_folder_that_cannot_be_written_is_read_and_what_cannot_be_read_is_named() -> None:
    with tempfile.TemporaryDirectory() as name:
        store, (unfinished, *closed) = filled(Path(name)), [JOB.varied(seed=k) for k in (2, 3, 4)]
        folders.write(store, unfinished, folders.evaluations(unfinished, [40.0]))
        for job in closed:
            folders.write(store, job, (), folders.completed(50.0))
        for path in [store.root, *store.root.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        places = [store.folder(closed[0]), store.folder(closed[1]) / "summary.json"]
        for path in places:
            path.chmod(0)
        command = [sys.executable, "-c", READER, name]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        for path in [store.root, *store.root.rglob("*")]:
            path.chmod(0o755)
    assert said.stdout == "['completed', 'completed', 'unfinished']\n", said.stderr
    assert said.stderr.count("\n") == 2
    for path, file in zip(places, ("config.toml", "summary.json"), strict=True):
        folder = path if path.name != file else path.parent
        assert f"{folder / file} cannot be read: Permission denied\n" in said.stderr


def test_a_run_that_is_killed_is_not_running_a_moment_later(tmp_path: Path) -> None:
    store, job = Store(tmp_path), Mimicry(rule="Mean()", n=4, attackers=1, d=3, draws=10**9)
    code = (
        "import sys; from byzantium.runs import Mimicry, Store, perform; "
        'job = Mimicry(rule="Mean()", n=4, attackers=1, d=3, draws=10**9); '
        "perform(job, Store(sys.argv[1]).folder(job))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) as process:
        while store.result(job).status in ("missing", "unfinished"):
            assert process.poll() is None
            time.sleep(0.01)
        assert store.result(job).status == "running"
        process.send_signal(signal.SIGKILL)
    assert store.result(job).status == "unfinished"


# -- bad files -------------------------------------------------------------------------------------

DEEP = "[" * 20000 + "]" * 20000
Spoil = Callable[[Path], object]


def text(content: str) -> Spoil:
    return lambda path: path.write_text(content)


def replaced(spoil: Spoil) -> Spoil:
    def spoiled(path: Path) -> None:
        path.unlink()
        spoil(path)

    return spoiled


ANY: dict[str, Spoil] = {
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\n"),
    "zeros": lambda path: path.write_bytes(bytes(1000) + b"\n"),
    "a folder": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "a loop": replaced(lambda path: path.symlink_to(path.name)),
    "a device": replaced(lambda path: path.symlink_to("/dev/zero")),
    "no bytes": replaced(lambda path: path.symlink_to("/proc/self/mem")),
}


def summaries() -> Iterator[tuple[str, Spoil]]:
    good = {"status": "completed", "accuracy": 50.0, "seconds": 1.0}
    yield "nothing", text("")
    yield "deep", text(DEEP)
    yield "deep names", text('{"a":' * 20000 + "1" + "}" * 20000)
    for content in ("{}", "[]", "7", '"text"', "null", '{"status": "completed"}'):
        yield content, text(content)
    wrong: dict[str, list[Any]] = {
        "status": [None, 7, "running", "finished", "completed\n", "diverged in round one"],
        "accuracy": [None, "50", True, [50], float("nan"), float("inf"), -1, 10**400, 1e200],
        "seconds": [None, "long", float("nan"), -1, 10**400, {}],
        "machine": [7, "two\nlines", "\ud800", "\x1b[2J", "long" * 100],
        "threads": ["two", 1.5, -1, 10**400],
        "data": [None, 7, [], {"a": 7}, {"a": "sha256:0"}, {"\x1b": f"sha256:{'0' * 64}"}],
    }
    for name, values in wrong.items():
        for value in values:
            yield f"{name} {value!r:.20}", text(json.dumps({**good, name: value}))
    yield "diverged", text(json.dumps({**good, "status": "diverged in round 3"}))


def metrics() -> Iterator[tuple[str, Spoil]]:
    good = {"round": 30, "accuracy": 50.0, "weights": [0.2] * 5}
    for content in ("7", "[]", "{}", "null", '"text"', DEEP, "{", '{"round": 1}\n\n{"round": 2}'):
        yield f"{content:.20}", text(content + "\n")
    wrong: dict[str, list[Any]] = {
        "round": [None, "30", 0, -1, 1.5, True, 10**400, 2**60],
        "accuracy": [None, "50", [], 10**400, 1e200, True],
        "weights": [None, 7, [], [0.2] * 4, ["a"] * 5, [float("nan")] * 5, [10**400] * 5],
        "rejected": [[], {"a": "b"}, 7],
        "new": ["text", [1]],
    }
    for name, values in wrong.items():
        for value in values:
            yield f"{name} {value!r:.20}", text(json.dumps({**good, name: value}) + "\n")
    backwards = "".join(json.dumps({**good, "round": at}) + "\n" for at in (60, 30))
    yield "backwards", text(backwards)


def configurations() -> Iterator[tuple[str, Spoil]]:
    for content in (
        "n = ",
        "n = 5\nn = 6",
        "kind = []",
        'kind = "Rnu"',
        "n = " + DEEP,
        ".".join(["a"] * 2000) + " = 1",
        ".".join(["a"] * 10**6) + " = 1",
        "n = {" + "a = {" * 20000,
        f"learning_rate = {10**400}",
        f"seed = 0x{'f' * 5000}",
        "rounds = 1.5",
        'rule = "Krun()"',
        "rule = \"Krum(f=1, m='x')\"",
        "partition = \"dirichlet('x')\"",
        "day = 2026-11-16",
        "[rule]",
    ):
        yield f"{content:.30}", text(content)


BAD = {
    f"{file}: {name}": (file, spoil)
    for file, found in (
        ("summary.json", summaries()),
        ("metrics.jsonl", metrics()),
        ("config.toml", configurations()),
    )
    for name, spoil in [*ANY.items(), *found]
}


@pytest.mark.parametrize("name", BAD)
def test_one_bad_file_is_named_and_the_others_are_read(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, (file, spoil) = filled(tmp_path), BAD[name]
    path = store.folder(JOB) / file
    spoil(path)
    before = snapshot(tmp_path)
    assert [result.job for result in store] == [OTHER]
    (line,) = caplog.messages
    assert line.startswith(f"{store.folder(JOB)} is skipped: ")
    assert "\n" not in line
    assert len(line) < 1500
    if file != "config.toml":
        assert f"{path} cannot be read: " in line
        with pytest.raises(ValueError, match=f"{file} cannot be read: "):
            store.result(JOB)
        found = store.results([JOB, OTHER])
        assert [result.status for result in found] == ["damaged", "completed"]
        assert caplog.messages == [line]  # said once
        failed = list[Event]()
        execute([JOB, OTHER], store, listen=failed.append)
        assert [event.kind for event in failed] == ["begun", "failed"]
        assert f"{path} cannot be read" in failed[1].note
    assert snapshot(tmp_path) == before


FAILURES = {
    "nothing": text(""),
    "a list": text("[]"),
    "no reason": text("{}"),
    "a number": text('{"reason": 7}'),
    "two lines": text('{"reason": "one\\ntwo"}'),
    "long": text(json.dumps({"reason": "long" * 1000})),
    "deep": text(DEEP),
}


@pytest.mark.parametrize("name", [*ANY, *FAILURES])
def test_a_bad_word_about_a_failure_is_named_and_the_job_is_done_all_the_same(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    folders.fail(store, QUICK, "for a reason")
    assert store.result(QUICK).reason == "for a reason"
    path = store.folder(QUICK) / "failed.json"
    {**ANY, **FAILURES}[name](path)
    before = snapshot(tmp_path)
    assert store.results([QUICK])[0].status == "damaged"
    assert f"{path} cannot be read: " in caplog.text
    assert snapshot(tmp_path) == before
    (result,) = execute([QUICK], store)
    assert result.status == "completed"


def test_a_file_where_a_folder_should_be_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, strange = filled(tmp_path), JOB.varied(seed=7)
    store.folder(strange).write_text("not a folder")
    (tmp_path / "notes.txt").write_text("this is nobody's business")
    assert len(list(store)) == 2
    assert [line.partition(" is skipped")[0] for line in caplog.messages] == [
        str(store.folder(strange))
    ]
    assert store.results([strange])[0].status == "damaged"


# -- what was asked for ----------------------------------------------------------------------------

GOOD = ["figure-mimic-demo", {"seeds": 1}]
ENTRIES: list[Any] = [
    7,
    None,
    [],
    ["table2"],
    ["table2", {}, 1],
    {"table2": {}},
    ["tabel2", {}],
    [["table2"], {}],
    ["table2", {"sedes": 1}],
    ["table2", {"seeds": "1"}],
    ["table2", {"seeds": 0}],
    ["table2", {"seeds": 10**9}],
    ["table2", {"rounds": 10**400}],
    ["table2", {"model": 7}],
    ["table2", {"model": "mlp(hidden=x)"}],
    ["table2", {"only": "krum " * 1000}],
    ["table2", {"only": "nothing like it"}],
    ["figure-b2", {"model": "mlp"}],
    ["table2", {"seeds": 1}, json.loads("[" * 500 + "]" * 500)],
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry!r:.40}")
def test_a_foreign_entry_of_what_was_asked_for_is_named_and_kept(
    tmp_path: Path, entry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = Store(tmp_path), tmp_path / "artifacts.json"
    path.write_text(json.dumps([entry, GOOD]))
    assert list(Requests(store)) == [("figure-mimic-demo", Version(seeds=1))]
    (line,) = caplog.messages
    assert line.startswith(f"entry 1 of {path} is skipped: ")
    assert "\n" not in line
    Requests(store).add("figure-mimic-demo", Version())
    assert json.loads(path.read_text())[1] == entry
    assert json.loads(path.read_text())[2] == GOOD


@pytest.mark.parametrize("name", [*ANY, "{}", "7", "null", "deep"])
def test_a_foreign_list_of_what_was_asked_for_is_named_and_stays(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = Store(tmp_path), tmp_path / "artifacts.json"
    path.touch()
    ANY.get(name, text(DEEP if name == "deep" else name))(path)
    before = snapshot(tmp_path)
    assert list(Requests(store)) == []
    Requests(store).add("table2", Version())
    (line,) = caplog.messages
    assert f"{path} cannot be read: " in line
    assert snapshot(tmp_path) == before


# -- what is written -------------------------------------------------------------------------------


def test_links_in_a_strangers_folder_lead_nowhere(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    store = Store(tmp_path / "results")
    names = ("config.toml", "metrics.jsonl", "summary.json", ".seconds", "artifacts.json")
    for job in (QUICK, QUICK.varied(seed=1)):
        folder = store.folder(job)
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.writing").symlink_to(precious)
    (store.folder(QUICK) / "run.log").symlink_to(precious)
    figures = store.root / "figures"
    figures.mkdir()
    for name in ("artifacts.json", "report.html"):
        (store.root / f"{name}.writing").symlink_to(precious)
    for ending in ("png", "pdf"):
        (figures / f"figure-mimic-demo-seeds-1.{ending}").symlink_to(precious)
    events = list[Event]()
    execute([QUICK, QUICK.varied(seed=1)], store, listen=events.append)
    ends = [event for event in events if event.kind in ("failed", "done")]
    assert [event.kind for event in ends] == ["failed", "done"]
    assert "run.log" in ends[0].note
    Requests(store).add("figure-mimic-demo", Version(seeds=1))
    said = CliRunner().invoke(main, ["report", str(store.root)])
    assert said.exit_code == 0, said.output
    assert precious.read_text() == "mine"
    assert (figures / "figure-mimic-demo-seeds-1.png").read_bytes().startswith(b"\x89PNG")


SHORT = Run(rounds=6, evaluate_every=2, n=5, f=1, batch=4, rule="Median()", model="mlp(hidden=4)")


def stopped(folder: Path) -> None:
    """A run that was stopped after five of its six rounds."""
    calls = iter([False] * 4 + [True])
    assert perform(SHORT, folder, stop=lambda: next(calls)) is None


@pytest.mark.parametrize(
    "content", [b"", b"soon", b"\xff", b"nan", b"-1", b"1e999", None], ids=repr
)
def test_a_damaged_time_does_not_keep_a_run_from_being_finished(
    tmp_path: Path, content: bytes | None
) -> None:
    stopped(tmp_path)
    path = tmp_path / ".seconds"
    path.unlink()
    if content is None:
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(content)
    summary = perform(SHORT, tmp_path)
    assert summary is not None
    assert 0 <= summary["seconds"] < 10**6
    assert "the time of earlier attempts is not counted" in (tmp_path / "run.log").read_text()
    assert not path.is_symlink()


def test_a_folder_in_the_place_of_the_time_keeps_no_run_from_anything(tmp_path: Path) -> None:
    (tmp_path / ".seconds").mkdir()
    stopped(tmp_path)
    assert perform(SHORT, tmp_path) is not None
    assert (tmp_path / ".seconds").is_dir()


@pytest.mark.parametrize("file", ["metrics.jsonl", "config.toml", "checkpoint-000000005.pt"])
def test_an_unfinished_run_is_finished_whatever_is_damaged(tmp_path: Path, file: str) -> None:
    perform(SHORT, tmp_path / "whole")
    stopped(tmp_path / "damaged")
    (tmp_path / "damaged" / file).write_bytes(b"{\xff\n")
    assert perform(SHORT, tmp_path / "damaged") is not None
    ours, theirs = (
        ((folder / "metrics.jsonl").read_text(), checkpoint.load(folder / "model.pt"))
        for folder in (tmp_path / "whole", tmp_path / "damaged")
    )
    assert ours[0] == theirs[0]
    for name, weights in ours[1]["model"].items():
        assert weights.equal(theirs[1]["model"][name])
