"""What pages of the documentation show beside code that runs: commands, and the lines of a log."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pages
import pytest
from jail import jailed, needs_jail
from pages import DO

import byzantium as bz


def test_the_page_on_nan_shows_what_the_command_says(tmp_path: Path) -> None:
    page = DO / "nan.md"
    with pages.folder_of(page, tmp_path):
        pages.run_prompts(page)
        (said,) = pages.run_commands(page)
    assert "rejected" in said


class Federation:
    """Rounds of a strategy in which some nodes are honest and others are not."""

    def __init__(self, rule: str, f: float) -> None:
        pytest.importorskip("flwr", reason="flwr is not installed: its lines are not compared")
        from byzantium.engines.flower import RobustStrategy

        self.strategy = RobustStrategy(rule, f=f)

    def round(self, honest: int, kind: str, count: int) -> None:
        import federation
        from flwr.app import ConfigRecord

        wrong = {**federation.REJECTED, **federation.ABSENT}[kind]
        first = federation.FIRST + honest
        bad = {first + k: federation.hostile(wrong) for k in range(count)}
        grid = federation.Nodes(federation.honest_ones(honest) | bad)
        number = len(self.strategy.rounds) + 1
        model = federation.record(federation.plain())
        messages = self.strategy.configure_train(number, model, ConfigRecord(), grid)
        self.strategy.aggregate_train(number, grid.send_and_receive(messages))


def shown(page: str, caplog: pytest.LogCaptureFixture, which: int) -> None:
    """Assert that the lines of a block are those of the log, and forget these."""
    said = [record.getMessage() for record in caplog.records]
    for line in pages.blocks(DO / page, "text")[which].splitlines():
        assert line in said
    caplog.clear()


def test_the_page_on_nan_shows_the_lines_of_flower(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        Federation("GeometricMedian()", f=1).round(5, "NaN", 1)
    shown("nan.md", caplog, 0)


def test_the_page_on_lost_nodes_shows_the_lines_of_flower(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "flwr"):
        Federation("Bucketing(s=2) >> Krum()", f=0.2).round(13, "silence", 12)
        shown("lost-nodes.md", caplog, 0)
        lasting = Federation("GeometricMedian()", f=0.2)
        lasting.round(13, "silence", 12)
        assert not lasting.strategy.rounds[-1].kept
        lasting.round(9, "silence", 16)
        assert lasting.strategy.rounds[-1].cause == "no-majority"
        shown("lost-nodes.md", caplog, 1)


def test_the_pipeline_that_the_page_recommends_goes_on_with_those_that_are_left() -> None:
    for n in (25, 13, 9):
        federation = Federation("Bucketing(s='auto') >> GeometricMedian()", f=0.2)
        federation.round(n, "silence", 0)
        (at,) = federation.strategy.rounds
        assert len(at.used) == n
    assert federation.strategy.rule == bz.Bucketing(s="auto", f=2) >> bz.GeometricMedian()


@needs_jail
@pytest.mark.parametrize("rule", ["RootMatching(f=ranks - 1)", "GeometricMedian()"])
def test_ranks_of_which_most_attack_learn_with_root_data(tmp_path: Path, rule: str) -> None:
    with pages.folder_of(DO / "distributed.md", tmp_path):
        (program,) = tmp_path.glob("*.py")
        text = program.read_text()
        assert "RootMatching(f=ranks - 1)" in text
        program.write_text(text.replace("RootMatching(f=ranks - 1)", rule))
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1"]
        done = jailed([*torchrun, "--nproc-per-node=4", program], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"^accuracy (.*)", done.stdout, re.MULTILINE)
    assert float(accuracy) > 0.85 if "Root" in rule else float(accuracy) < 0.5
