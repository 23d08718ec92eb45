"""Many jobs: which ones, in which processes, and what becomes of each."""

from __future__ import annotations

import dataclasses
import itertools
import logging
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

from byzantium.core import ByzantiumError, held
from byzantium.runs import plugins, records
from byzantium.runs.job import BusyError, Job, Stop, perform, read, write_failure
from byzantium.runs.run import Run
from byzantium.runs.store import Result, Store

logger = logging.getLogger("byzantium")

# Seconds between two events of progress of a job, and between two looks at what is to be done.
INTERVAL = 0.2
# The seconds that the processes are given to save themselves when the sweep is stopped.
GRACE = 120
# These signals come from Ctrl-C, from `kill`, and when the terminal is closed.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Event:
    """Something happened to a job: "begun", "progress", "done", "stopped", "busy" or "failed".

    done, total, note: of progress, how far it is and its last accuracy; of a failure, why; of a job
                       that was stopped alone, who goes on with it; of one that is done, how.
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
    """The runs of a sweep file, which has two parts, [fixed] and [varies].

    Above them it may name plugins, Python files whose code is run: plugin = ["my_rules.py"].
    """
    values = read(path)
    _load_plugins(path, values.pop("plugin", []))
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


def _load_plugins(path: Path, names: Any) -> None:
    """Load the files that a sweep names; their paths are relative to it."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ByzantiumError(f"{path}: plugin must be a list of files, got {names!r}")
    for name in names:
        plugins.load_plugin(path.parent / Path(name).expanduser())


# -- carrying them out --------------------------------------------------------------------------


def execute(
    jobs: Iterable[Job],
    store: Store,
    processes: int = 1,
    listen: Listen = lambda event: None,
    stop: Stop = lambda: False,
) -> list[Result]:
    """Carry out the jobs that are not done, several at a time, each with its share of the cores.

    Returns for each job, in their order, what there is of it then. One that failed does not stop
    the others; its result has the status "failed", and the reason.
    """
    jobs = list(jobs)
    waiting = [result.job for result in store.results(dict.fromkeys(jobs)) if not result.done]
    processes = min(processes, len(waiting))
    ends: dict[Job, Event] = {}

    def hear(event: Event) -> None:
        ends[event.job] = event
        listen(event)

    if processes <= 1:
        for job in waiting:
            if not stop():
                _perform(job, store.root, hear, stop)
    else:
        _Pool(store, processes, hear, stop).carry_out(waiting)
    return [_ended(result, ends.get(result.job)) for result in store.results(jobs)]


def _ended(result: Result, end: Event | None) -> Result:
    """What the store has of a job; why it is not done, where that could not be written there."""
    if result.done or result.reason or end is None:
        return result
    if end.kind == "failed":
        return dataclasses.replace(result, status="failed", reason=end.note)
    return dataclasses.replace(result, reason=end.note) if end.kind == "busy" else result


def _perform(job: Job, root: Path, listen: Listen, stop: Stop) -> None:
    """One job; whatever happens is an event and not raised, so that the others go on."""
    last = 0.0

    def watch(done: int, total: int, note: str) -> None:
        nonlocal last
        if time.monotonic() - last > INTERVAL:
            listen(Event(job, "progress", done, total, note))
            last = time.monotonic()

    listen(Event(job, "begun"))
    try:
        result = perform(job, Store(root).folder(job), watch, stop)
    except BusyError as error:
        listen(Event(job, "busy", note=str(error)))
    except Exception as error:
        listen(Event(job, "failed", note=records.reason(error)))
    else:
        note = "" if result is None else str(result["status"])
        listen(Event(job, "stopped" if result is None else "done", note=note))


def _serve(pipe: Connection, root: Path, threads: int) -> None:
    """What a process of the pool does: jobs come in through the pipe, events go out.

    When a signal stops it, or the process that leads the pool is gone, it saves itself and ends.
    """
    import torch

    stopped = threading.Event()
    for number in INTERRUPTS:
        handle_signal(number, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)  # `_spawn` blocked them

    def send(event: Event) -> None:
        try:
            pipe.send(event)
        except OSError:
            stopped.set()

    torch.set_num_threads(threads)
    while not stopped.is_set():
        try:
            if not pipe.poll(INTERVAL):
                continue
            job = pipe.recv()
        except (EOFError, OSError):
            return
        _perform(job, root, send, stopped.is_set)


