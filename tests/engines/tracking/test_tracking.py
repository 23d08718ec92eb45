"""What runs measure arrives in real trackers once, however often they are stopped and sent."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jail import jailed, needs_jail
from paths import SUPPORT
from programs import program

import byzantium as bz
from byzantium.engines.tracking import Tracked, Tracker, Tracking, tracking
from byzantium.engines.tracking.tracker import Before
from byzantium.runs import Event, Processes, Result, Run, Store, execute, pack, perform

RUN = Run(n=10, f=2, rule="Krum()", batch=8, rounds=12, evaluate_every=3, record=("weights",))


class Listed(Tracker):
    """A tracker that writes down what it is told, and fails where it is told to."""

    title = "the list"

    def __init__(self, root: Path, fails: str = "", before: Before = Before()) -> None:  # noqa: B008
        super().__init__(root)
        self.told: list[tuple[Any, ...]] = []
        self.fails, self.before = fails, before

    def _tell(self, *what: Any) -> None:
        if what[0] == self.fails:
            raise RuntimeError("the server\nis gone")
        self.told.append(what)

    def begin(self, tracked: Tracked) -> Before:
        self._tell("begin", tracked.identity)
        return self.before

    def log(self, tracked: Tracked, number: int, numbers: Mapping[str, float]) -> None:
        self._tell("log", tracked.identity, number, dict(numbers))

    def end(
        self, tracked: Tracked, status: str, summary: Mapping[str, Any], artifacts: Sequence[Path]
    ) -> None:
        texts = {path.name: path.read_text() for path in artifacts}
        self._tell("end", tracked.identity, status, dict(summary), texts)

    def close(self) -> None:
        self._tell("close")


def followed(root: Path, *trackers: Listed, jobs: Sequence[Run] = (RUN,), most: int = 1) -> None:
    with Tracking([], root) as following:
        following.trackers = list(trackers)
        execute(jobs, Store(root), Processes(most), following.show)


def rounds(tracker: Listed, identity: str) -> list[int]:
    return [told[2] for told in tracker.told if told[:2] == ("log", identity)]


# -- what a tracker is told ------------------------------------------------------------------------


def test_a_tracker_gets_each_evaluation_once_and_the_files_of_the_run(tmp_path: Path) -> None:
    tracker = Listed(tmp_path)
    followed(tmp_path, tracker)
    assert [told[0] for told in tracker.told] == ["begin", *["log"] * 4, "end", "close"]
    (result,) = Store(tmp_path)
    for told, line in zip(tracker.told[1:5], result.metrics, strict=True):
        assert told[2] == line["round"]
        assert told[3] == {k: line[k] for k in ("loss", "accuracy", "train_loss")}
    _, identity, status, summary, files = tracker.told[5]
    assert (identity, status) == (RUN.identity, "completed")
    assert summary == {k: v for k, v in result.summary.items() if not isinstance(v, dict)}
    folder = result.folder
    assert files.keys() == {"config.toml", "metrics.jsonl", "summary.json", "run.log"}
    for name in ("config.toml", "metrics.jsonl", "summary.json"):
        assert files[name] == (folder / name).read_text()


def test_other_processes_do_the_work_and_all_of_it_arrives(tmp_path: Path) -> None:
    jobs, tracker = [RUN.varied(seed=k) for k in range(3)], Listed(tmp_path)
    followed(tmp_path, tracker, jobs=jobs, most=2)
    for job in jobs:
        assert rounds(tracker, job.identity) == [3, 6, 9, 12]
    assert sum(told[0] == "end" for told in tracker.told) == 3


def test_a_run_that_is_stopped_goes_on_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    first = Listed(tmp_path)
    followed(tmp_path, first, jobs=[RUN.until(6)])
    assert rounds(first, RUN.identity) == [3, 6]
    assert [told[2] for told in first.told if told[0] == "end"] == ["stopped"]
    second = Listed(tmp_path, before=Before(6))
    followed(tmp_path, second)
    assert rounds(second, RUN.identity) == [9, 12]
    third = Listed(tmp_path, before=Before(12, ended=True))
    with Tracking([], tmp_path) as following:
        following.trackers = [third]
        following.send(Store(tmp_path).result(RUN))
    assert [told[0] for told in third.told] == ["begin", "close"]


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    tracker = Listed(tmp_path)
    job = RUN.varied(attack="NonFinite()", attackers=4)
    followed(tmp_path, tracker, jobs=[job])
    (ended,) = [told for told in tracker.told if told[0] == "end"]
    assert ended[2] == "failed"
    assert "can do without" in ended[3]["reason"]


def test_what_was_not_ended_is_stopped_at_the_end(tmp_path: Path) -> None:
    tracker = Listed(tmp_path)
    with Tracking([], tmp_path) as following:
        following.trackers = [tracker]
        following.show(Event(RUN, "begun"))
        following.show(Event(RUN.varied(seed=1), "busy"))
    assert [told[0] for told in tracker.told] == ["begin", "end", "close"]
    assert tracker.told[1][2] == "stopped"


@pytest.mark.parametrize("fails", ["begin", "log", "end", "close"])
def test_an_error_of_a_tracker_stops_neither_the_run_nor_other_trackers(
    tmp_path: Path, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, other = Listed(tmp_path, fails), Listed(tmp_path)
    with caplog.at_level(logging.WARNING, logger="byzantium"):
        followed(tmp_path, broken, other)
    (result,) = Store(tmp_path)
    assert result.status == "completed"
    assert rounds(other, RUN.identity) == [3, 6, 9, 12]
    said = [one.getMessage() for one in caplog.records if "the list" in one.getMessage()]
    assert len(said) == 1
    assert "RuntimeError: the server is gone" in said[0]
    assert "byzantium track sends what is missing" in said[0]


def test_a_pack_is_sent_as_a_folder_is(tmp_path: Path) -> None:
    perform(RUN, Store(tmp_path).folder(RUN))
    texts = []
    for _ in range(2):
        tracker = Listed(tmp_path)
        with Tracking([], tmp_path) as following:
            following.trackers = [tracker]
            for result in Store(tmp_path):
                following.send(result)
        (ended,) = [told for told in tracker.told if told[0] == "end"]
        texts.append({name: text for name, text in ended[4].items() if name != "run.log"})
        pack(Store(tmp_path), lambda job: "all")
    assert texts[0] == texts[1]
    assert Store(tmp_path).result(RUN).pack is not None


def test_a_sweep_is_a_group_with_files_of_its_own(tmp_path: Path) -> None:
    tracker, jobs = Listed(tmp_path), [RUN, RUN.varied(seed=1)]
    (tmp_path / "report.html").write_text("the page")
    with Tracking([], tmp_path) as following:
        following.trackers = [tracker]
        following.begin_group("sweep mine.toml", jobs)
        execute(jobs, Store(tmp_path), listen=following.show)
        following.attach([tmp_path / "report.html"])
    group = Tracked.together(reversed(jobs), "another name").identity
    assert tracker.told[0] == ("begin", group)
    assert tracker.told[-2] == ("end", group, "completed", {}, {"report.html": "the page"})
    assert Tracked.together(jobs[:1], "").identity != group


def test_unknown_trackers_and_missing_libraries_are_errors_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(bz.ByzantiumError, match="there is no tracker 'mlflo'"):
        Tracking(["mlflo"], tmp_path)
    for name in tracking.TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    accumulator = "tensorboard.backend.event_processing.event_accumulator"
    monkeypatch.setitem(sys.modules, accumulator, None)
    for name in tracking.TRACKERS:
        with pytest.raises(ImportError, match=rf"pip install '\.\[{name}\]'"):
            Tracking([name], tmp_path)


def test_no_tracker_is_imported_unless_it_is_asked_for(tmp_path: Path) -> None:
    code = f"""
