"""The section about training: a whole round beside the passes it cannot do without."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import perf_counter

import torch
from model import Figure, Result, Section
from sections import Run
from torch import nn
from torch.nn import functional

import byzantium as bz
from byzantium.learning import Dataset, Settings, Simulation, cnn, iid, load, mlp
from byzantium.learning.gradients import WorkerGradients

N, Q, BATCH = 25, 5, 32
RULES = {
    "Krum": bz.Krum(f=Q),
    "median": bz.Median(),
    "RFA": bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
    "CClip": bz.CenteredClipping(radius=10.0),
}
ATTACKS = (
    bz.BitFlip(),
    bz.LabelFlip(),
    bz.Mimic(warmup=1),
    bz.InnerProduct(),
    bz.ALittleIsEnough(),
)


def images(samples: int = 2000) -> Dataset:
    """As large as MNIST's, and random: the time does not depend on what is in them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 1, 28, 28, generator=generator)
    y = torch.randint(10, (samples,), generator=generator)
    return Dataset("random", x, y, x[:100], y[:100], 10)


def passes(model: nn.Module, data: Dataset, workers: int) -> None:
    """Forward and backward for so many batches, and nothing else."""
    for worker in range(workers):
        chosen = slice(worker * BATCH, (worker + 1) * BATCH)
        functional.cross_entropy(model(data.train_x[chosen]), data.train_y[chosen]).backward()  # type: ignore[no-untyped-call]
        model.zero_grad()


def rounds(
    model: nn.Module, data: Dataset, rule: bz.Aggregator, attack: bz.Attack, n: int = N
) -> Simulation:
    settings = Settings(
        n=n, q=n // 5, rounds=10**6, batch=BATCH, momentum=0.9, evaluate_every=10**6
    )
    return Simulation(settings, data, model, rule, attack, iid())


def alternate(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of interleaved repeats; these calls are too long to need warming up twice."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = perf_counter()
            call()
            times[name].append(perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def against_passes(run: Run) -> list[Result]:
    data, results = images(), []
    for (name, rule), s, attack in itertools.product(RULES.items(), (1, 2), ATTACKS):
        pipeline = bz.Bucketing(s=s) >> rule if s > 1 else rule
        label = f"CNN, {name}, s={s}, {attack!r}"
        run.step(label)
        if not re.search(run.only, label, re.IGNORECASE):
            continue
        plain = cnn()
        training = iter(rounds(cnn(), data, pipeline, attack))
        workers = N if attack.needs_own else N - Q
        calls = {
            "passes": partial(passes, plain, data, workers),
            "round": partial(next, training),
        }
        seconds = alternate(calls, run.long_repeats)
        figure = Figure("round / passes", seconds["round"] / seconds["passes"], goal="round")
        results.append(Result(label, seconds, [figure]))
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


def per_second(run: Run) -> list[Result]:
    results = []
    for rule in (bz.Krum(f=Q), bz.Bucketing(s=2) >> bz.GeometricMedian()):
        run.step(f"digits, {rule!r}")
        training = iter(rounds(mlp((1, 8, 8)), load("digits"), rule, bz.Mimic(warmup=1)))
        for _ in range(50):
            next(training)
        start, count = perf_counter(), 400
        for _ in range(count):
            next(training)
        speed = count / (perf_counter() - start)
        results.append(
            Result(f"digits, MLP, {rule!r}", {}, [Figure("rounds", speed, "/s", "rounds")])
        )
    return results


def growth(run: Run) -> list[Result]:
    data, results, base = images(4000), [], 0.0
    for n in (10, 25, 50, 100):
        run.step(f"CNN, n = {n}")
        rule = bz.Bucketing(s=2) >> bz.GeometricMedian()
        training = iter(rounds(cnn(), data, rule, bz.InnerProduct(), n))
        seconds = alternate({"round": partial(next, training)}, run.long_repeats)
        base = base or seconds["round"] / n
        figure = Figure("time per worker, to n = 10", seconds["round"] / n / base, goal="linear")
        results.append(Result(f"CNN, RFA, n = {n}", seconds, [figure]))
    return results


def training(run: Run) -> Section:
    results = [*batched(run), *per_second(run), *against_passes(run), *growth(run)]
    return Section("training", f"Training, batches of {BATCH}", results)
