"""The section about growth: time and memory from small inputs to large ones, and a model.

The model is the minimal work of a rule: bytes read, products added, and values compared. Each has a
speed, the highest that was measured: of reading, with the mean; of comparing, with the median; of
multiplying, with Krum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from model import Figure, Result, Section
from sections import Run, physical_memory, probe

import byzantium as bz

ROWS = (10, 30, 100, 300, 1000)
COLUMNS = (10**4, 10**5, 10**6, 10**7, 10**8)
STEPS = 9 * len(ROWS) * len(COLUMNS)  # on the progress bar, if all of them fit
LARGE = 10**7  # numbers from which a call takes as long as its passes
# The largest share of the machine's memory, and the most seconds, by the model.
MOST_MEMORY, MOST_SECONDS = 0.25, 6.0
ENOUGH = 0.2  # seconds of calls, of which the shortest counts
# What a core of a laptop does in a second; only to predict how long a measurement takes.
TYPICAL_SPEEDS = {"read": 5e9, "products": 2e10, "comparisons": 1e10}


@dataclass(frozen=True)
class Work:
    """The minimal work of a call."""

    read: float  # bytes
    products: float = 0
    comparisons: float = 0

    def seconds(self, speeds: Mapping[str, float]) -> float:
        """The time of this work; comparing is part of reading, multiplying comes after."""
        needs = {kind: getattr(self, kind) / speed for kind, speed in speeds.items()}
        return max(needs.get("read", 0), needs.get("comparisons", 0)) + needs.get("products", 0)


def comparators(n: int, first: int, last: int) -> int:
    """The number of comparators of the network that selects these ranks of n."""
    from byzantium._kernels.networks import middle

    return len(middle(n, first, last).parts)


def weighing(n: int, d: int, rows: int) -> Work:
    """The work of a weighting: norms, inner products, and some rows for the result."""
    return Work(4.0 * (2 * n + rows) * d, products=n * (n + 1) / 2 * d)


def sorting(n: int, d: int, selected: int) -> Work:
    """The work of a rule by coordinate that selects so many middle values."""
    first = (n - selected) // 2
    return Work(4.0 * n * d, comparisons=float(comparators(n, first, first + selected)) * d)


def rules(n: int, d: int) -> dict[str, tuple[bz.Aggregator, Work]]:
    f = n // 5
    half, few = -(-n // 2), (n // 2 - 3) // 2
    mixed = weighing(n, d, n)
    trimmed = sorting(n, d, n - 2 * f)
    return {
        "Mean": (bz.Mean(), Work(4.0 * n * d)),
        "Median": (bz.Median(), sorting(n, d, 2 - n % 2)),
        "TrimmedMean": (bz.TrimmedMean(f=f), trimmed),
        "Krum": (bz.Krum(f=f), weighing(n, d, 1)),
        "GeometricMedian": (bz.GeometricMedian(), weighing(n, d, n)),
        "CenteredClipping": (bz.CenteredClipping(radius=100.0), weighing(n, d, n)),
        "Bucketing >> Krum": (bz.Bucketing(s=2) >> bz.Krum(f=min(f, few)), weighing(n, d, 2)),
        "Bucketing >> Median": (
            bz.Bucketing(s=2) >> bz.Median(),
            Work(8.0 * n * d, comparisons=sorting(half, d, 2 - half % 2).comparisons),
        ),
        "NearestNeighborMixing >> TrimmedMean": (
            bz.NearestNeighborMixing(f=f) >> bz.TrimmedMean(f=f),
            Work(mixed.read, mixed.products + n * (n - f) * d, trimmed.comparisons),
        ),
    }


def shapes(memory: float) -> Iterator[tuple[int, int]]:
    for n in ROWS:
        for d in COLUMNS:
            if 4 * n * d <= MOST_MEMORY * memory:
                yield n, d


def measure(seconds: float) -> None:
    """Print a line for each rule and shape: the shortest of some calls, and the peak memory."""
    from probe import reset_peak, resident

    linux = Path("/proc/self/clear_refs").exists()
    ends = perf_counter() + seconds
    # Small inputs first: if the time is too short, the largest ones are omitted.
    for n, d in sorted(shapes(physical_memory()), key=lambda shape: math.prod(shape) * shape[0]):
        torch.manual_seed(0)
        x = torch.randn(n, min(d, 10**6)).repeat(1, max(1, d // 10**6))
        for name, (rule, work) in rules(n, d).items():
            if work.seconds(TYPICAL_SPEEDS) > min(MOST_SECONDS, ends - perf_counter()):
                continue
            deepcopy(rule)(x[:, :4096])  # compiles, and starts threads
            call = partial(rule, x, torch.Generator().manual_seed(0))
            before = reset_peak() if linux else 0
            times: list[float] = []
            while sum(times) < ENOUGH:
                start = perf_counter()
                call()
                times.append(perf_counter() - start)
            extra = max(0, resident("VmHWM") - before - 4 * d) if linux else 0
            line = {"name": name, "n": n, "d": d, "seconds": min(times), "extra": extra}
            print(json.dumps(line), flush=True)


def growth(run: Run) -> Section:
    """Measure in a separate process; large blocks go back to the system at once."""
    lines = []
    seconds = max(20.0, min(150.0, run.left / 3))
    for line in probe(["growth", f"--seconds={seconds:.0f}"], MALLOC_MMAP_THRESHOLD_="65536"):
        run.step(f"growth, n = {line['n']}, d = {line['d']}, {line['name']}")
        lines.append(line)
    works = {(n, d): rules(n, d) for n, d in {(line["n"], line["d"]) for line in lines}}

    def work(line: dict[str, Any]) -> Work:
        return works[line["n"], line["d"]][line["name"]][1]

    speeds: dict[str, float] = {}
    for kind, name in (("read", "Mean"), ("comparisons", "Median"), ("products", "Krum")):
        others = speeds if kind == "products" else {}  # what else takes time
        rates = [
            getattr(work(line), kind) / (line["seconds"] - work(line).seconds(others))
            for line in lines
            if line["name"] == name and line["n"] * line["d"] >= LARGE
        ]
        if any(rate > 0 for rate in rates):
            speeds[kind] = max(rates)
    results = []
    for line in sorted(lines, key=lambda line: (line["name"], line["n"], line["d"])):
        done = work(line)
        model = done.seconds(speeds)
        figures = [
            Figure("GB read", done.read / 1e9, ""),
            Figure("GFLOP", 2 * done.products / 1e9, ""),
            Figure("comparators, 1e9", done.comparisons / 1e9, ""),
            Figure("time / model", line["seconds"] / model) if model else None,
            Figure("extra memory", line["extra"] / 2**20, "MB"),
        ]
        name = f"{line['name']}, n = {line['n']}, d = 1e{round(math.log10(line['d']))}"
        results.append(
            Result(
                name,
                {"ours": line["seconds"], "model": model},
                [figure for figure in figures if figure],
            )
        )
    texts = ", ".join(f"{1e-9 * speed:.3g} G {kind}/s" for kind, speed in speeds.items())
    return Section("growth", f"Growth with n and d; the model: {texts}", results)
