"""Sweeps: all combinations, several processes, what is done is not done again, deaths survived."""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from threads import torch_threads

from byzantium.cli import main
from byzantium.core.locks import folder_lock
from byzantium.learning import Simulation
from byzantium.runs import (
    Board,
    Event,
    Job,
    Mimicry,
    Processes,
    Run,
    Snapshot,
    Store,
    execute,
    load,
    perform,
    pool,
    processes,
    product,
    records,
)
from byzantium.runs.timing import estimate, probe

FIXED: dict[str, Any] = {"rounds": 6, "evaluate_every": 3, "n": 7, "f": 1, "batch": 8}


def test_a_sweep_is_a_product_and_equal_runs_are_one(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        "[fixed]\nrounds = 5\nn = 25\n[varies]\n"
        'rule = ["Krum()", "Krum(f=5)", "Median()"]\nseed = [0, 1]\n'
    )
    runs = load(path)
    assert [(run.rule, run.seed) for run in runs] == [
        ("Krum(f=5)", 0),
        ("Krum(f=5)", 1),
        ("Median()", 0),
        ("Median()", 1),
    ]
    assert all(run.rounds == 5 for run in runs)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[fixd]\nrounds = 5", "a sweep has [fixed] and [varies]"),
        ("fixed = 5", "[fixed] must hold names and values, got 5"),
        ("varies = [1]", "[varies] must hold names and values, got [1]"),
        ("[varies]\nseed = 3", "what varies needs a list of values, got seed = 3"),
        ("[varies]\nseed = []", "what varies needs a list of values"),
        ("[fixed]\nseed = 1\n[varies]\nseed = [1]", "seed is both fixed and varied"),
        ("[varies]\nsede = [1]", "a Run has no 'sede'; did you mean 'seed'?"),
    ],
)
def test_a_wrong_sweep_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"sweep\.toml") as caught:
        load(path)
    assert sentence in str(caught.value)


def test_processes_do_what_one_does_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    """Four short runs and a long one in two processes; the one with the long run is killed."""
    short = product(FIXED, {"rule": ["Median()", "Mean()"], "seed": [0, 1]})
    long = Run(**FIXED).varied(rounds=10**6, evaluate_every=100)
    store, events, killed = Store(tmp_path / "pool"), list[Event](), list[int]()

    def listen(event: Event) -> None:
        events.append(event)
        if event.job == long and event.kind == "progress" and event.done > 100 and not killed:
            # The lock's holder is the process that works on it.
            killed.append(holder(store.folder(long) / ".lock"))
            os.kill(killed[0], signal.SIGKILL)

    results = execute([long, *short], store, Processes(2), listen=listen)
    assert len(killed) == 1
    failed = [event for event in events if event.kind == "failed"]
    assert [event.job for event in failed] == [long]
    assert failed[0].note == "its process was killed"
    assert [result.job for result in results] == [long, *short]
    assert [result.status for result in results] == ["failed", *["completed"] * 4]
    there = store.result(long)
    assert (there.status, there.reason) == ("failed", "its process was killed")
    assert there == results[0]

    for job in short:
        assert store.result(job).metrics == undisturbed(job, tmp_path / "alone")
        assert store.result(job).done


