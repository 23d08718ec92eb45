"""X is read, never copied: peak memory beside the input, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PEAKS = """
import gc, sys
from pathlib import Path
import torch, byzantium as bz

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

def take_little(text, X, most):
    rule = bz.parse(text)
    rule(X[:, :5000])
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    result = rule(X)
    extra = (resident("VmHWM") - before - result.nbytes) / X.nbytes
    assert extra <= most, f"{text} took {extra:.0%} of X"

# Of many rows, the products that are added up are many, too.
take_little("Krum(f=80)", torch.randn(400, 150_000), 0.10)

X = torch.randn(25, 800_000)
X[3] = torch.nan  # a rejected row must not be removed by copying the others
for text, most in (
    ("Krum(f=5)", 0.10),
    ("GeometricMedian()", 0.10),
    ("Bucketing(s=2) >> Krum(f=5)", 0.10),
    ("NearestNeighborMixing(f=5) >> Mean()", 0.10),
    ("Median()", 0.25),
    ("Bucketing(s=2) >> TrimmedMean(f=5)", 0.25),
    ("Bulyan(f=5)", 0.25),
):
    take_little(text, X, most)

# Named arrays are read where they are: beside the result, blocks of bounded size.
half = X.shape[1] // 2
named = [{"a": row[:half].clone(), "b": row[half:].reshape(-1, 2).clone()} for row in X]
del X
for text in ("Krum(f=5)", "GeometricMedian()", "Median()", "Bucketing(s=2) >> TrimmedMean(f=5)"):
    rule = bz.parse(text)
    rule([{name: array[:2500] for name, array in one.items()} for one in named])
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    result = rule(named)
    extra = resident("VmHWM") - before - sum(array.nbytes for array in result.values())
    assert extra <= 64e6, f"{text} of named arrays took {extra / 1e6:.0f} MB"
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory needs Linux")
@pytest.mark.usefixtures("two_threads")
def test_peak_memory_is_a_small_share_of_the_input() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PEAKS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
