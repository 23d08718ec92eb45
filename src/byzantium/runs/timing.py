"""Estimates of how long jobs take, from a short probe."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from byzantium.runs.job import Job, perform
from byzantium.runs.run import Run
from byzantium.runs.store import Store

if TYPE_CHECKING:
    from byzantium.learning import Loop

# The rounds that come before those that are measured, and compile kernels.
WARM_UP = 2
# At least and at most so many rounds are measured, and between these for so many seconds.
FEWEST, MOST, SECONDS = 5, 40, 0.2
# How many evaluations are measured, with the files that they write.
EVALUATIONS = 5
# The probes of an estimate take about so many seconds in all.
BUDGET = 60.0


class Cost(NamedTuple):
    """How many seconds parts of a run take: a round, an evaluation, and what it needs once.

    - `start`: what it needs once: to make the data, the model and the files.
    """

    start: float
    round: float
    evaluation: float

    def of(self, rounds: int, evaluations: int) -> float:
        """How many seconds so many rounds and evaluations take.

        >>> Cost(start=1.0, round=0.5, evaluation=2.0).of(rounds=10, evaluations=1)
        8.0
        """
        return self.start + rounds * self.round + evaluations * self.evaluation


def probe(run: Run) -> Cost:
    """Measure how many seconds a round takes, an evaluation, and what a run needs once.

    What is needed once in a process, such as compiled kernels, is not measured: a cost that one
    round or one evaluation has does not count for all of them.
    """
    rounds = WARM_UP + MOST
    training = run.varied(rounds=rounds + 1, evaluate_every=rounds + 1).simulation()
    a_round = median(_times(training))
    one = min(_seconds(run, 1) for _ in range(2))
    both = max(0.0, (_seconds(run, EVALUATIONS) - one) / (EVALUATIONS - 1))
    return Cost(max(0.0, one - both), a_round, max(0.0, both - a_round))


def _seconds(run: Run, rounds: int) -> float:
    """The seconds of a whole run with so many rounds and an evaluation in each."""
    short = run.varied(rounds=rounds, evaluate_every=1)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        perform(short, Path(folder, short.identity))
        return time.perf_counter() - start


def _times(training: Loop) -> list[float]:
    """The seconds of rounds after the first ones; fewer if the training diverges."""
    times: list[float] = []
    before = start = time.perf_counter()
    for _ in training:
        now = time.perf_counter()
        times.append(now - before)
        before = now
        measured = len(times) - WARM_UP
        if measured >= MOST or (measured >= FEWEST and now - start > SECONDS):
            break
    return times[WARM_UP:] or times[-1:]


def estimate(
    jobs: Sequence[Job], store: Store, watch: Callable[[int, int], None] = lambda done, total: None
) -> float:
    """Estimate how many seconds unfinished jobs still need, one after the other.

    A few rounds of each kind of run are tried. Runs that differ only in seed, momentum or number of
    rounds are one kind. Kinds are tried in random order, for about a minute; those that are left
    count as the mean of the others.

    - `jobs`: the jobs; finished ones, and those that are not runs, count nothing.
    - `store`: where their results are, or will be.
    - `watch`: called with how many kinds were tried, and how many there are.

    >>> estimate([Run(rounds=100)], Store("nowhere")) > 0
    True
    """
    unfinished = {result.job: result for result in store.results(jobs) if not result.done}
    runs = [job for job in unfinished if isinstance(job, Run)]
    kinds = {run: run.varied(seed=0, momentum=0.0, rounds=1) for run in runs}
    different = list(dict.fromkeys(kinds.values()))
    random.Random(0).shuffle(different)
    costs: dict[Run, Cost] = {}
    start = time.monotonic()
    for k, kind in enumerate(different):
        if costs and time.monotonic() - start > BUDGET:
            break
        watch(k, len(different))
        costs[kind] = probe(kind)
    total = 0.0
    usual = Cost(*map(fmean, zip(*costs.values(), strict=True))) if costs else Cost(0, 0, 0)
    for run, kind in kinds.items():
        metrics = unfinished[run].metrics
        left = max(0, run.rounds - (metrics[-1]["round"] if metrics else 0))
        total += costs.get(kind, usual).of(left, -(-left // run.evaluate_every))
    return total
