"""Sections about whole programs: the start, recorded runs, plain torch, many clients, trainings."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import byzfl_bridge
import flower_training
import straightforward as plain
import straightforward_training
import torch
import training
from model import Figure, Result, Section
from sections import Run
from timing import Contestant, interleave

import byzantium as bz
from byzantium.data import load
from byzantium.learning import mlp
from byzantium.runs import Run as Job

STARTS, BLOCKS, ROUNDS = 7, 9, 90
CLIENTS, COLUMNS = 5000, 20_000
# For each rule of the section on many clients, what its floor has beside one `X @ X.T`.
MANY = {
    "Krum(f=1000)": (),
    "GeometricMedian()": (),
    "AgnosticClipping(f=1000)": (),
    "NearestNeighborMixing(f=1000) >> Median()": ("P @ X", "sort"),
}
WITHOUT_LLVMLITE: dict[str, tuple[Callable[[], bz.Aggregator], Callable[[Any], Any]]] = {
    "Median()": (bz.Median, plain.median),
    "TrimmedMean(f=5)": (lambda: bz.TrimmedMean(f=5), partial(plain.trimmed_mean, f=5)),
    "MeaMed(f=5)": (lambda: bz.MeaMed(f=5), partial(plain.meamed, f=5)),
    "Krum(f=5)": (lambda: bz.Krum(f=5), partial(plain.krum, f=5)),
    "GeometricMedian()": (bz.GeometricMedian, plain.geometric_median),
}
GOALS_WITHOUT_LLVMLITE = ("Median()", "TrimmedMean(f=5)")


def in_process(*arguments: str) -> list[dict[str, Any]]:
    """The lines of JSON that this file prints in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- the start -----------------------------------------------------------------------------------


def start(run: Run) -> Section:
    """A run of one round, and what it cannot do without: importing torch."""
    byzantium = [sys.executable, "-c", "from byzantium.cli import main; main()"]
    # An installed command is compiled to bytecode, as this one is in the first start.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    times: dict[str, list[float]] = {"import torch": [], "ours": []}
    for _ in range(STARTS):
        run.step("start")
        with tempfile.TemporaryDirectory() as folder:
            for name, command in (
                ("import torch", [sys.executable, "-c", "import torch"]),
                ("ours", [*byzantium, "run", "--rounds", "1", "--out", folder]),
            ):
                before = perf_counter()
                subprocess.run(command, check=True, capture_output=True, env=environment)
                times[name].append(perf_counter() - before)
    seconds = {name: min(values) for name, values in times.items()}
    figure = Figure("ours / import torch", seconds["ours"] / seconds["import torch"], goal="start")
    result = Result("byzantium run --rounds 1", seconds, [figure])
    return Section("start", f"The start of a run, fastest of {STARTS}", [result])


# -- recorded runs -------------------------------------------------------------------------------


def recording(run: Run) -> Section:
    """Rounds of `byzantium run`, with its records, evaluations and files; and bare rounds."""
    job = Job(rounds=ROUNDS)
    rule, attack = job.aggregator(), bz.InnerProduct()
    bare = iter(training.rounds(mlp((1, 8, 8)), load("digits"), rule, attack))
    training.play(bare, 30)
    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(BLOCKS):
        run.step("recorded rounds")
        before = perf_counter()
        training.play(bare, ROUNDS)
        times["bare"].append((perf_counter() - before) / ROUNDS)
        times["ours"].append(a_recorded_round(job))
    seconds = {name: median(values) for name, values in times.items()}
    ratio = seconds["ours"] / seconds["bare"]
    figure = Figure("a recorded round / a bare one", ratio, goal="recording")
    result = Result(f"digits, MLP, {job.rule}", seconds, [figure])
    return Section("recording", "Rounds of byzantium run, with its default records", [result])