def holder(path: Path) -> int:
    """The process that has a file open."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if any(os.readlink(fd) == str(path) for fd in (folder / "fd").iterdir()):
                    return int(folder.name)
            except OSError:
                continue
    raise AssertionError(f"nobody has {path} open")


def test_the_job_of_a_process_that_is_told_to_stop_is_given_to_another(tmp_path: Path) -> None:
    """All are signalled when just started, one amid its job, and all when one has done its."""
    jobs = product(FIXED, {"seed": [0, 1, 2, 3]})
    jobs[0] = jobs[0].varied(rounds=500, evaluate_every=100)
    store, events, signalled = Store(tmp_path / "pool"), list[Event](), list[int]()

    def listen(event: Event) -> None:
        events.append(event)
        if event.kind == "progress" and event.job == jobs[0] and not signalled:
            signalled.append(
                json.loads((store.folder(jobs[0]) / ".working").read_text())["process"]
            )
            os.kill(signalled[0], signal.SIGTERM)
        if event.kind == "done" and len(signalled) == 1:
            signalled.extend(process.pid or 0 for process in multiprocessing.active_children())
            for process in signalled[1:]:
                os.kill(process, signal.SIGHUP)

    def look() -> bool:
        """Told by the leader, which asks whether to stop: the second time all have been started."""
        looks.append(None)
        for process in multiprocessing.active_children() if len(looks) == 2 else ():
            os.kill(process.pid or 0, signal.SIGTERM)
        return False

    looks: list[None] = []
    execute(jobs, store, Processes(2), listen=listen, stop=look)
    assert len(signalled) >= 2
    kinds = [event.kind for event in events]
    assert "failed" not in kinds
    assert kinds.count("done") == len(jobs)
    stopped = [event for event in events if event.kind == "stopped"]
    assert {event.note for event in stopped} == {"another process continues it"}
    assert [event.job for event in stopped].count(jobs[0]) >= 2
    begun = [event.job for event in events if event.kind == "begun"]
    assert begun.count(jobs[0]) >= 2
    assert [store.result(job).status for job in jobs] == ["completed"] * len(jobs)
    assert multiprocessing.active_children() == []
    assert store.result(jobs[0]).metrics == undisturbed(jobs[0], tmp_path / "alone")


@pytest.mark.slow
def test_a_pool_may_give_the_job_of_a_dead_process_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first dies once, the second where it begins, again and again."""
    monkeypatch.setattr(processes._Pool, "retries", 2)
    jobs = product(FIXED | {"rounds": 500, "evaluate_every": 50}, {"seed": [0, 1]})
    store, events, killed = Store(tmp_path / "pool"), list[Event](), list[Job]()

    def listen(event: Event) -> None:
        events.append(event)
        once = event.job == jobs[0] and event.kind == "progress" and event.job not in killed
        if once or (event.job == jobs[1] and event.kind == "begun"):
            mark = store.folder(event.job) / ".working"
            while not mark.exists() or mark.stat().st_mtime < begun.get(event.job, 0):
                time.sleep(0.01)
            begun[event.job] = time.time()
            killed.append(event.job)
            os.kill(json.loads(mark.read_text())["process"], signal.SIGKILL)

    begun: dict[Job, float] = {}
    results = execute(jobs, store, Processes(2), listen=listen)
    assert [result.status for result in results] == ["completed", "failed"]
    assert results[1].reason == "its process was killed"
    assert (killed.count(jobs[0]), killed.count(jobs[1])) == (1, 3)
    notes = {event.note for event in events if event.kind == "stopped"}
    assert notes == {"its process was killed; another process continues it"}
    assert results[0].metrics == undisturbed(jobs[0], tmp_path / "alone")


