"""Jobs in FLARE's own simulator and in its POC mode, where loopback is the only network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jail import jailed, needs_jail
from paths import SUPPORT

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install '.[nvflare]'")

pytestmark = [pytest.mark.slow, needs_jail]


def seen(name: str, work: Path) -> dict[str, Any]:
    """What one of the scenarios saw."""
    # Warnings of FLARE's own processes are not ours to make errors of.
    command: list[str | Path] = [sys.executable, SUPPORT / "flare_scenarios.py", name, work]
    done = jailed(command, 560, env={"PYTHONWARNINGS": "default"})
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, (done.stdout + done.stderr)[-6000:]
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("SEEN "))
    return found


def test_the_simulator_trains_with_the_results_that_can_be_used(tmp_path: Path) -> None:
    found = seen("simulator", tmp_path)
    assert [at["number"] for at in found["rounds"]] == [1, 2]
    for at in found["rounds"]:
        assert list(at["rejected"]) == ["site-1"]
        assert list(at["absent"]) == ["site-3"]
        assert at["absent"]["site-3"].startswith("error: ")
        assert at["weights"]["site-2"] == min(at["weights"].values())
        assert not at["kept"]
    assert found["accuracy"] > 0.8


def test_processes_train_on_when_one_of_them_is_killed(tmp_path: Path) -> None:
    found = seen("poc", tmp_path)
    assert [at["number"] for at in found["rounds"]] == [1, 2, 3], found["log"]
    for at in found["rounds"]:
        assert "site-1" in at["rejected"]
        assert at["weights"]["site-2"] == min(at["weights"].values())
        assert not at["kept"]
    assert "site-3" in found["rounds"][0]["used"]
    assert "site-3" not in found["rounds"][2]["used"]
