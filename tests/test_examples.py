"""The short examples print what is kept beside them; the pictures are made by the two scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = ("camps", "training_loop", "simulation", "state_dicts", "your_own")


def printed(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_is_kept_beside_it(name: str) -> None:
    kept = ROOT / "examples" / "output" / f"{name}.txt"
    assert printed(f"examples/{name}.py") == kept.read_text()


def test_what_is_kept_is_of_these_examples() -> None:
    assert {path.stem for path in (ROOT / "examples" / "output").iterdir()} == set(EXAMPLES)
