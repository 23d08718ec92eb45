"""Where llvmlite cannot be imported, all rules are right by plain torch, and one line says so."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import inputs
import members
import numpy as np
import pytest
import torch
from paths import SUPPORT
from torch import Tensor

from byzantium._kernels import torch_passes
from byzantium._kernels.backend import cpu_backend

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


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_all_members_agree_with_the_passes_over_many_rows(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale, few = float(matrix(dtype).norm(dim=1).median()), results(dtype)
    for module in ("compiled_passes", "conjugate_gradients"):
        monkeypatch.setattr(f"byzantium._kernels.{module}.MANY", 1)
    monkeypatch.setattr("byzantium._kernels.subset_sums.saves_work", lambda _: True)
    for member, one, other in zip(members.EVERYTHING, few, results(dtype), strict=True):
        assert (one[0] - other[0]).abs().max() <= TOLERANCE[dtype] * scale, member.rule
        assert torch.allclose(one[1], other[1], atol=1e-6), member.rule


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("d", [0, 1, 40, 1500, 20_000])
@pytest.mark.parametrize("n", [1, 2, 13, 40])
def test_networks_of_torch_find_what_sorting_finds(n: int, d: int, dtype: torch.dtype) -> None:
    X = inputs.gaussian(n, d).to(dtype)
    before, order = X.clone(), X.sort(dim=0).values.double()
    for count in {2 - n % 2, n - 2 * (n // 4)}:
        low, out = (n - count) // 2, torch.full((d,), torch.nan, dtype=dtype)
        peak = torch_passes.central_mean(X, np.arange(n), None, count, False, out)
        expected = order[low : low + count].mean(dim=0)
        tolerance = torch.finfo(dtype).eps
        assert torch.allclose(out.double(), expected, rtol=tolerance, atol=4 * tolerance)
        assert peak == (float(X.abs().max()) if d else 0)
    for count in {n - n // 4, max(1, n // 2)}:
        plain, compiled = torch.empty(2, d, dtype=dtype)
        torch_passes.central_mean(X, np.arange(n), None, count, True, plain)
        cpu_backend().central_mean(X, np.arange(n), None, count, True, compiled)
        assert torch.allclose(plain, compiled, rtol=1e-6, atol=1e-6)
    assert torch.equal(X, before)
    if d:
        X[n // 2, d - 1] = torch.nan
        out = torch.empty(d, dtype=dtype)
        assert math.isnan(torch_passes.central_mean(X, np.arange(n), None, 2 - n % 2, False, out))


def test_pieces_of_columns_are_of_one_size() -> None:
    """None is so small that its operations would not be worth their start."""
    for column, d in itertools.product((4, 100, 4000, 10**6), (1, 999, 8191, 50_000, 1_199_882)):
        pieces = torch_passes.sorted_pieces(column, d, 2 << 20)
        assert [first for first, _ in pieces] == [0, *(last for _, last in pieces[:-1])]
        assert pieces[-1][1] == d
        assert len(pieces) == 1 or pieces[-1][1] - pieces[-1][0] > 4000


def test_one_line_says_what_is_lost(without: tuple[Path, str]) -> None:
    (line,) = [line for line in without[1].splitlines() if "llvmlite" in line]
    assert line.startswith("llvmlite cannot be used (")
    assert line.endswith("): rules run in plain torch, right but slower")
