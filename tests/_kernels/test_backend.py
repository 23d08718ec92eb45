"""Where llvmlite cannot be imported, all rules are right by plain torch, and one line says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import inputs
import members
import pytest
import torch
from paths import SUPPORT
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}

# Two threads begin at once, so that either may be the first to miss it.
WITHOUT = """
import sys
sys.path[:0] = sys.argv[2:]
sys.modules["llvmlite"] = None  # whoever imports it gets an ImportError
from concurrent.futures import ThreadPoolExecutor
import torch
import test_backend as here
with ThreadPoolExecutor(2) as pool:
    found = [pair for pairs in pool.map(here.results, here.TOLERANCE) for pair in pairs]
assert "byzantium._kernels.compiled_passes" not in sys.modules
torch.save(found, sys.argv[1])
"""


def matrix(dtype: torch.dtype) -> Tensor:
    return inputs.heterogeneous(members.N, 300).to(dtype)


def results(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """The aggregate of every member, and who counted."""
    reports = (
        member.fresh().explain(matrix(dtype), torch.Generator().manual_seed(7))
        for member in members.EVERYTHING
    )
    return [(r.aggregate, r.weights) for r in reports if r.weights is not None]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The results of a process without llvmlite, and what it said."""
    path = tmp_path_factory.mktemp("without") / "found.pt"
    command = [sys.executable, "-c", WITHOUT, str(path), str(SUPPORT), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return path, done.stderr


def test_all_members_agree_with_the_compiled_passes(without: tuple[Path, str]) -> None:
    found = torch.load(without[0], weights_only=True)
    assert len(found) == len(TOLERANCE) * len(members.EVERYTHING)
    for dtype, tolerance in TOLERANCE.items():
        scale = float(matrix(dtype).norm(dim=1).median())
        for member, (expected, weights) in zip(members.EVERYTHING, results(dtype), strict=True):
            plain, counted = found.pop(0)
            assert plain.dtype == dtype
            assert (plain - expected).abs().max() <= tolerance * scale, member.rule
            assert torch.allclose(counted, weights, atol=1e-6), member.rule


def test_one_line_says_what_is_lost(without: tuple[Path, str]) -> None:
    (line,) = [line for line in without[1].splitlines() if "llvmlite" in line]
    assert line.startswith("llvmlite cannot be used (")
    assert line.endswith("): rules run in plain torch, right but slower")
