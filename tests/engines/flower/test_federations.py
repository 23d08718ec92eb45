"""Real federations of Flower, where the loopback address is the only network.

Runs are judged by what the SuperLink says of them and by the replies that were used.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import SUPPORT

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)
pytest.importorskip(
    "ray", reason="ray is not installed: pip install '.[flower-simulation]' brings it"
)
if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
    pytest.skip(
        "REAL FEDERATIONS ARE NOT TESTED: a network of their own needs root, unshare and ip",
        allow_module_level=True,
    )

HERE = SUPPORT
# All that is started inside ends with it.
JAIL = ["unshare", "-n", "-p", "-f", "--kill-child", "--mount-proc", "bash", "-c"]
INSIDE = 'ip link set lo up && "$@"'


def seen(name: str, work: Path, seconds: float) -> dict[str, Any]:
    """What one of the scenarios saw."""
    command = [sys.executable, str(HERE / "flower_scenarios.py"), name, str(work)]
    jailed = subprocess.Popen(
        [*JAIL, INSIDE, "--", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        told, errors = jailed.communicate(timeout=seconds)
    finally:
        jailed.kill()  # a signal that can be ignored would be
        jailed.wait()
    lines = [line for line in told.splitlines() if line.startswith("SEEN ")]
    assert lines, told + errors
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("SEEN "))
    assert found["left"] == []
    return found


def test_a_simulation_completes_with_the_replies_that_can_be_used(tmp_path: Path) -> None:
    found = seen("simulation", tmp_path, 400)
    assert found["status"] == "finished:completed", found
    assert found["used"] == {"1": 5, "2": 5}
    assert found["accuracy"]["2"] > 0.85
    for at in found["rounds"]:
        assert len(at["rejected"]) == 1
        assert not at["kept"]
        liar = max(at["distances"], key=at["distances"].__getitem__)
        assert at["weights"][liar] == min(at["weights"].values())


@pytest.mark.slow
def test_a_deployment_survives_two_liars_a_killed_node_and_a_killed_server(tmp_path: Path) -> None:
    found = seen("deployment", tmp_path, 1500)
    assert found["clean status"] == found["status"] == "finished:completed", found
    assert found["killed"].startswith("finished:")
    assert found["killed"] != "finished:completed"
    assert found["resumed"]
    clean = max(found["clean"]["accuracy"].values())
    assert found["result"]["accuracy"]["5"] >= 0.95 * clean
    rounds = found["rounds"]
    assert [at["number"] for at in rounds] == [1, 2, 3, 4, 5]
    (nan,) = {node for at in rounds for node in at["rejected"]}
    assert all(list(at["rejected"]) == [nan] for at in rounds)
    told = found["result"]["nodes"]
    assert [
        word for node in told for word in ("rejected", "unheard", "absent") if f": {word}" in node
    ] == [
        "rejected",
        "unheard",
        "absent",
    ]
    # The killed node is among those who were asked once more, and then no longer.
    assert len(rounds[0]["used"]) == 5
    assert any(at["absent"] for at in rounds)
    assert len(rounds[-1]["sampled"]) == 5
    assert not any(at["kept"] for at in rounds)


@pytest.mark.slow
def test_one_honest_node_against_one_liar_ends_in_a_clear_error(tmp_path: Path) -> None:
    found = seen("four_nodes", tmp_path, 1500)
    assert found["status"] == "finished:failed", found
    assert "the model was left unchanged in 3 rounds in a row" in found["log"]
    assert all(at["kept"] for at in found["rounds"])


@pytest.mark.slow
def test_a_node_that_pushes_no_protobuf_is_rejected_and_the_others_train(tmp_path: Path) -> None:
    found = seen("corrupt", tmp_path, 900)
    assert found["status"] == "finished:completed", found
    assert found["used"] == {"1": 4, "2": 4}
    assert found["accuracy"]["2"] > 0.85
    for at in found["rounds"]:
        assert at["rejected"] == {str(found["bad"]): "cannot be read: DecodeError"}
        assert not at["absent"]


@pytest.mark.slow
def test_encrypted_and_known_nodes_only(tmp_path: Path) -> None:
    found = seen("tls", tmp_path, 900)
    assert found["status"] == "finished:completed", found
    assert found["online"] == 3
    assert found["stranger"] not in (None, 0)
    assert found["used"] == {"1": 3}