def a_recorded_round(job: Job) -> float:
    """The seconds of a round of a run; what the run needs once comes before its first round."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        job.work(Path(folder), lambda *_: marks.append(perf_counter()), lambda: False)
    return (marks[-1] - marks[0]) / (len(marks) - 1)


# -- without llvmlite ----------------------------------------------------------------------------


def without_llvmlite(run: Run) -> Section:
    """Rules in plain torch, over straightforward torch and over the same rules with llvmlite."""
    x, results = run.normal(run.n), []
    for line in in_process("plain", str(run.n), str(run.d), str(run.long_repeats)):
        name = line["name"]
        run.step(f"without llvmlite, {name}")
        contestants = {"with llvmlite": Contestant(WITHOUT_LLVMLITE[name][0](), lambda: x)}
        seconds = line["seconds"] | interleave(contestants, run.repeats, lambda: None)[0]
        goal = "without llvmlite" if name in GOALS_WITHOUT_LLVMLITE else None
        over = {other: seconds["without"] / seconds[other] for other in seconds}
        figures = [
            Figure("without / straightforward", over["straightforward"], goal=goal),
            Figure("without / with", over["with llvmlite"]),
        ]
        results.append(Result(name, seconds, figures))
    return Section("plain", f"Plain torch, without llvmlite, {run.n} x {run.d}", results)


def measure_without_llvmlite(n: int, d: int, repeats: int) -> Iterator[dict[str, Any]]:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    for name, (ours, theirs) in WITHOUT_LLVMLITE.items():
        group = {
            "without": Contestant(ours(), lambda: x),
            "straightforward": Contestant(theirs, lambda: list(x)),
        }
        yield {"name": name, "seconds": interleave(group, repeats, lambda: None)[0]}


# -- many clients --------------------------------------------------------------------------------


def clients(run: Run) -> Section:
    """Rules on thousands of vectors, in a process each: their time, and their memory beside X."""
    parts = in_process("floor")[0]
    run.step("many clients, the floor")
    results = []
    for name, further in MANY.items():
        (line,) = in_process("clients", name)
        run.step(f"many clients, {name}")
        floor = parts["X @ X.T"] + sum(parts[part] for part in further)
        figures = [
            Figure("ours / floor", line["seconds"] / floor, goal="clients"),
            Figure("memory beside X", line["matrices"], "n x n", "memory clients"),
        ]
        results.append(Result(name, {"floor": floor, "ours": line["seconds"]}, figures))
    return Section("clients", f"Many clients: {CLIENTS} x {COLUMNS}", results)


def many_vectors() -> torch.Tensor:
    return torch.randn(CLIENTS, COLUMNS, generator=torch.Generator().manual_seed(0))


def measure_floor() -> dict[str, float]:
    """The fastest of two calls of each part of a floor, in seconds."""
    x = many_vectors()
    mixing = torch.full((CLIENTS, CLIENTS), 1 / CLIENTS)
    calls: dict[str, Callable[[], object]] = {
        "X @ X.T": lambda: x @ x.T,
        "P @ X": lambda: mixing @ x,
        "sort": lambda: [x[:, k : k + 1000].sort(dim=0) for k in range(0, COLUMNS, 1000)],
    }
    return {name: min(seconds_of(call) for _ in range(2)) for name, call in calls.items()}


def measure_clients(name: str) -> dict[str, float]:
    """The faster of two calls, and the most memory beside X in matrices of n x n float64."""
    import probe

    rule, x = bz.parse_rule(name), many_vectors()
    rule(x[:, :64])  # compiles
    before = probe.reset_peak()
    first = seconds_of(lambda: rule(x))
    extra = probe.resident("VmHWM") - before
    seconds = min(first, seconds_of(lambda: rule(x)))
    return {"seconds": seconds, "matrices": extra / (8 * CLIENTS**2)}


def seconds_of(call: Callable[[], object]) -> float:
    before = perf_counter()
    call()
    return perf_counter() - before


# -- trainings -----------------------------------------------------------------------------------


def trainings(run: Run) -> Section:
    """A round of the same job by us, a straightforward loop, byzfl's classes, and Flower."""
    results = []
    for name, job in training.JOBS.items():
        run.step(f"a whole round, {name}")
        data, rule = job.data(), bz.TrimmedMean(f=training.Q)
        ours = iter(training.rounds(job.ours(), data, rule, training.MIMIC))
        theirs = straightforward_training.Training(
            job.model(),
            data.train_x,
            data.train_y,
            partial(plain.trimmed_mean, f=training.Q),
            "Mimic",
            n=training.N,
            q=training.Q,
            batch=training.BATCH,
        )
        calls: dict[str, Callable[[], object]] = {
            "ours": partial(next, ours),
            "straightforward": theirs,
        }
        if run.byzfl is not None:
            calls["byzfl"] = byzfl_bridge.Training(
                job.model,
                data.train_x,
                data.train_y,
                n=training.N,
                q=training.Q,
                batch=training.BATCH,
            )
        seconds = training.alternate(calls, 3 * run.long_repeats)
        run.step(f"rounds of Flower, {name}")
        try:
            seconds["Flower"] = flower_training.seconds_of_round(name)
        except flower_training.FlowerError as error:
            run.say(str(error))
        rivals = [rival for rival in seconds if rival != "ours"]
        figures = [Figure(f"{rival} / ours", seconds[rival] / seconds["ours"]) for rival in rivals]
        results.append(Result(f"{name}, TrimmedMean(f=5)", seconds, figures))
    title = f"A round of the same training, {training.N} workers, {training.Q} of them Mimic"
    return Section("trainings", title, results)


if __name__ == "__main__":
    logging.getLogger("byzantium").setLevel(logging.ERROR)
    what, *rest = sys.argv[1:]
    if what == "plain":
        sys.modules["llvmlite"] = None  # type: ignore[assignment]
        for one in measure_without_llvmlite(*map(int, rest)):
            print(json.dumps(one), flush=True)
    else:
        print(json.dumps(measure_floor() if what == "floor" else measure_clients(*rest)))
