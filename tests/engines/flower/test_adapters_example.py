"""The example of a federation that trains LoRA adapters, in Flower's simulation."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from jail import jailed, needs_jail
from paths import ROOT

pytest.importorskip("flwr")
pytest.importorskip("peft")
pytest.importorskip("ray")


@pytest.mark.slow
@needs_jail
def test_the_mean_fails_and_a_robust_rule_does_not(tmp_path: Path) -> None:
    output = tmp_path / "output"
    # The processes of Ray need a moment to end.
    command = f"{sys.executable} {ROOT}/examples/flower/launch.py adapters > {output}; sleep 20"
    with TemporaryDirectory() as short:  # the paths of Ray's sockets have at most 107 characters
        jailed(["sh", "-c", command], 900, env={"TMPDIR": short, "PYTHONWARNINGS": "ignore"})
    lines = output.read_text().splitlines()
    assert "finished:completed" in lines, lines
    cells = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    measured = {name: [float(x) for x in numbers if x] for name, *numbers in cells[2:]}
    assert measured["before"] == [0.0]
    for rule in ("GeometricMedian()", "Krum()"):
        honest, poisoned = measured[rule]
        assert min(honest, poisoned) > 90
    for rule in ("FedAvg", "Mean()"):
        assert measured[rule][1] < 50
