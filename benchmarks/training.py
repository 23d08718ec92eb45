"""The section about training: a whole round, compared with its forward and backward passes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import straightforward as plain
import straightforward_training
import torch
from contestants import CenterKeeper, chain
from model import Figure, Result, Section
from sections import Run, probe
from torch import nn
from torch.nn import functional

import byzantium as bz
from byzantium.data import Dataset, iid, load
from byzantium.learning import Settings, Simulation, cnn, mlp
from byzantium.learning.gradients import WorkerGradients

N, Q, BATCH = 25, 5, 32
RADIUS = 10.0
RULES = {
    "Krum": bz.Krum(f=Q),
    "median": bz.Median(),
    "RFA": bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
    "CClip": bz.CenteredClipping(radius=RADIUS),
}
PLAIN_RULES: dict[str, Callable[[], straightforward_training.Rule]] = {
    "Krum": lambda: partial(plain.krum, f=Q),
    "median": lambda: plain.median,
    "RFA": lambda: plain.geometric_median,
    "CClip": lambda: CenterKeeper(RADIUS),
}
MIMIC = bz.Mimic(warmup=1)
ATTACKS = (
    bz.BitFlip(),
    bz.LabelFlip(),
    MIMIC,
    bz.InnerProduct(),
    bz.ALittleIsEnough(),
)
COMBINATIONS = tuple(itertools.product(RULES, (1, 2), ATTACKS))
MEMORY_COMBINATIONS = tuple(
    itertools.product(
        (("Krum", 1), ("median", 1), ("RFA", 2), ("CClip", 1)), (MIMIC, bz.ALittleIsEnough())
    )
)
SIZES = (10, 25, 50, 100)
# On the progress bar; there are two rows each of batched gradients and of rounds per second.
STEPS = 2 + 2 + 1 + len(COMBINATIONS) + len(SIZES) + 1 + len(MEMORY_COMBINATIONS)


def images(samples: int = 2000) -> Dataset:
    """Random images of the size of MNIST's: the time does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 1, 28, 28, generator=generator)
    y = torch.randint(10, (samples,), generator=generator)
    return Dataset("random", x, y, x[:100], y[:100], 10)


def passes(model: nn.Module, data: Dataset, workers: int) -> None:
    """Forward and backward passes for one batch of each worker."""
    for worker in range(workers):
        chosen = slice(worker * BATCH, (worker + 1) * BATCH)
        functional.cross_entropy(model(data.train_x[chosen]), data.train_y[chosen]).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()


def rounds(
    model: nn.Module, data: Dataset, rule: bz.Aggregator, attack: bz.Attack, n: int = N
) -> Simulation:
    settings = Settings(
        n=n,
        attackers=n // 5,
        rounds=10**6,
        batch=BATCH,
        momentum=0.9,
        evaluate_every=10**6,
        record=(),
    )
    return Simulation(settings, data, model, rule, attack, iid())