import sys
from byzantium.cli import main
run = "run --n 4 --f 0 --rule Mean --rounds 1 --out".split()
main([*run, {str(tmp_path)!r}], standalone_mode=False)
main(["track", "--help"], standalone_mode=False)
import byzantium.engines.tracking.tracking
print(sorted({{"mlflow", "wandb", "tensorboard"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]")


# -- TensorBoard -----------------------------------------------------------------------------------


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars in all event files of a folder, of each file by itself."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events.*")):
        for event in loader.LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                number = value.simple_value if kind == "simple_value" else float("nan")
                found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_tensorboards_event_files_hold_each_evaluation_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: the extra tensorboard")
    store = Store(tmp_path)
    for job in (RUN.until(6), RUN):
        with Tracking(["tensorboard"], tmp_path) as following:
            execute([job], store, listen=following.show)
    (result,) = store
    with Tracking(["tensorboard"], tmp_path) as following:
        following.send(result)
    found = events(tmp_path / "tensorboard" / RUN.identity)
    for name in ("loss", "accuracy", "train_loss"):
        expected = [(line["round"], line[name]) for line in result.metrics]
        assert [step for step, _ in found[name]] == [3, 6, 9, 12]
        assert [x for _, x in found[name]] == pytest.approx([x for _, x in expected], rel=1e-6)
    assert len(found["configuration/text_summary"]) == 1
    assert len(found["status/text_summary"]) == 1
    assert "_hparams_/session_start_info" in found
    assert [one.job for one in Store(tmp_path)] == [RUN]  # its folder is no result


# -- MLflow ----------------------------------------------------------------------------------------


def scenario(name: str, folder: Path, **environment: str) -> dict[str, Any]:
    done = jailed(
        [sys.executable, SUPPORT / "tracked.py", name, folder],
        500,
        env={"PYTHONWARNINGS": "default", **environment},
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert told, done.stderr[-3000:]
    return dict(json.loads(told[-1].removeprefix("RESULT ")))


def by_key(items: list[dict[str, Any]]) -> dict[str, Any]:
    return {item["key"]: item["value"] for item in items}


@needs_jail
@pytest.mark.slow
def test_a_real_mlflow_server_has_runs_a_sweep_and_what_was_sent_afterwards(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: the extra mlflow")
    told = scenario("served", tmp_path)
    (stopped,) = told["stopped"]
    assert stopped["info"]["status"] == "KILLED"
    assert [metric["step"] for metric in stopped["accuracy"]] == [3, 6]

    runs = {by_key(run["data"]["tags"])["byzantium.identity"]: run for run in told["runs"]}
    files = {
        by_key(run["data"]["tags"])["byzantium.identity"]: files
        for run, files in zip(told["runs"], told["files"], strict=True)
    }
    assert len(runs) == len(told["runs"]) == 5  # two of one folder, two of a sweep, the sweep
    for result in [*Store(tmp_path / "results"), *Store(tmp_path / "swept")]:
        run = runs.pop(result.job.identity)
        assert run["info"]["status"] == "FINISHED"
        params = by_key(run["data"]["params"])
        for name in ("rule", "seed"):
            assert params[name] == str(getattr(result.job, name))
        steps = [(metric["step"], metric["value"]) for metric in run["accuracy"]]
        assert steps == [(line["round"], line["accuracy"]) for line in result.metrics]
        assert by_key(run["data"]["metrics"])["summary/accuracy"] == result.accuracy
        assert by_key(run["data"]["tags"])["byzantium.status"] == "completed"
        names = {"config.toml", "metrics.jsonl", "summary.json", "run.log"}
        assert names <= set(files[result.job.identity])
        if result.folder.parent.name == "results":
            assert "report.html" in files[result.job.identity]
    (sweep,) = runs.values()
    assert sweep["info"]["run_name"] == "sweep sweep.toml"
    children = [
        run
        for run in told["runs"]
        if by_key(run["data"]["tags"]).get("mlflow.parentRunId") == sweep["info"]["run_id"]
    ]
    assert len(children) == 2
    (identity,) = runs
    assert "report.html" in files[identity]
    # What was stopped and continued is one run.
    assert stopped["info"]["run_id"] in {run["info"]["run_id"] for run in told["runs"]}


@needs_jail
@pytest.mark.slow
def test_a_run_of_weights_and_biases_goes_on_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: the extra wandb")
    told = scenario("offline", tmp_path)
    first, second = told["runs"]
    (result,) = Store(tmp_path / "results")
    assert first["id"] == second["id"] == result.job.identity
    assert {one["project"] for one in told["runs"]} == {"trial"}
    assert [[line["step"] for line in run["history"]] for run in told["runs"]] == [[3, 6], [9, 12]]
    for line, measured in zip(first["history"] + second["history"], result.metrics, strict=True):
        assert line["accuracy"] == measured["accuracy"]
    assert second["config"]["rule"] == "Krum(f=2)"
    assert second["summary"]["summary/accuracy"] == result.accuracy
    assert {"config.toml", "metrics.jsonl", "report.html"} <= set(second["artifacts"])
    assert (first["exit"], second["exit"]) == (130, 0)


def test_an_mlflow_server_that_is_not_there_is_an_error_before_the_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: the extra mlflow")
    done = subprocess.run(
        program("run", "--rounds", "1", "--track", "mlflow"),
        cwd=tmp_path,
        env={
            **os.environ,
            "MLFLOW_TRACKING_URI": "http://127.0.0.1:9",  # nothing listens there
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "MLflow cannot be used" in done.stderr
    assert not (tmp_path / "results").exists()


def test_results_of_others_are_sent_as_they_are(tmp_path: Path) -> None:
    """Texts and numbers that would surprise a table of a tracker."""
    perform(RUN, Store(tmp_path).folder(RUN))
    (result,) = Store(tmp_path)
    lines = [{"round": 3, "loss": float("nan"), "accuracy": True, "weights": [1.0], "x": {"a": 1}}]
    strange = Result(RUN, result.folder, "completed", lines, {**result.summary, "data": {"a": "b"}})
    tracker = Listed(tmp_path)
    with Tracking([], tmp_path) as following:
        following.trackers = [tracker]
        following.send(strange)
    (logged,) = [told for told in tracker.told if told[0] == "log"]
    assert set(logged[3]) <= {"loss", "accuracy"}
    (ended,) = [told for told in tracker.told if told[0] == "end"]
    assert "data" not in ended[3]


def test_metrics_that_cannot_be_read_stop_nothing(tmp_path: Path) -> None:
    """Those of an unfinished job are written anew when it goes on."""
    store, tracker = Store(tmp_path), Listed(tmp_path)
    perform(RUN.until(6), store.folder(RUN))
    (store.folder(RUN) / "metrics.jsonl").write_text("no JSON\n")
    with Tracking([], tmp_path) as following:
        following.trackers = [tracker]
        following.show(Event(RUN, "begun"))
        execute([RUN], store, listen=following.show)
    assert rounds(tracker, RUN.identity) == [3, 6, 9, 12]
    damaged = RUN.varied(seed=1)
    perform(damaged, store.folder(damaged))
    (store.folder(damaged) / "summary.json").write_text("no JSON\n")
    with Tracking([], tmp_path) as following:
        following.trackers = [tracker]
        following.show(Event(damaged, "done"))
    assert tracker.told[-2][:3] == ("end", damaged.identity, "failed")