def handle_signal(number: int, handle: Callable[[int, Any], Any]) -> Any:
    """Set a handler, unless we were started with the signal ignored, as by nohup.

    Returns the handler that there was before.
    """
    before = signal.getsignal(number)
    return before if before is signal.SIG_IGN else signal.signal(number, handle)


class _Pool:
    """Processes that take one job after the other; one that dies is replaced."""

    def __init__(self, store: Store, processes: int, listen: Listen, stop: Stop) -> None:
        self.store, self.listen, self.stop = store, listen, stop
        self.size = processes
        self.threads = max(1, (os.cpu_count() or 1) // processes)
        self.context = multiprocessing.get_context("spawn")  # torch does not survive a fork
        self.processes: dict[Connection, Any] = {}
        self.busy: dict[Connection, Job] = {}
        self.waiting: list[Job] = []
        self.ending: list[Any] = []

    def carry_out(self, jobs: Sequence[Job]) -> None:
        self.waiting = list(reversed(jobs))
        try:
            while (self.waiting or self.busy) and not self.stop():
                while self.waiting and len(self.busy) < self.size:
                    self._assign(self.waiting.pop())
                self._receive(INTERVAL)
        finally:
            self._close()

    def _assign(self, job: Job) -> None:
        idle = [pipe for pipe in self.processes if pipe not in self.busy]
        pipe = idle[0] if idle else self._spawn()
        with suppress(OSError):  # the process has ended, which `_receive` finds out
            pipe.send(job)
        self.busy[pipe] = job

    def _spawn(self) -> Connection:
        ours, theirs = self.context.Pipe()
        arguments = (theirs, self.store.root, self.threads)
        process = self.context.Process(target=_serve, args=arguments, daemon=True)
        # The process inherits that these signals are blocked, and unblocks them when it is able to
        # save itself. The resource tracker of multiprocessing must have been started before: when
        # it starts, it unblocks signals.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.processes[ours] = process
        return ours

    def _receive(self, seconds: float) -> None:
        for pipe in wait(list(self.busy), seconds):
            assert isinstance(pipe, Connection)
            try:
                event: Event = pipe.recv()
            except (EOFError, OSError):
                event = self._lost(pipe)
            if event.kind in ("begun", "progress"):
                self.listen(event)
                continue
            job = self.busy.pop(pipe)
            if event.kind == "stopped":
                self.ending += [self.processes.pop(pipe)] if pipe in self.processes else []
                if not self.stop():  # the signal was for this process alone
                    self.waiting.append(job)
                    event = dataclasses.replace(event, note="another process goes on with it")
            self.listen(event)

    def _lost(self, pipe: Connection) -> Event:
        """What became of the job of a process that is gone; a failure is written for it."""
        process, job = self.processes.pop(pipe), self.busy[pipe]
        process.join()
        if -process.exitcode in (0, *INTERRUPTS):  # a signal stopped it before the job came
            return Event(job, "stopped")
        how = "was killed" if process.exitcode < 0 else f"ended with code {process.exitcode}"
        reason, folder = f"its process {how}", self.store.folder(job)
        try:
            with held(folder):
                write_failure(folder, reason)
        except (BusyError, OSError) as error:
            logger.warning("%s: %s could not be written: %s", folder, reason, records.why(error))
        return Event(job, "failed", note=reason)

    def _close(self) -> None:
        """Let every process save itself and end."""
        for process in self.processes.values():
            process.terminate()
        deadline = time.monotonic() + GRACE
        while self.busy and time.monotonic() < deadline:
            self._receive(INTERVAL)
        for process in [*self.processes.values(), *self.ending]:
            process.join(INTERVAL if self.busy else GRACE)
            process.kill()
