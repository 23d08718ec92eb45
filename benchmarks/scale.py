"""Hierarchies at three sizes: memory and processor time, beside what the cost model says.

Usage: python benchmarks/scale.py [--flat 1000] [--sampled 1000000]

Each measurement has a process of its own. Memory is the peak beyond what was in use before, and
time is processor time of one thread, so that other work on the machine matters less.
docs/do/scale.md has the results and the model.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import byzantium as bz
from byzantium.data import load
from byzantium.learning import Settings, Simulation, linear
from byzantium.learning.loop import SAMPLE_BYTES

# Workers, groups, and how many bad vectors a group tolerates; and the dimensions of vectors.
SIZES = ((100, 10, 2), (1_000, 25, 8), (10_000, 100, 20))
DIMENSIONS = (650, 10_000, 50_000)
SAMPLES, BATCH, ROUNDS = 60_000, 6, 4
# Of so many workers a thousand take part in a round.
ALL, PARTICIPANTS = (10_000, 100_000, 1_000_000), 1_000
# The bytes that a simulation needs for each worker beside its vector: its samples and their order.
WORKER_BYTES = 1_700


def hierarchy(groups: int, f: int, deal: str = "random") -> bz.Aggregator:
    """The pipeline that is measured; the outer rule tolerates a tenth of the groups."""
    inner = bz.AgnosticClipping(f=f)
    return bz.Hierarchy(groups, inner, deal=deal) >> bz.AgnosticClipping(f=groups // 10)  # type: ignore[arg-type]


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def measured(work: Callable[[], object]) -> dict[str, float]:
    """The peak memory of some work in MB, beyond what is in use, and its processor time."""
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start = time.process_time()
    work()
    spent = time.process_time() - start
    return {"MB": (resident("VmHWM") - before) / 1e6, "seconds": spent}


def aggregation(rule: bz.Aggregator, n: int, d: int) -> dict[str, float]:
    X = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    hierarchy(2, 1)(torch.randn(20, 64))  # imports, and compiles
    return measured(lambda: rule(X, generator))


def simulation(n: int, groups: int, f: int, participants: int | None = None) -> dict[str, float]:
    """Rounds with a linear model on digits, drawn with replacement; a twentieth attacks."""
    data, samples = load("digits"), max(SAMPLES, n)
    drawn = torch.randint(len(data.train_y), (samples,), generator=torch.Generator().manual_seed(0))
    data = replace(data, train_x=data.train_x[drawn], train_y=data.train_y[drawn])
    settings = Settings(
        n=n,
        attackers=n // 20,
        rounds=ROUNDS + 1,
        batch=min(BATCH, samples // n),
        momentum=0.9,
        record=(),
        participants=participants,
    )
    hierarchy(2, 1)(torch.randn(20, 64))  # imports, and compiles
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    training = iter(
        Simulation(settings, data, linear((1, 8, 8)), hierarchy(groups, f), bz.InnerProduct())
    )
    next(training)
    start = time.process_time()
    for _ in range(ROUNDS):
        next(training)
    seconds = (time.process_time() - start) / ROUNDS
    return {"MB": (resident("VmHWM") - before) / 1e6, "seconds": seconds}


def predicted_bytes(n: int, groups: int, d: int) -> float:
    """What the model says of the memory of an aggregation, beside the vectors."""
    s = -(-n // groups)
    matrices = 3 * 8 * (s * s + groups * groups)  # inner products, distances, and a copy
    mixing = 2 * 8 * groups * n
    blocks = min(48 * (s + groups) * d, 18 * (8 << 20))  # columns of a group, and of the results
    results = 8 * d + 4 * d
    return matrices + mixing + blocks + results


def predicted_simulation(n: int, participants: int, groups: int, d: int) -> float:
    """What the model says of the memory of a simulation, beside the data."""
    samples = min(2 * 64 * 4 * BATCH * participants, 2 * SAMPLE_BYTES)
    return 10e6 + (4 * d + WORKER_BYTES) * n + samples + predicted_bytes(participants, groups, d)


def predicted_work(n: int, groups: int, d: int) -> float:
    """Multiply-adds in inner products within groups and of their results."""
    return (n * n / groups + groups * groups) * d


def in_process(*arguments: object) -> dict[str, float]:
    """A measurement in a process of its own."""
    command = [sys.executable, __file__, "--measure", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(what: str, n: int, d: int, groups: int, f: int) -> dict[str, float]:
    torch.set_num_threads(1)
    if what == "simulation":
        return simulation(n, groups, f)
    if what == "sampled":
        return simulation(n, groups, f, PARTICIPANTS)
    rule = hierarchy(groups, f) if what == "hierarchy" else bz.AgnosticClipping(f=n // 20)
    return aggregation(rule, n, d)


def report(flat: int, sampled: int) -> None:
    print("aggregation of n vectors, d = 650, and of 1,000 vectors of other dimensions\n")
    print("| n | groups | d | vectors, MB | memory, MB | model, MB | multiply-adds | seconds |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    n, groups, f = SIZES[1]
    cases = [(*size, DIMENSIONS[0]) for size in SIZES]
    cases += [(n, groups, f, d) for d in DIMENSIONS[1:]]
    for n, groups, f, d in cases:
        one = in_process("hierarchy", n, d, groups, f)
        model, work = predicted_bytes(n, groups, d) / 1e6, predicted_work(n, groups, d)
        print(
            f"| {n:,} | {groups} | {d:,} | {4 * n * d / 1e6:.1f} | {one['MB']:.0f} | {model:.0f} "
            f"| {work:.2g} | {one['seconds']:.2f} |",
            flush=True,
        )
    print("\none rule for all of them, AgnosticClipping(f=n/20), d = 650\n")
    print(
        "| n | memory, MB | three matrices of n x n, MB | seconds |\n| ---: | ---: | ---: | ---: |"
    )
    for n, _, _ in SIZES:
        if n <= flat:
            one = in_process("flat", n, DIMENSIONS[0], 0, 0)
            model = 3 * 8 * n * n / 1e6
            print(f"| {n:,} | {one['MB']:.0f} | {model:.0f} | {one['seconds']:.2f} |", flush=True)
    print("\na simulation\n")
    print("| workers | take part | groups | memory, MB | model, MB | seconds of a round |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    _, groups, f = SIZES[1]
    trainings = [("simulation", *size) for size in SIZES]
    trainings += [("sampled", n, groups, f) for n in ALL if n <= sampled]
    for what, n, groups, f in trainings:
        part = n if what == "simulation" else PARTICIPANTS
        one = in_process(what, n, DIMENSIONS[0], groups, f)
        model = predicted_simulation(n, part, groups, DIMENSIONS[0])
        print(
            f"| {n:,} | {part:,} | {groups} | {one['MB']:.0f} | {model / 1e6:.0f} "
            f"| {one['seconds']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flat", type=int, default=1_000, help="measure one rule up to this n")
    parser.add_argument("--sampled", type=int, default=ALL[-1], help="sample of up to this n")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, *numbers = options.measure
        print(json.dumps(measure(what, *map(int, numbers))))
    else:
        report(options.flat, options.sampled)
