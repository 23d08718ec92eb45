"""What cannot be promised is said: on the console before and after a run, in logs, by engines."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import members
import pytest
from click.testing import CliRunner
from members import EVERYTHING
from programs import program

import byzantium as bz
from byzantium.cli import main
from byzantium.guarantees import announce, gap, guarantee
from byzantium.guarantees import guarantee as module
from byzantium.learning import Settings
from byzantium.learning.metrics import early_heterogeneity
from byzantium.runs import Processes, Run, Store, execute

SMALL = {"rounds": 2, "batch": 4, "evaluate_every": 1, "n": 10}
BEYOND = ": no rule that sees vectors alone promises descent here"
HALF = "5 of 10 may be Byzantine; if half or more are, nobody can tell who is honest"
GAP = "GeometricMedian() tolerates less than 1/2 of its vectors Byzantine, but may meet 4 of 5"


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules[module.__module__], "_LOGGED", set())
    monkeypatch.chdir(tmp_path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# -- on the console -------------------------------------------------------------------------------


def test_a_run_says_before_and_after_in_one_line_that_nothing_is_promised() -> None:
    """The program, as a user starts it."""
    command = program("run", "--n", "10", "--f", "4", "--attack", "BitFlip()", "--rounds", "2")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    rule = "Bucketing(s=2) >> GeometricMedian()"
    before = f"no guarantee: {rule} for 10 vectors, 4 of them Byzantine: {GAP}"
    assert done.stderr.splitlines()[0] == before
    assert [line[:9] for line in done.stderr.splitlines()[1:]] == ["1/1 done:"]
    closing = done.stdout.splitlines()[0]
    assert closing.startswith("completed, accuracy ")
    assert f"; no guarantee: {GAP}; 4 of 10 need B² < 0.5; yours is " in closing
    (log,) = Path("results").glob("*/run.log")
    assert log.read_text().count(f"WARNING {before}\n") == 1


@pytest.mark.parametrize("attack", [[], ["--attack", "BitFlip()", "--attackers", "1"]])
def test_that_half_may_be_bad_is_said_whoever_attacks(
    attack: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    command = ["run", "--n", "10", "--f", "5", "--rounds", "2", *attack]
    for beginning in ("completed, ", "done before: completed, "):
        closing = CliRunner().invoke(main, command).stdout.splitlines()[0]
        assert closing.startswith(beginning)
        assert closing.endswith(f"; no guarantee: {HALF}")
    assert set(warnings(caplog)) == {f"no guarantee: {HALF}"}


def test_a_run_says_in_the_end_that_its_honest_vectors_differ_beyond_the_limit() -> None:
    command = ["run", "--rounds", "3", "--model", "linear"]
    for beginning in ("completed, ", "done before: completed, "):
        closing = CliRunner().invoke(main, command).stdout.splitlines()[0]
        assert closing.startswith(beginning)
        assert closing.endswith(BEYOND)
    (result,) = Store("results")
    assert isinstance(result.job, Run)
    b2 = early_heterogeneity(result.metrics)
    assert b2 is not None
    assert f"evaluations); 5 of 25 need B² < 3; yours is {b2:.3g}: " in closing
    assert b2 > 3
    below = [
        ["--partition", "iid()"],  # B² is below the limit
        ["--f", "0"],
        ["--rule", "RootMatching()", "--root", "2"],  # the limit does not bind it
    ]
    for options in below:
        told = CliRunner().invoke(main, [*command, *options])
        assert told.exit_code == 0
        assert "B²" not in told.stdout


def test_a_run_of_which_something_is_promised_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for rule, f in (("GeometricMedian()", "2"), ("Mean()", "0")):
        options = ["--n", "10", "--rounds", "2", "--rule", rule, "--f", f]
        told = CliRunner().invoke(main, ["run", *options])
        assert told.exit_code == 0
        assert "guarantee" not in told.output
    assert warnings(caplog) == []


def test_a_sweep_says_it_once_for_each_rule_n_and_f(caplog: pytest.LogCaptureFixture) -> None:
    Path("mine.toml").write_text(
        "[fixed]\nn = 10\nrounds = 2\nbatch = 4\n[varies]\nseed = [0, 1]\nf = [2, 5]\n"
        'rule = ["Mean()", "Median()"]\nattack = ["BitFlip()", "Mimic()"]\n'
    )
    told = CliRunner().invoke(main, ["sweep", "mine.toml"])
    mean = "Mean() tolerates no Byzantine vectors, but may meet 2 of 10"
    assert warnings(caplog)[:2] == [
        f"no guarantee: Mean() for 10 vectors, 2 of them Byzantine: {mean}",
        f"no guarantee: {HALF}",
    ]
    assert told.stdout.splitlines()[-1] == (
        "no guarantee: Mean() with 2 of 10, 5 of 10 Byzantine; Median() with 5 of 10 Byzantine "
        "(why: byzantium check)"
    )
    for log in Path("results").glob("*/run.log"):  # of each job, in whichever process
        covered = "covered: squared error" in log.read_text()
        assert covered != ("WARNING no guarantee: " in log.read_text())


def test_the_tables_of_the_benchmark_are_followed_by_it(caplog: pytest.LogCaptureFixture) -> None:
    command = ["benchmark", "--rounds", "1", "--seeds", "1", "--only", "mean iid f=1 mimic"]
    closing = CliRunner().invoke(main, command).stdout.splitlines()[-1]
    assert closing == "no guarantee: Mean() with 1 of 25 Byzantine (why: byzantium check)"
    assert warnings(caplog)[0].startswith(
        "no guarantee: Mean() for 25 vectors, 1 of them Byzantine: "
    )


# -- in Python ------------------------------------------------------------------------------------


def test_settings_in_which_half_may_attack_are_accepted_and_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        Settings(n=5, attackers=3, rounds=1)
        Settings(n=25, attackers=5, rounds=1, participants=8)
        Settings(n=25, attackers=5, rounds=1)
    assert [said.partition(";")[0] for said in warnings(caplog)] == [
        "no guarantee: 3 of 5 may be Byzantine",
        "no guarantee: 5 of 8 may be Byzantine",
    ]


def test_jobs_in_python_are_warned_of_before_they_begin_and_results_are_read_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [Run.of({**SMALL, "f": 5, "seed": seed}) for seed in (0, 1)]
    assert warnings(caplog) == []
    execute(runs, Store("results"), Processes(1))
    assert [run.gap() for run in runs] == [HALF, HALF]
    assert warnings(caplog)[0] == f"no guarantee: {HALF}"
    for run in runs:
        text = (Store("results").folder(run) / "run.log").read_text()
        assert text.count(f"no guarantee: {HALF}") == 1
    caplog.clear()
    assert len(list(Store("results"))) == len(runs)
    assert warnings(caplog) == []


def test_as_many_may_be_bad_as_are_declared_or_attack_and_take_part() -> None:
    attack = {"attack": "BitFlip()", "rule": "GeometricMedian()"}
    for fields, bad in (
        ({"f": 2}, 2),
        ({"f": 2, "attackers": 1}, 2),
        ({"f": 2, "attackers": 3}, 3),
        ({"f": 3, "participants": 2}, 2),
    ):
        run = Run.of({**SMALL, **attack, **fields})
        assert (run.vectors, run.bad) == (run.participants or 10, bad)
        assert bool(run.gap()) == (2 * bad >= run.vectors)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_a_gap_is_what_the_guarantee_says_and_half_is_one_for_all(member: members.Rule) -> None:
    for n, f in ((members.N, members.F), (members.N, 0)):
        assert gap(member.rule, n, f) == guarantee(member.rule, n, f).gap
    assert "half or more" in gap(member.rule, 2 * members.F, members.F)
    assert gap(None, members.N, members.F) == ""


def test_engines_that_know_only_the_rule_warn_where_half_of_the_vectors_may_be_bad(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The merging of files and torch.distributed: the f is that of the rule."""
    announce(bz.Bucketing(s="auto", f=5) >> bz.GeometricMedian(), 10)
    assert warnings(caplog) == [f"no guarantee: {HALF}"]


def test_flower_warns_where_half_of_the_sampled_nodes_may_be_bad(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("flwr", reason="flwr is not installed: pip install '.[flower]'")
    import federation
    from flwr.app import ConfigRecord

    from byzantium.engines.flower import RobustStrategy

    strategy = RobustStrategy("GeometricMedian()", f=5)
    nodes = federation.Nodes(federation.honest_ones(10))
    for number in (1, 2):
        arrays = federation.record(federation.plain())
        assert list(strategy.configure_train(number, arrays, ConfigRecord(), nodes))
    assert [said for said in warnings(caplog) if "guarantee" in said] == [f"no guarantee: {HALF}"]