def alternate(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of interleaved repeats; these calls are too long to need more warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = perf_counter()
            call()
            times[name].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def in_default_layout() -> nn.Module:
    """The paper's CNN in torch's default layout; `cnn` has its channels last in memory."""
    return cnn().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


class Job(NamedTuple):
    """A whole training: our model, the same in torch's default layout, and the data."""

    ours: Callable[[], nn.Module]
    model: Callable[[], nn.Module]
    data: Callable[[], Dataset]


JOBS = {
    "digits, MLP": Job(
        partial(mlp, (1, 8, 8)), partial(mlp, (1, 8, 8)), cache(partial(load, "digits"))
    ),
    "28 x 28, CNN": Job(cnn, in_default_layout, cache(images)),
}


def pipeline(rule: str, s: int) -> bz.Aggregator:
    return bz.Bucketing(s=s) >> RULES[rule] if s > 1 else RULES[rule]


def label(rule: str, s: int, attack: bz.Attack) -> str:
    return f"CNN, {rule}, s={s}, {attack!r}"


def matches(name: str, only: str) -> bool:
    return re.search(only, name, re.IGNORECASE) is not None


def straightforward(
    data: Dataset, rule: str, s: int, attack: bz.Attack
) -> straightforward_training.Training:
    aggregate = PLAIN_RULES[rule]()
    if s > 1:
        aggregate = chain(partial(plain.bucketing, s=s), aggregate)
    return straightforward_training.Training(
        in_default_layout(),
        data.train_x,
        data.train_y,
        aggregate,
        type(attack).__name__,
        n=N,
        q=Q,
        batch=BATCH,
    )


def layouts(run: Run) -> list[Result]:
    """Plain forward and backward passes in torch's default layout, and in that of `cnn`."""
    name, data = "CNN passes", images()
    run.step(name)
    if not matches(name, run.only):
        return []
    calls = {
        "passes": partial(passes, in_default_layout(), data, N),
        "passes, our layout": partial(passes, cnn(), data, N),
    }
    seconds = alternate(calls, run.long_repeats)
    ratio = seconds["passes"] / seconds["passes, our layout"]
    return [Result(name, seconds, [Figure("default layout / ours", ratio)])]


def against_passes(run: Run) -> list[Result]:
    """A round over plain forward and backward passes in torch's default layout.

    Straightforward training takes seconds a round, and so is timed for a few combinations: every
    rule under mimic, and every attack on RFA behind buckets of two.
    """
    data, results = images(), []
    for rule, s, attack in COMBINATIONS:
        name = label(rule, s, attack)
        run.step(name)
        if not matches(name, run.only):
            continue
        if run.left < 0:
            run.say(f"{name} is omitted: it would take too long.")
            continue
        training = iter(rounds(cnn(), data, pipeline(rule, s), attack))
        workers = N if attack.needs_own else N - Q
        calls: dict[str, Callable[[], object]] = {
            "passes": partial(passes, in_default_layout(), data, workers),
            "round": partial(next, training),
        }
        if attack == MIMIC or (rule, s) == ("RFA", 2):
            calls["straightforward"] = straightforward(data, rule, s, attack)
        seconds = alternate(calls, run.long_repeats)
        figures = [Figure("round / passes", seconds["round"] / seconds["passes"], goal="round")]
        if "straightforward" in seconds:
            ratio = seconds["straightforward"] / seconds["round"]
            figures.append(Figure("straightforward / round", ratio))
        results.append(Result(name, seconds, figures))
    return results


def batched(run: Run) -> list[Result]:
    results = []
    for name, data, shape in (
        ("digits", load("digits"), (1, 8, 8)),
        ("28 x 28", images(), (1, 28, 28)),
    ):
        run.step(f"MLP, {name}")
        model = mlp(shape)
        x = data.train_x[: N * BATCH].view(N, 1, BATCH, *shape)
        y = data.train_y[: N * BATCH].view(N, 1, BATCH)
        at_once, streamed = WorkerGradients(model), WorkerGradients(model)
        streamed.batched = False
        matrix = torch.zeros(N, at_once.d)
        calls = {
            "loop": partial(streamed, matrix, x, y),
            "batched": partial(at_once, matrix, x, y),
        }
        seconds = alternate(calls, 5 * run.long_repeats)
        figure = Figure("loop / batched", seconds["loop"] / seconds["batched"], goal="batched")
        results.append(Result(f"MLP gradients, {name}", seconds, [figure]))
    return results


def play(training: Iterator[object], count: int) -> None:
    for _ in range(count):
        next(training)


def per_second(run: Run) -> list[Result]:
    """Rounds on one thread: small operations gain nothing from a second one.

    Sweeps, which run many such simulations at once, give each process one thread, too.
    """
    threads, count = torch.get_num_threads(), 50
    torch.set_num_threads(1)
    try:
        calls = {}
        for rule in (bz.Krum(f=Q), bz.Bucketing(s=2) >> bz.GeometricMedian()):
            name = f"digits, MLP, {rule!r}"
            run.step(name)
            training = iter(rounds(mlp((1, 8, 8)), load("digits"), rule, MIMIC))
            calls[name] = partial(play, training, count)
        seconds = alternate(calls, 20)
    finally:
        torch.set_num_threads(threads)
    krum, both = seconds.values()
    results = [
        Result(name, {}, [Figure("rounds", count / value, "/s", "rounds")])
        for name, value in seconds.items()
    ]
    results[1].figures.append(Figure("a round / Krum's", both / krum, goal="rounds of both"))
    return results


def growth(run: Run) -> list[Result]:
    data, results, base = images(4000), [], 0.0
    for n in SIZES:
        run.step(f"CNN, n = {n}")
        rule = bz.Bucketing(s=2) >> bz.GeometricMedian()
        training = iter(rounds(cnn(), data, rule, bz.InnerProduct(), n))
        seconds = alternate({"round": partial(next, training)}, run.long_repeats)
        base = base or seconds["round"] / n
        figure = Figure("time per worker, to n = 10", seconds["round"] / n / base, goal="linear")
        results.append(Result(f"CNN, RFA, n = {n}", seconds, [figure]))
    return results


def side_by_side(run: Run) -> list[Result]:
    """One run per core at once, with one thread each, compared with one run on all cores."""
    cores, name = os.cpu_count() or 1, "CNN, runs side by side"
    run.step(name)
    if not matches(name, run.only):
        return []
    alone = next(probe(["rounds", f"--threads={cores}"]))["seconds"]
    others = [probe(["rounds"]) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        together = max(line["seconds"] for line in pool.map(next, others))
    seconds = {"alone, all threads": alone, "side by side, one each": together}
    figure = Figure("rounds of all, side by side / alone", cores * alone / together)
    return [Result(name, seconds, [figure])]


class MemoryCase(NamedTuple):
    name: str
    rule: bz.Aggregator
    attack: bz.Attack


def memory_cases(only: str) -> Iterator[MemoryCase]:
    for (rule, s), attack in MEMORY_COMBINATIONS:
        name = "memory, " + label(rule, s, attack)
        if matches(name, only):
            yield MemoryCase(name, pipeline(rule, s), attack)


def peaks(run: Run) -> list[Result]:
    """Peak memory in a separate process; large blocks go back to the system at once."""
    if not Path("/proc/self/clear_refs").exists():
        run.say("The memory of training is omitted: peaks can only be measured on Linux.")
        return []
    results = []
    arguments = ["training-memory", f"--only={run.only}"]
    for line in probe(arguments, MALLOC_MMAP_THRESHOLD_="65536"):
        run.step(line["name"])
        figure = Figure("peak memory / gradients", line["share"], goal="memory training")
        results.append(Result(line["name"], {}, [figure]))
    return results


def training(run: Run) -> Section:
    measures = (batched, per_second, layouts, against_passes, growth, side_by_side, peaks)
    results = [result for measure in measures for result in measure(run)]
    return Section("training", f"Training, batches of {BATCH}", results)
