"""Jobs under a progress bar, and how commands are interrupted."""

from __future__ import annotations

import os
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from byzantium import runs
from byzantium.cli.terminal import err, out

# Exit codes.
FAILED, WRONG, INTERRUPTED = 1, 2, 130


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Ctrl-C, SIGTERM or SIGHUP sets an event; a second one ends the program at once."""
    stopped = threading.Event()

    def stop() -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()
        err.print("Stopping when the rounds under way are done; Ctrl-C again stops at once.")

    with interrupts(stop):
        yield stopped


@contextmanager
def interrupts(handle: Callable[[], None]) -> Iterator[None]:
    """Call a function at Ctrl-C, SIGTERM or SIGHUP meanwhile."""

    def interrupted(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            _without_terminal()
        handle()

    before = {number: runs.handle_signal(number, interrupted) for number in runs.INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _without_terminal() -> None:
    """If the terminal is gone, let further output go nowhere instead of failing."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def check_unfinished(results: Iterable[runs.Result]) -> None:
    """Raise an error, before anything is begun, if an unfinished job could not begin."""
    runs.check_ready(result.job for result in results if not result.done)


def execute_jobs(
    jobs: Iterable[runs.Job],
    store: runs.Store,
    engine: runs.Engine,
    until: int | None = None,
    results: Sequence[runs.Result] = (),
    on_failure: Callable[[list[runs.Result]], None] = lambda results: None,
    follow: runs.Listen = lambda event: None,
) -> list[runs.Result]:
    """Execute unfinished jobs; exit with 1 if some failed, and with 130 if they were stopped.

    - `until`: the round after which runs stop for now; None runs them to their end.
    - `results`: results of the jobs that were read before, and are not read again.
    - `on_failure`: called with all results before the exit with 1.
    - `follow`: called with each event, such as by trackers.

    Returns a result for each job.
    """
    jobs = [job.until(until) if isinstance(job, runs.Run) else job for job in dict.fromkeys(jobs)]
    results = results or store.results(jobs)
    done = sum(result.done for result in results)
    with interruptible() as stopped, runs.Board(len(jobs), done, err) as board:

        def listen(event: runs.Event) -> None:
            board.show(event)
            follow(event)

        results = runs.execute(jobs, store, engine, listen, stopped.is_set, results)
    if stopped.is_set():
        err.print(f"Stopped with {board.done} of {len(jobs)} done; the same command continues.")
        raise SystemExit(INTERRUPTED)
    paused = [result for result in results if until and result.status == "unfinished"]
    if paused:
        err.print(
            f"{len(paused)} of {len(jobs)} stop at round {until}; without --until they go on."
        )
    failed = [result for result in results if not result.done and result not in paused]
    for result in failed:
        err.print(f"{result.status}: {runs.described(result.job)}: {result.reason}")
    if failed:
        on_failure(results)
        raise SystemExit(FAILED)
    return results


def print_gaps(jobs: Iterable[runs.Job]) -> None:
    """Print in one line which rules have no guarantee; nothing if there are none.

    The warnings before the runs began are far up by now, and a table of accuracies does not show
    them.
    """
    gaps: dict[str, dict[str, None]] = {}  # in the order of the jobs
    alike = {(job.rule, job.vectors, job.bad): job for job in jobs if isinstance(job, runs.Run)}
    for (rule, n, f), job in alike.items():
        if job.gap():
            gaps.setdefault(rule, {})[f"{f} of {n}"] = None
    if gaps:
        text = "; ".join(f"{rule} with {', '.join(f)} Byzantine" for rule, f in gaps.items())
        out.print(f"no guarantee: {text} (why: byzantium check)", soft_wrap=True, highlight=False)
