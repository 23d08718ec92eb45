"""Estimates of how long jobs take, from a short probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from byzantium.runs.job import Job
from byzantium.runs.run import Run
from byzantium.runs.store import Store

ROUNDS = 3


class Cost(NamedTuple):
    """How many seconds a round and an evaluation take."""

    round: float
    evaluation: float


def probe(run: Run) -> Cost:
    """Measure how many seconds a round takes, and an evaluation.

    The first round, which compiles kernels, is not measured.
    """
    training = run.varied(rounds=ROUNDS + 2, evaluate_every=ROUNDS + 2).simulation()
    rounds = iter(training)
    next(rounds)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        next(rounds)
    middle = time.perf_counter()
    training.evaluate()
    return Cost((middle - start) / ROUNDS, time.perf_counter() - middle)


def estimate(
    jobs: Sequence[Job], store: Store, watch: Callable[[int, int], None] = lambda done, total: None
) -> float:
    """Estimate how many seconds unfinished jobs still need, one after the other.

    A few rounds of each kind of run are tried. Runs that differ only in seed, attack, momentum or
    number of rounds are one kind.

    - `jobs`: the jobs; finished ones, and those that are not runs, count nothing.
    - `store`: where their results are, or will be.
    - `watch`: called with how many kinds were tried, and how many there are.

    >>> estimate([Run(rounds=100)], Store("nowhere")) > 0
    True
    """
    unfinished = {result.job: result for result in store.results(jobs) if not result.done}
    runs = [job for job in unfinished if isinstance(job, Run)]
    kinds = {run: run.varied(seed=0, attack="NoAttack()", momentum=0.0, rounds=1) for run in runs}
    different = list(dict.fromkeys(kinds.values()))
    costs = {}
    for k, kind in enumerate(different):
        watch(k, len(different))
        costs[kind] = probe(kind)
    total = 0.0
    for run, kind in kinds.items():
        metrics = unfinished[run].metrics
        left = max(0, run.rounds - (metrics[-1]["round"] if metrics else 0))
        cost = costs[kind]
        total += left * cost.round + left / run.evaluate_every * cost.evaluation
    return total
