"""Many jobs: which ones, in which processes, and what becomes of each."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from byzantium.core.errors import ByzantiumError
from byzantium.runs.job import BusyError, Job, Stop, perform, read
from byzantium.runs.run import Run
from byzantium.runs.store import Store

# Progress is told at most so often, in seconds.
OFTEN = 0.2
# How long the processes are given to save themselves when the sweep is stopped.
PATIENCE = 120
# Ctrl-C, a polite kill, and the end of the terminal.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Event:
    """Something happened to a job: "begun", "progress", "done", "stopped", "busy" or "failed".

    done, total, note: of progress, how far it is and its last accuracy; of a failure, why; of a job
                       that was stopped alone, who goes on with it.
    """

    job: Job
    kind: str
    done: int = 0
    total: int = 0
    note: str = ""


Listen = Callable[[Event], None]


# -- which --------------------------------------------------------------------------------------


def product(fixed: Mapping[str, Any], varies: Mapping[str, Sequence[Any]]) -> list[Run]:
    """All combinations of what varies, the last name fastest; equal runs once.

    >>> [run.seed for run in product({"rounds": 10}, {"seed": [0, 1]})]
    [0, 1]
    """
    for name, values in varies.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise ByzantiumError(f"what varies must be a list of values, got {name} = {values!r}")
        if name in fixed:
            raise ByzantiumError(f"{name} is both fixed and varied")
    combinations = itertools.product(*varies.values())
    runs = (Run.of({**fixed, **dict(zip(varies, values, strict=True))}) for values in combinations)
    return list(dict.fromkeys(runs))


def load(path: Path) -> list[Run]:
    """The runs of a sweep file, which has two parts, [fixed] and [varies]."""
    values = read(path)
    if unknown := set(values) - {"fixed", "varies"}:
        raise ByzantiumError(
            f"{path} has a part {sorted(unknown)[0]!r}; a sweep has [fixed] and [varies]"
        )
    fixed, varies = values.get("fixed", {}), values.get("varies", {})
    for name, part in (("fixed", fixed), ("varies", varies)):
        if not isinstance(part, dict):
            raise ByzantiumError(f"{path}: [{name}] must hold names and values, got {part!r}")
    try:
        return product(fixed, varies)
    except ValueError as error:
        raise ByzantiumError(f"{path}: {error}") from error


# -- carrying them out --------------------------------------------------------------------------


def execute(
    jobs: Iterable[Job],
    store: Store,
    processes: int = 1,
    listen: Listen = lambda event: None,
    stop: Stop = lambda: False,
) -> None:
    """Carry out the jobs that are not done, several at a time, each with its share of the cores."""
    waiting = [result.job for result in store.results(dict.fromkeys(jobs)) if not result.done]
    processes = min(processes, len(waiting))
    if processes <= 1:
        for job in waiting:
            if not stop():
                _perform(job, store.root, listen, stop)
    else:
        _Crew(store, processes, listen, stop).carry_out(waiting)


def _perform(job: Job, root: Path, listen: Listen, stop: Stop) -> None:
    """One job; whatever happens is told and not raised, so that the others go on."""
    told = 0.0

    def watch(done: int, total: int, note: str) -> None:
        nonlocal told
        if time.monotonic() - told > OFTEN:
            listen(Event(job, "progress", done, total, note))
            told = time.monotonic()

    listen(Event(job, "begun"))
    try:
        result = perform(job, Store(root).folder(job), watch, stop)
    except BusyError as error:
        listen(Event(job, "busy", note=str(error)))
    except Exception as error:
        listen(Event(job, "failed", note=f"{type(error).__name__}: {error}"))
    else:
        note = "" if result is None else str(result["status"])
        listen(Event(job, "stopped" if result is None else "done", note=note))


def _member(pipe: Connection, root: Path, threads: int) -> None:
    """A process of the crew: jobs come in, events go out.

    Told to stop, or left alone by the one that leads, it saves itself and leaves.
    """
    stopped = threading.Event()
    for number in INTERRUPTS:
        heed(number, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that leads
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)  # what came meanwhile comes now

    def tell(event: Event) -> None:
        try:
            pipe.send(event)
        except OSError:
            stopped.set()

    torch.set_num_threads(threads)
    while not stopped.is_set():
        try:
            if not pipe.poll(OFTEN):
                continue
            job = pipe.recv()
        except (EOFError, OSError):
            return
        _perform(job, root, tell, stopped.is_set)


def heed(number: int, handle: Callable[[int, Any], Any]) -> Any:
    """Handle a signal, unless whoever started us had it ignored, as nohup does; what was before."""
    before = signal.getsignal(number)
    return before if before is signal.SIG_IGN else signal.signal(number, handle)


class _Crew:
    """Processes that take one job after the other; one that dies is replaced."""

    def __init__(self, store: Store, processes: int, listen: Listen, stop: Stop) -> None:
        self.store, self.listen, self.stop = store, listen, stop
        self.size = processes
        self.threads = max(1, (os.cpu_count() or 1) // processes)
        self.context = multiprocessing.get_context("spawn")  # torch does not survive a fork
        self.members: dict[Connection, Any] = {}
        self.busy: dict[Connection, Job] = {}
        self.waiting: list[Job] = []
        self.leaving: list[Any] = []

    def carry_out(self, jobs: Sequence[Job]) -> None:
        self.waiting = list(reversed(jobs))
        try:
            while (self.waiting or self.busy) and not self.stop():
                while self.waiting and len(self.busy) < self.size:
                    self._give(self.waiting.pop())
                self._hear(OFTEN)
        finally:
            self._dismiss()

    def _give(self, job: Job) -> None:
        idle = [pipe for pipe in self.members if pipe not in self.busy]
        pipe = idle[0] if idle else self._hire()
        with suppress(OSError):  # it has left; that is heard, too
            pipe.send(job)
        self.busy[pipe] = job

    def _hire(self) -> Connection:
        ours, theirs = self.context.Pipe()
        arguments = (theirs, self.store.root, self.threads)
        process = self.context.Process(target=_member, args=arguments, daemon=True)
        # Until it can save itself and leave, signals to it wait; those to us, for a moment. The
        # tracker of multiprocessing is started before: it lets signals through when it has begun.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.members[ours] = process
        return ours

    def _hear(self, seconds: float) -> None:
        for pipe in wait(list(self.busy), seconds):
            assert isinstance(pipe, Connection)
            try:
                event: Event = pipe.recv()
            except (EOFError, OSError):
                event = self._left(pipe)
            if event.kind in ("begun", "progress"):
                self.listen(event)
                continue
            job = self.busy.pop(pipe)
            if event.kind == "stopped":
                self.leaving += [self.members.pop(pipe)] if pipe in self.members else []
                if not self.stop():  # it alone was told to
                    self.waiting.append(job)
                    event = dataclasses.replace(event, note="another process goes on with it")
            self.listen(event)

    def _left(self, pipe: Connection) -> Event:
        """What is to be said of the job of a process that is gone."""
        process, job = self.members.pop(pipe), self.busy[pipe]
        process.join()
        if -process.exitcode in (0, *INTERRUPTS):  # it was told to stop before the job came
            return Event(job, "stopped")
        how = "was killed" if process.exitcode < 0 else f"ended with code {process.exitcode}"
        return Event(job, "failed", note=f"its process {how}")

    def _dismiss(self) -> None:
        """Let everyone save and go."""
        for process in self.members.values():
            process.terminate()
        patience = time.monotonic() + PATIENCE
        while self.busy and time.monotonic() < patience:
            self._hear(OFTEN)
        for process in [*self.members.values(), *self.leaving]:
            process.join(OFTEN if self.busy else PATIENCE)
            process.kill()
