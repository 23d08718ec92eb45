"""Every system of related work by `byzantium run`: listed, stopped and continued, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import members
import pytest
from checkpoints import same
from click.testing import CliRunner

import byzantium as bz
from byzantium import related
from byzantium.cli.main import main
from byzantium.learning import checkpoint
from byzantium.runs import Run, perform

SHORT = {"n": 12, "f": 2, "rounds": 10, "evaluate_every": 5, "model": "linear", "batch": 8}
# One run of each system, by the rule or the worker method that it is about.
RUNS: dict[str, dict[str, Any]] = {
    "SignVote": {"rule": "SignVote(size=0.01)"},
    "DivideAndConquer": {"rule": "DivideAndConquer()"},
    "LargestCluster": {"rule": "LargestCluster()"},
    "Safeguard": {"rule": "Safeguard(short=2, long=4, forgive=True)"},
    "ByzantineSGD": {"rule": "ByzantineSGD(v=0.4, t_a=9, t_b=3)"},
    "BlockGeometricMedian": {"rule": "BlockGeometricMedian(share=0.1)"},
    "Zeno": {"rule": "Zeno()", "root": 2},
    "MajorityVote": {
        "rule": "MajorityVote(r=3) >> Bucketing(s=2) >> Median()",
        "redundancy": 3,
    },
    "SAGA": {"rule": "GeometricMedian()", "worker": "SAGA()"},
    "Marina": {"rule": "Bucketing(s=2) >> GeometricMedian()", "worker": "Marina(p=0.4)"},
    "RSA": {"rule": "SignSum(penalty=0.02)", "worker": "RSA(penalty=0.02)"},
}


def run_of(name: str, **changes: Any) -> Run:
    return Run(**{"attack": "BitFlip()", "momentum": 0.9, **SHORT, **RUNS[name], **changes})


def test_each_system_has_a_run() -> None:
    systems = {name for name in related.__all__ if name[0].isupper()}
    assert systems - set(RUNS) == {"SignSum"}  # the server of RSA


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    run = run_of(name)
    assert perform(run, tmp_path / "whole") is not None
    assert perform(run.until(4), tmp_path / "parts") is None
    assert perform(run, tmp_path / "parts") is not None
    whole, parts = (tmp_path / each for each in ("whole", "parts"))
    assert (whole / "metrics.jsonl").read_bytes() == (parts / "metrics.jsonl").read_bytes()
    states = [checkpoint.load(each / "model.pt") for each in (whole, parts)]
    for state in states:
        state.pop("history")  # metrics.jsonl has it, and NaN is not equal to itself
    assert same(*states)


def test_the_log_of_a_run_says_whom_safeguard_drops(tmp_path: Path) -> None:
    perform(run_of("Safeguard", attack="BitFlip()", partition="iid()"), tmp_path)
    assert " drops 10, 11; 10 of 12 are left" in (tmp_path / "run.log").read_text()


def test_all_are_listed() -> None:
    result = CliRunner().invoke(main, ["list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for name in RUNS:
        assert f"{name}(" in result.output


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("Safeguard", {"participants": 6}, "all of them in each round, got participants=6"),
        ("ByzantineSGD", {"participants": 6}, "all of them in each round, got participants=6"),
        (
            "Safeguard",
            {"clock": "FedBuff(size=6)"},
            "all of them in each round, got clock='FedBuff",
        ),
        ("ByzantineSGD", {"topology": "ring"}, "all of them in each round, got topology='ring'"),
        ("MajorityVote", {"participants": 6}, "redundancy=3 needs participants=None, got .*=6"),
        ("MajorityVote", {"clock": "FedBuff(size=6)"}, "needs redundancy=1, got redundancy=3"),
        (
            "SAGA",
            {"topology": "ring", "rule": "Gossip()"},
            "server: set topology=None, got .*'ring'",
        ),
        ("Marina", {"participants": 6, "cache": True}, "set cache=False, got cache=True"),
        ("RSA", {"worker": "RSA(penalty=0.1)"}, r"got the rule SignSum\(penalty=0.02\)"),
        ("Zeno", {"topology": "ring"}, "topology='ring' needs root=0, got root=2"),
        ("MajorityVote", {"n": 14}, "n to be a multiple of redundancy, .* n=14, redundancy=3"),
        ("MajorityVote", {"redundancy": 1}, r"compute the same: redundancy=3 .*got redundancy=1"),
        ("MajorityVote", {"redundancy": 4}, r"compute the same: redundancy=3 .*got redundancy=4"),
        ("Zeno", {"root": 0}, r"Zeno\(f=2\) needs root data, .* got root=0"),
        ("RSA", {"rule": "Mean()"}, r"the rule SignSum\(penalty=0.02\) is for, got the rule Mean"),
        ("SAGA", {"local_steps": 2}, "set local_steps=1, got local_steps=2"),
        ("Marina", {"clock": "FedBuff(size=6)"}, "set clock='Synchronous"),
    ],
)
def test_what_does_not_fit_is_one_error(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence) as caught:
        run_of(name, **changes)
    assert len(str(caught.value).splitlines()) == 1


def test_votes_of_some_of_those_who_compute_the_same_are_fine() -> None:
    run_of("MajorityVote", redundancy=6)
    assert members.VOTE.mixing.redundancy == 3
