"""A run is its configuration: written and read, hashed, carried out once, gone on with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import folders
import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from paths import ROOT
from threads import torch_threads

from byzantium.core import BusyError, option
from byzantium.core.options import options_of
from byzantium.learning import Settings, checkpoint
from byzantium.runs import Mimicry, Run, Store, perform
from byzantium.runs.job import NUMERICS
from byzantium.runs.packs import Packs
from byzantium.runs.records import read
from byzantium.runs.store import KINDS, job_in, job_of

SHORT = Run(rounds=8, evaluate_every=4, n=7, f=1, batch=8, attack="Mimic(warmup=1)")


runs = st.builds(
    Run,
    rule=st.sampled_from(["Krum()", "Bucketing(s=2) >> Median()", "CenteredClipping(radius=0.5)"]),
    attack=st.sampled_from(["NoAttack", "Mimic()", "Tuned(InnerProduct())"]),
    partition=st.sampled_from(["iid", "dirichlet(0.1)", "by_label()"]),
    model=st.sampled_from(["mlp", "mlp(hidden=8)", "cnn(scale=2)", "linear()"]),
    optimizer=st.sampled_from(["sgd", "adam(weight_decay=0.1)"]),
    attackers=st.none() | st.integers(0, 5),
    momentum=st.floats(0, 0.99),
    learning_rate=st.floats(1e-6, 10),
    seed=st.integers(0, 2**40),
    heavy_ball=st.booleans(),
    record=st.sampled_from([(), ("weights",), ("norm", "rejected")]),
)


@given(runs)
def test_a_run_is_read_back_from_toml_and_json(run: Run) -> None:
    assert job_of(tomllib.loads(run.toml())) == run
    values = json.loads(json.dumps(run.configuration()))
    again = job_of(values)
    assert again == run
    assert again.identity == run.identity
    assert pickle.loads(pickle.dumps(run)) == run


@given(runs, runs)
def test_only_equal_runs_share_an_identity(one: Run, other: Run) -> None:
    assert (one == other) == (one.identity == other.identity)


def test_one_run_written_differently_is_one_run() -> None:
    one = Run(rule="Bucketing(2)>>Krum()", attack="Mimic", model="mlp()", partition="iid")
    other = Run(rule="Bucketing(s=2) >> Krum(f=5)", attack="Mimic()", partition="iid()")
    assert one == other
    assert one.identity == other.identity
    assert Run(rule="Bucketing(s=2) >> Median()").identity != Run(rule="Median()").identity


def test_attackers_are_as_many_as_declared_unless_said() -> None:
    assert Run(f=5, attack="Mimic()").attacker_count == 5
    assert Run(f=5, attack="Mimic()", attackers=3).attacker_count == 3
    assert Run(f=5, attack="NoAttack()").attacker_count == 0


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"ruel": "Mean()"}, "a Run has no 'ruel'; did you mean 'rule'?"),
        ({"rule": "Krun()"}, "names 'Krun', which does not exist; did you mean 'Krum'?"),
        ({"rule": "Krum(f=3)"}, "Krum(f=3) says f=3 and the run says f=5"),
        ({"rule": "Bucketing(2)"}, "is only a mixing; it must end in a rule"),
        ({"rule": "Krum()", "n": 9}, "Krum(f=5) needs at least 2f + 3 = 13 vectors, got 9"),
        ({"rule": "Krum()", "participants": 9}, "2f + 3 = 13 vectors, got 9"),
        ({"attack": "Mimik"}, "did you mean 'Mimic'?"),
        ({"data": "mnits"}, "there is no data set 'mnits'; did you mean 'mnist'?"),
        ({"partition": "by_lable"}, "did you mean 'by_label'?"),
        ({"model": "cnm"}, "did you mean 'cnn'?"),
        ({"model": "mlp(hidden=0)"}, "mlp needs hidden >= 1, got hidden=0"),
        ({"model": "mlp >> mlp"}, "'mlp >> mlp'"),
        ({"optimizer": "sgd(momentum=-1)"}, "sgd needs momentum >= 0, got momentum=-1"),
        ({"rounds": 1.5}, "a whole number for rounds, got rounds=1.5"),
        ({"rounds": True}, "a whole number for rounds, got rounds=True"),
        ({"rounds": 0}, "needs rounds >= 1, got rounds=0"),
        ({"learning_rate": "fast"}, "a number for learning_rate, got learning_rate='fast'"),
        ({"learning_rate": float("nan")}, "needs learning_rate > 0"),
        ({"heavy_ball": 1}, "True or False for heavy_ball, got heavy_ball=1"),
        ({"record": "weights"}, "a list for record, got record='weights'"),
        ({"record": ["wieghts"]}, "can record"),
        ({"attackers": 25}, "needs honest workers: attackers < n, got 25 of 25"),
        ({"f": -1}, "a run needs f >= 0, got f=-1"),
        ({"attackers": -1}, "a run needs attackers >= 0, got attackers=-1"),
        ({"learning_rate": math.inf}, "needs a finite learning_rate, got learning_rate=inf"),
        ({"local_rate": math.inf}, "needs a finite local_rate, got local_rate=inf"),
        ({"learning_rate": 10**400}, "learning_rate within the range of float64"),
        ({"rounds": 10**400}, "rounds of at most 63 bits, got 1329 bits"),
        ({"rounds": 2**63}, "a run needs rounds of at most 63 bits, got 64 bits"),
        ({"seed": 2**64}, "seed of at most 64 bits, got 65 bits"),
        ({"rule": "Krum(f=2.5)"}, "Krum needs a whole number for f, got f=2.5"),
        ({"rule": "Krum() >> Mean()"}, "Krum(f=5) is a rule and ends a pipeline"),
        ({"model": "mlp(hidden=True)"}, "mlp needs a whole number for hidden, got hidden=True"),
        ({"optimizer": "sgd(momentum=inf)"}, "sgd needs a finite momentum, got momentum=inf"),
        ({"attack": "Mimic() >> Mimic()"}, "is not of the form 'name(argument=value)'"),
        ({"seed": -1}, "needs seed >= 0, got seed=-1"),
        ({"long_tail": 0.5}, "long_tail >= 1, got long_tail=0.5"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_in_one_sentence(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        Run.of(values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["rounds = ", "[1, 2]", "\0"], ids=repr)
def test_an_unreadable_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / ("run.json" if text.startswith("[") else "run.toml")
    path.write_text(text)
    with pytest.raises(ValueError, match=path.name):
        read(path)


def test_a_model_that_does_not_fit_the_images_is_refused() -> None:
    with pytest.raises(ValueError, match="cnn is for images of 1 x 28 x 28, those of digits are"):
        Run(model="cnn").simulation()


# -- carrying out ------------------------------------------------------------------------------


def test_a_run_leaves_its_configuration_metrics_and_summary(tmp_path: Path) -> None:
    store, seen = Store(tmp_path), []
    summary = perform(SHORT, store.folder(SHORT), lambda *event: seen.append(event))
    assert summary is not None
    names = {path.name for path in store.folder(SHORT).iterdir()}
    assert names == {"config.toml", "metrics.jsonl", "summary.json", "run.log", "model.pt", ".lock"}
    result = store.result(SHORT)
    assert result.status == "completed"
    assert [line["round"] for line in result.metrics] == [4, 8]
    last = [line["accuracy"] for line in result.metrics]
    assert result.accuracy == pytest.approx(sum(last) / 2)
    assert [event[:2] for event in seen] == [(t, 8) for t in range(1, 9)]
    assert "completed" in (store.folder(SHORT) / "run.log").read_text()


def test_metrics_hold_the_means_over_the_rounds_before(tmp_path: Path) -> None:
    run = SHORT.varied(record=("weights", "distance", "norm", "rejected"))
    run = run.varied(attack="NonFinite()", rule="Krum()")
    rounds = list(run.simulation())
    perform(run, tmp_path)
    for line, block in zip(
        folders.lines(tmp_path / "metrics.jsonl"), (rounds[:4], rounds[4:]), strict=True
    ):
        for name in ("distance", "norm"):
            mean = sum(record[name] for record in block) / 4
            assert line[name] == pytest.approx(mean, rel=1e-5)
        assert line["train_loss"] == pytest.approx(sum(r["loss"] for r in block) / 4, rel=1e-5)
        for worker, weight in enumerate(line["weights"]):
            assert weight == pytest.approx(sum(r["weights"][worker] for r in block) / 4, abs=1e-6)
        assert line["rejected"] == {"6": 4}


def test_a_finished_run_is_only_read(tmp_path: Path) -> None:
    first = perform(SHORT, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert perform(SHORT, tmp_path) == first
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_run_that_is_stopped_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    rounds = 0

    def stop() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds == 6

    run = SHORT.varied(momentum=0.9)
    assert perform(run, tmp_path / "stopped", stop=stop) is None
    stopped = Store(tmp_path).result(run)
    assert stopped.status == "missing"  # it is elsewhere
    assert len(folders.lines(tmp_path / "stopped" / "metrics.jsonl")) == 1
    perform(run, tmp_path / "stopped")
    perform(run, tmp_path / "whole")
    same_run(tmp_path / "stopped", tmp_path / "whole")


def same_run(one: Path, other: Path) -> None:
    assert (one / "metrics.jsonl").read_text() == (other / "metrics.jsonl").read_text()
    models = [checkpoint.load(folder / "model.pt")["model"] for folder in (one, other)]
    for name, weights in models[0].items():
        assert torch.equal(weights, models[1][name]), name


LONG = Run(rounds=400, evaluate_every=10, n=7, f=1, batch=8, attack="InnerProduct()", momentum=0.5)


def started(run: Run, folder: Path) -> subprocess.Popen[bytes]:
    """A process that carries a run out with one thread, when it has begun to write metrics."""
    code = (
        "import sys, tomllib, torch; from pathlib import Path; torch.set_num_threads(1); "
        "from byzantium.runs import Run, perform; "
        "from byzantium.runs.store import job_of; "
        "perform(job_of(tomllib.loads(sys.argv[1])), Path(sys.argv[2]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, run.toml(), str(folder)])
    while not folders.lines(folder / "metrics.jsonl"):
        assert process.poll() is None
        time.sleep(0.01)
    return process


def test_a_killed_run_frees_its_lock_and_goes_on_where_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path)
    process = started(LONG, store.folder(LONG))
    with pytest.raises(BusyError, match="another process works on"):
        perform(LONG, store.folder(LONG))
    assert store.result(LONG).status == "running"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    result = store.result(LONG)
    assert result.status == "unfinished"
    assert 0 < len(result.metrics) < 40

    with (store.folder(LONG) / "metrics.jsonl").open("a") as file:
        file.write('{"round": 999, "accu')  # torn
    with torch_threads(1):
        perform(LONG, store.folder(LONG))
        perform(LONG, tmp_path / "whole")
    assert store.result(LONG).status == "completed"
    same_run(store.folder(LONG), tmp_path / "whole")


def test_a_diverged_run_is_done_and_says_so(tmp_path: Path) -> None:
    run = SHORT.varied(rule="Mean()", learning_rate=1e30, rounds=50)
    summary = perform(run, tmp_path)
    assert summary is not None
    assert summary["accuracy"] is None
    folders.write(store := Store(tmp_path / "store"), run, (), summary)
    result = store.result(run)
    assert result.status == "diverged"
    assert result.round is not None
    assert 1 <= result.round < 50
    assert result.ending == summary["status"] == f"diverged in round {result.round}"


def test_a_summary_holds_the_digests_of_the_data_which_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, digests = tmp_path / "mine", dict[str, str]()
    folder.mkdir()
    for split in ("t10k", "train"):
        for name, shape in (("images-idx3", (30, 28, 28)), ("labels-idx1", (30,))):
            head = bytes((0, 0, 8, len(shape))) + b"".join(n.to_bytes(4, "big") for n in shape)
            contents = head + bytes(k % 10 for k in range(math.prod(shape)))
            (folder / f"{split}-{name}-ubyte").write_bytes(contents)
            digests[f"{split}-{name}-ubyte"] = f"sha256:{hashlib.sha256(contents).hexdigest()}"
    monkeypatch.setenv("BYZANTIUM_DATA", str(folder))
    run = SHORT.varied(data="mnist", model="linear")
    summary = perform(run, tmp_path / "one")
    assert summary is not None
    assert summary["data"] == digests
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["data"] == digests
    said = [line for line in caplog.messages if "not the published files of mnist: " in line]
    assert len(said) == 1
    assert all(str(folder / name) in said[0] for name in digests)
    # What another run of this process needs is at hand: nothing is read and hashed again.
    for path in folder.iterdir():
        path.unlink()
    again = perform(run.varied(seed=1), tmp_path / "two")
    assert again is not None
    assert again["data"] == digests
    assert [line for line in caplog.messages if "not the published files" in line] == said


def test_a_run_on_data_of_the_package_has_no_digests(tmp_path: Path) -> None:
    assert "data" not in (perform(SHORT, tmp_path) or {})


# -- the store -----------------------------------------------------------------------------------


def test_the_store_is_a_table(tmp_path: Path) -> None:
    store = Store(tmp_path)
    jobs = [SHORT, SHORT.varied(seed=1), Mimicry(rule="Krum", draws=2)]
    for job in jobs:
        perform(job, store.folder(job))
    (tmp_path / "something else").mkdir()
    table = store.table()
    assert sorted(table["identity"]) == sorted(job.identity for job in jobs)
    by_seed = table[table["kind"] == "Run"].set_index("seed")
    assert by_seed.loc[1, "accuracy"] == store.result(jobs[1]).accuracy
    table.to_csv(tmp_path / "table.csv", index=False)
    assert (tmp_path / "table.csv").read_text().count("\n") == 4


def test_results_of_older_numerics_are_not_ours_and_those_of_another_job_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    perform(SHORT, tmp_path / SHORT.identity_in(NUMERICS - 1))
    caplog.clear()
    assert list(store) == []
    (line,) = caplog.messages
    assert f"{SHORT.identity_in(NUMERICS - 1)} is skipped: it was made with numerics" in line
    perform(SHORT, tmp_path / "0123456789abcdef")
    caplog.clear()
    assert list(store) == []
    (line,) = caplog.messages
    assert line.endswith("0123456789abcdef is skipped: its config.toml is that of another job")


def test_a_folder_without_a_configuration_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    perform(SHORT, store.folder(SHORT))
    (store.folder(SHORT) / "config.toml").unlink()
    caplog.clear()
    assert list(store) == []
    (line,) = caplog.messages
    assert line.endswith(f"{SHORT.identity} is skipped: it has no config.toml")


# -- fields that come later ----------------------------------------------------------------------


def grown(later: bool) -> type[Run]:
    """The class of runs with one field more."""
    field = ("patience", int, option(3, "Rounds without progress.", later=later))
    return dataclasses.make_dataclass("Run", [field], bases=(Run,), frozen=True)


def test_a_field_that_came_later_leaves_earlier_results_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, kind = Store(tmp_path), grown(later=True)
    perform(SHORT, store.folder(SHORT))
    values = read(store.folder(SHORT) / "config.toml")
    values.pop("kind")
    again = kind.of(values)
    assert again.configuration()["patience"] == 3
    assert again.identity == SHORT.identity
    assert store.result(again).status == "completed"
    monkeypatch.setitem(KINDS, "Run", kind)
    assert [result.job for result in store] == [again]
    assert "passed over" not in caplog.text
    # Any other value is another job, and what is written can be read.
    other = again.varied(patience=4)
    assert other.identity != SHORT.identity
    perform(other, store.folder(other))
    assert {result.job for result in store} == {again, other}


def test_a_field_that_is_not_said_to_be_later_makes_other_jobs() -> None:
    assert grown(later=False)(rounds=3).identity != Run(rounds=3).identity


def test_every_result_in_the_repository_has_the_identity_of_its_configuration() -> None:
    """A field that is added to a job must be `later`, or all of these are lost."""
    repository = ROOT
    found = Packs(repository / "results")
    if not list(found):
        pytest.skip("not a clone of the repository")
    assert len(list(found)) > 500
    for identity in found:
        assert job_in(found[identity]).identity == identity


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
def test_a_damaged_result_is_named_and_the_others_are_read(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, whole = Store(tmp_path), SHORT.varied(seed=1)
    for job in (SHORT, whole):
        perform(job, store.folder(job))
    damaged = store.folder(SHORT) / name
    damaged.write_text("{\n")
    assert [result.job for result in store] == [whole]
    assert f"{damaged} cannot be read" in caplog.text
    if name != "config.toml":
        with pytest.raises(ValueError, match=re.escape(f"{damaged} cannot be read")):
            store.result(SHORT)
    assert damaged.read_text() == "{\n"  # nothing is repaired behind anyone's back


def test_an_unknown_kind_of_job_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no kind of job 'Rnu'; there are Run, Mimicry"):
        job_of({"kind": "Rnu"})


def test_former_names_of_options_are_read_and_leave_identities_as_they_are() -> None:
    run = Run(optimizer="adam")
    assert Run.of({"optimiser": "adam"}) == run == Run().varied(optimiser="adam")
    assert "optimiser" not in run.toml()
    with pytest.warns(DeprecationWarning, match="optimiser= is now optimizer="):
        assert Run(optimiser="adam").identity == run.identity  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="Run.q is now attacker_count"):
        assert run.q == 5
    with pytest.raises(ValueError, match="optimizer and optimiser are the same option"):
        Run.of({"optimizer": "sgd", "optimiser": "adam"})
    with pytest.warns(DeprecationWarning, match="q= is now attackers="):
        assert Mimicry(n=10, q=2) == Mimicry.of({"n": 10, "q": 2}) == Mimicry(n=10, attackers=2)  # type: ignore[call-arg]


def test_defaults_have_the_spelling_of_runs() -> None:
    """Otherwise commands in reports would have options that do not differ."""
    usual = Run()
    assert {o.name: o.default for o in options_of(Run)} == {
        o.name: getattr(usual, o.name) for o in options_of(Run)
    }


def test_settings_and_runs_declare_their_options_once() -> None:
    shared = {field.name: field for field in dataclasses.fields(Settings)}
    assert set(shared) < {field.name for field in dataclasses.fields(Run)}
    for field in dataclasses.fields(Run):
        if field.name in shared.keys() - {"attackers", "momentum"}:
            assert field is shared[field.name]
        if field.name == "momentum":  # which has another default
            assert field.metadata == shared[field.name].metadata
