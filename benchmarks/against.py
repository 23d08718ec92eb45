"""The time of each rule, over that of an earlier commit.

    python benchmarks/against.py REVISION

Processes of both commits alternate, so that a change of the machine's speed meets both. The time of
a rule is the median over the processes of its fastest call; the spread is that of the ratios of
neighboring processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from rich.progress import track

ROOT = Path(__file__).parent.parent
RULES = (
    "Mean()",
    "Krum(f=5)",
    "GeometricMedian()",
    "CenteredClipping(radius=100)",
    "AgnosticClipping(f=5)",
    "SpectralFilter(f=5)",
    "MinimumDiameter(f=5)",
    "Median()",
    "TrimmedMean(f=5)",
    "MeaMed(f=5)",
    "Bulyan(f=5)",
    "Bucketing(s=2) >> Krum(f=5)",
    "Bucketing(s=2) >> GeometricMedian()",
    "Bucketing(s=2) >> Median()",
    "NearestNeighborMixing(f=5) >> Krum(f=5)",
    "NearestNeighborMixing(f=5) >> TrimmedMean(f=5)",
    "AdaptiveClipping(f=5) >> Mean()",
)
SIZES = {1_000: 300, 50_000: 60, 1_199_882: 12}  # columns, and calls of a process


def measure() -> dict[str, float]:
    """The fastest call of each rule at each size, in seconds."""
    import torch

    import byzantium as bz

    fastest = {}
    for d, calls in SIZES.items():
        X = torch.randn(25, d, generator=torch.Generator().manual_seed(0))
        for notation in RULES:
            rule = bz.parse_rule(notation)
            times = []
            for _ in range(calls):
                start = perf_counter()
                rule(X)
                times.append(perf_counter() - start)
            fastest[f"{notation}, d = {d}"] = min(times)
    return fastest


def in_process(source: Path) -> dict[str, float]:
    """`measure` in a process that imports the package from `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True, cwd=source)
    return json.loads(done.stdout)


def compare(revision: str, pairs: int) -> None:
    """Print the ratios to the revision."""
    with tempfile.TemporaryDirectory() as folder:
        former = Path(folder, "former")
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(former), revision], check=True)
        try:
            rounds = []
            for pair in track(range(pairs), "pairs of processes"):
                # Which goes first alternates, too.
                order = (former, ROOT) if pair % 2 else (ROOT, former)
                times = {source: in_process(source) for source in order}
                rounds.append((times[former], times[ROOT]))
        finally:
            subprocess.run([*git, "remove", "--force", str(former)], check=True)
    print("| rule | before, ms | now, ms | now / before | quartiles of pairs |")
    print("| --- | ---: | ---: | ---: | --- |")
    for name in rounds[0][0]:
        before, now = (median(both[k][name] for both in rounds) * 1e3 for k in (0, 1))
        low, _, high = quantiles([b[name] / a[name] for a, b in rounds])
        ratio = now / before
        print(f"| `{name}` | {before:.3g} | {now:.3g} | {ratio:.2f} x | {low:.2f} to {high:.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", nargs="?", help="the earlier commit")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of processes (8)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure()))
    elif arguments.revision:
        compare(arguments.revision, arguments.pairs)
    else:
        parser.error("name the earlier commit")