def undisturbed(job: Job, folder: Path) -> list[dict[str, Any]]:
    """The metrics of a job that is done in this process, with the threads of one of two."""
    with torch_threads(max(1, (os.cpu_count() or 1) // 2)):
        (result,) = execute([job], Store(folder))
    return result.metrics


def kill_and_hold(job: Job, store: Store) -> int:
    """Kill the process of a job as one who waits for its lock; a descriptor that keeps the lock."""
    folder = store.folder(job)
    heir = os.open(folder / ".lock", os.O_RDWR)
    os.kill(json.loads((folder / ".working").read_text())["process"], signal.SIGKILL)
    fcntl.flock(heir, fcntl.LOCK_EX)
    return heir


@pytest.mark.slow
def test_a_lock_that_outlives_its_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One who waits for the lock has it when the process is killed, and keeps it for a while."""
    monkeypatch.setattr(processes._Pool, "retries", 2)
    monkeypatch.setattr(pool, "PAUSE", 0.1)
    job, other = product(FIXED | {"rounds": 500, "evaluate_every": 50}, {"seed": [0, 1]})
    store, notes, heirs = Store(tmp_path / "pool"), list[str](), list[int]()

    def listen(event: Event) -> None:
        if event.job == job and event.kind == "progress" and not heirs:
            heirs.append(kill_and_hold(job, store))
        if event.kind == "stopped":
            notes.append(event.note)
            if len(notes) == 4:
                os.close(heirs[0])

    results = execute([job, other], store, Processes(2), listen=listen)
    assert [result.status for result in results] == ["completed"] * 2
    assert notes[0] == "its process was killed; another process continues it"
    assert notes[1].endswith("the process that died is released")
    assert set(notes[2:]) == {""}
    assert results[0].metrics == undisturbed(job, tmp_path / "alone")


@pytest.mark.slow
def test_a_lock_that_is_never_free_is_a_failure_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes._Pool, "retries", 2)
    monkeypatch.setattr(pool, "PAUSE", 0.1)
    monkeypatch.setattr(pool, "PATIENCE", 0.5)
    job, other = product(FIXED | {"rounds": 500, "evaluate_every": 50}, {"seed": [0, 1]})
    store, heirs = Store(tmp_path), list[int]()

    def listen(event: Event) -> None:
        if event.job == job and event.kind == "progress" and not heirs:
            heirs.append(kill_and_hold(job, store))

    results = execute([job, other], store, Processes(2), listen=listen)
    os.close(heirs[0])
    assert [result.status for result in results] == ["failed", "completed"]
    assert f"another process works on {store.folder(job)}" in results[0].reason


def test_a_job_that_begins_twice_has_one_bar() -> None:
    board, job = Board(2, 0, Console(file=io.StringIO())), Run(**FIXED)
    for event in (Event(job, "begun"), Event(job, "begun"), Event(job, "progress", 1, 6)):
        board.show(event)
    assert len(board.progress.tasks) == 2  # of the job, and of all
    board.show(Event(job, "done"))
    assert [task.description for task in board.progress.tasks] == ["all"]


def test_processes_whose_leader_is_killed_save_themselves_and_leave_without_a_word(
    tmp_path: Path,
) -> None:
    code = (
        "import sys; from byzantium.runs import Processes, Store, execute, product\n"
        "if __name__ == '__main__':\n"
        "    jobs = product(dict(rounds=10**6, n=7, f=1, batch=8), dict(seed=[0, 1]))\n"
        "    execute(jobs, Store(sys.argv[1]), Processes(2))\n"
    )
    (tmp_path / "leader.py").write_text(code)
    jobs = product({"rounds": 10**6, "n": 7, "f": 1, "batch": 8}, {"seed": [0, 1]})
    store = Store(tmp_path / "results")
    command = [sys.executable, str(tmp_path / "leader.py"), str(store.root)]
    with (tmp_path / "said").open("w") as said, subprocess.Popen(command, stderr=said) as leader:
        while not all(store.result(job).metrics for job in jobs):
            assert leader.poll() is None
            time.sleep(0.05)
        leader.kill()
    while any(store.result(job).status == "running" for job in jobs):
        time.sleep(0.05)
    for job in jobs:
        log = (store.folder(job) / "run.log").read_text()
        assert "stopped; the next start continues from here" in log
    assert (tmp_path / "said").read_text() == ""


def test_what_is_done_is_not_done_again_and_failures_do_not_stop_the_rest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = product(FIXED, {"model": ["mlp", "cnn", "linear"]})  # digits are too small for the cnn
    events: list[Event] = []
    results = execute([*runs, runs[0]], store, listen=events.append)
    assert [event.kind for event in events if event.kind != "progress"] == [
        *("begun", "done", "begun", "failed", "begun", "done")
    ]
    (failed,) = (event for event in events if event.kind == "failed")
    assert failed.note.startswith("the model cnn is for images of 1 x 28 x 28")
    assert [result.job for result in results] == [*runs, runs[0]]
    assert [result.status for result in results] == [
        *("completed", "failed", "completed", "completed")
    ]
    assert results[1].reason == failed.note
    assert results[1] == store.result(runs[1])
    assert not (store.folder(runs[1]) / "summary.json").exists()
    again: list[Job] = []
    execute(runs, store, listen=lambda event: again.append(event.job))
    assert set(again) == {runs[1]}


def test_a_job_that_failed_says_why_until_it_is_tried_again(tmp_path: Path) -> None:
    store, job = Store(tmp_path), Mimicry(rule="Mean()", n=4, attackers=1, d=3, draws=2)
    log, failure = store.folder(job) / "run.log", store.folder(job) / "failed.json"
    log.mkdir(parents=True)
    for _ in range(2):
        (result,) = execute([job], store)
        assert (result.status, result.done) == ("failed", False)
        assert "run.log" in result.reason
        assert json.loads(failure.read_text()) == {"reason": result.reason}
        assert [other.reason for other in store] in ([], [result.reason])
    log.rmdir()
    assert perform(job, store.folder(job), stop=lambda: True) is None
    assert store.result(job).status == "unfinished"
    (result,) = execute([job], store)
    assert (result.status, result.reason) == ("completed", "")
    assert not failure.exists()


def test_what_could_not_be_written_is_still_in_the_results(tmp_path: Path) -> None:
    """The folder is a file; a job that another process holds is running."""
    store, (strange, busy) = Store(tmp_path), product(FIXED, {"seed": [0, 1]})
    tmp_path.mkdir(exist_ok=True)
    store.folder(strange).write_text("not a folder")
    with folder_lock(store.folder(busy)):
        results = execute([strange, busy], store)
    assert [result.done for result in results] == [False, False]
    assert results[0].status in ("failed", "damaged")
    assert str(store.folder(strange)) in results[0].reason
    assert results[1].reason == f"another process works on {store.folder(busy)}"


def test_a_stopped_sweep_begins_nothing_new(tmp_path: Path) -> None:
    store, begun = Store(tmp_path), list[Job]()

    def listen(event: Event) -> None:
        if event.kind == "begun":
            begun.append(event.job)

    runs = product(FIXED, {"seed": [0, 1, 2]})
    execute(runs, store, listen=listen, stop=lambda: bool(begun))
    assert begun == runs[:1]
    assert [store.result(run).done for run in runs] == [False] * 3


def test_an_estimate_probes_each_kind_of_run_once(tmp_path: Path) -> None:
    varied: dict[str, list[Any]] = {
        "seed": [0, 1],
        "attack": ["BitFlip()", "Mimic()"],
        "rule": ["Mean()", "Median()"],
    }
    runs, kinds = product(FIXED, varied), list[int]()
    seconds = estimate(runs, Store(tmp_path), lambda done, total: kinds.append(total))
    assert kinds == [4] * 4  # seeds are alike; attacks may search for long
    assert seconds > 0
    assert min(probe(runs[0])) >= 0
    assert probe(runs[0]).round > 0


def test_what_one_round_costs_is_not_counted_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round that takes half a second, as those do that compile, is not 1000 such rounds."""
    usual = Simulation._round

    def slow_once(self: Simulation, t: int) -> Any:
        if t == 3:
            time.sleep(0.5)
        return usual(self, t)

    monkeypatch.setattr(Simulation, "_round", slow_once)
    run = Run(n=5, f=1, rounds=1000, batch=2, rule="Mean()")
    assert estimate([run], Store("nowhere")) < 0.5 * 1000 / 4


def test_an_engine_with_the_former_method_works_with_a_warning(tmp_path: Path) -> None:
    class InOrder:
        def carry_out(self, jobs: Any, store: Store, listen: Any, stop: Any) -> None:
            for job in jobs:
                pool.perform_with_events(job, store.root, listen, stop)

    with pytest.warns(DeprecationWarning, match="carry_out of an engine is now execute"):
        (result,) = execute([Mimicry(n=7, attackers=1)], Store(tmp_path), InOrder())  # type: ignore[arg-type]
    assert result.done


def test_results_that_were_read_before_are_not_read_again(tmp_path: Path) -> None:
    store, job = Store(tmp_path), Mimicry(n=7, attackers=1)
    before = execute([job], store)
    (tmp_path / job.identity / "summary.json").unlink()
    assert execute([job], store, results=before) == before
    snapshot = Snapshot(tmp_path, before)
    assert [snapshot.result(job), *snapshot] == [*before, *before]
    assert store.result(job).status == "unfinished"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the metrics of each folder were read."""
    counts, metrics = Counter[str](), records.metrics

    def counted(path: Path, *rest: Any) -> Any:
        if path.exists():
            counts[path.parent.name] += 1
        return metrics(path, *rest)

    monkeypatch.setattr(records, "metrics", counted)
    return counts


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "mine.toml"],
        ["plan", "mine.toml", "--no-probe"],
        ["report", "results", "--markdown", "own.md", "--csv", "own.csv", "--table", "own.tex"],
        ["reproduce", "figure-mimic-demo", "--only", "mean", "--seeds", "1"],
    ],
    ids=lambda command: command[0],
)
def test_a_command_reads_each_finished_folder_once(
    command: list[str], read: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fixed = "\n".join(f"{name} = {value}" for name, value in FIXED.items())
    varies = '[varies]\nrule = ["Mean()", "Median()"]\nattack = ["BitFlip()", "Mimic()"]'
    Path("mine.toml").write_text(f"[fixed]\n{fixed}\n{varies}\n")
    for _ in range(2):  # what is not done yet, and what is
        for before in (["sweep", "mine.toml"], command):
            read.clear()
            assert CliRunner().invoke(main, before).exit_code == 0
        assert set(read.values()) == {1}
