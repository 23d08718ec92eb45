"""Engines execute jobs, events report what happens to each, and pools share jobs among workers."""

from __future__ import annotations

import dataclasses
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from byzantium.core import BusyError, folder_lock
from byzantium.runs import records
from byzantium.runs.job import Job, Stop, perform, write_failure
from byzantium.runs.store import Store

logger = logging.getLogger("byzantium")

# Seconds between two events of progress of a job, and between two looks at what is to be done.
INTERVAL = 0.2
# The seconds that workers are given to save themselves when the sweep is stopped.
GRACE = 120
# Seconds between two looks whether a dead worker's lock is free, and until that is given up: on
# some shared file systems a lock outlives the machine that had it, for a minute or two.
PAUSE, PATIENCE = 5.0, 900.0


@dataclasses.dataclass(frozen=True)
class Event:
    """An event in the execution of a job, such as its begin or its end.

    - `kind`: "begun", "progress", "done", "stopped", "paused" (it is at the round that it was to
      reach for now), "busy" (another process works on it) or "failed".
    - `done`: for "progress", how many rounds are done.
    - `total`: for "progress", how many rounds there are.
    - `note`: what there is to say: for "progress" the last accuracy, for "done" how it ended, for
      "failed" and "busy" why, for "stopped" who goes on with it.

    >>> from byzantium.runs import Run
    >>> Event(Run(), "progress", done=30, total=600, note="61.2 %").kind
    'progress'
    """

    job: Job
    kind: str
    done: int = 0
    total: int = 0
    note: str = ""


#: Called with an event whenever something happens to a job.
Listen = Callable[[Event], None]


class Engine(Protocol):
    """An engine: an object that executes jobs, such as `Processes` or `byzantium.engines.Ray`.

    One of your own needs a single method:

    >>> class InOrder:
    ...     def execute(self, jobs, store, listen, stop):
    ...         for job in jobs:
    ...             perform_with_events(job, store.root, listen, stop)
    """

    def execute(self, jobs: Sequence[Job], store: Store, listen: Listen, stop: Stop) -> None:
        """Execute unfinished jobs, and report what happens as events; their errors are not raised.

        - `listen`: called with an `Event` whenever something happens to a job.
        - `stop`: asked now and then; once it answers True, the jobs under way save themselves, and
          no other is begun.
        """


def perform_with_events(job: Job, root: Path, listen: Listen, stop: Stop) -> None:
    """Perform one job, and report what happens as events; its errors are not raised.

    - `root`: the folder of results. The other parameters are those of `Engine.execute`.

    >>> import tempfile
    >>> from byzantium.runs import Mimicry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     events = []
    ...     perform_with_events(Mimicry(), Path(folder), events.append, lambda: False)
    >>> events[0].kind, events[-1].kind
    ('begun', 'done')
    """
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
        listen(Event(job, "failed", note=records.describe_failure(error)))
    else:
        if result is not None:
            listen(Event(job, "done", note=str(result["status"])))
        else:
            listen(Event(job, "stopped" if stop() else "paused"))


@dataclasses.dataclass(frozen=True)
class Gone:
    """The end of a worker, as `Pool.hear` reports it.

    - `reason`: the cause of its death; empty if it was told to end.

    >>> Gone("its process was killed").reason
    'its process was killed'
    """

    reason: str = ""


class Worker(ABC):
    """A worker of a pool, such as a process: it does one job after the other.

    - `ready`: whether it can take a job now, if it has none.
    """

    ready = True

    @abstractmethod
    def send(self, job: Job) -> None:
        """Send it a job; if it has ended, `Pool.hear` reports that later."""

    @abstractmethod
    def stop(self) -> None:
        """Tell it to save its job, and to end."""

    @abstractmethod
    def end(self, seconds: float) -> None:
        """Wait up to so many seconds for its end, then end it by force."""


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Pool(ABC, Generic[AnyWorker]):
    """A pool of workers that share jobs; an engine derives from it to say how workers start.

    A worker that dies is replaced, and its job is given to another one, `retries` times at most;
    a death after the job got further than before does not count. Its parameters are those of
    `Engine.execute`.
    """

    retries: ClassVar[int] = 0

    def __init__(self, store: Store, listen: Listen, stop: Stop) -> None:
        self.store, self.listen, self.stop = store, listen, stop
        self.workers: list[AnyWorker] = []
        self.busy: dict[AnyWorker, Job] = {}
        self.ending: list[AnyWorker] = []
        self.waiting: list[Job] = []
        self.reached: dict[Job, int] = {}  # how far a job was seen to be
        self.deaths: dict[Job, list[int]] = {}  # for each death of its workers, how far it was
        # Of a job whose lock is not free: when to look again, and when to give it up.
        self.locked: dict[Job, tuple[float, float]] = {}
        self.closing = False

    @property
    @abstractmethod
    def size(self) -> int:
        """How many workers there are at a time."""

    @abstractmethod
    def start(self) -> AnyWorker:
        """Start one more worker, and return it."""

    @abstractmethod
    def hear(self, seconds: float) -> Iterable[tuple[AnyWorker, Event | Gone]]:
        """The events and ends of workers; waits up to so many seconds for the first."""

    def execute(self, jobs: Sequence[Job]) -> None:
        """Execute jobs, until all are done or `stop` answers True."""
        self.waiting = list(jobs)
        try:
            while (self.waiting or self.busy) and not self.stop():
                self._assign()
                self._receive(INTERVAL)
        finally:
            self._close()

    def _assign(self) -> None:
        now, size = time.monotonic(), self.size
        due = (job for job in self.waiting if self.locked.get(job, (now, now))[0] <= now)
        next_ones = list(islice(due, max(0, size - len(self.busy))))
        while len(self.workers) < len(self.busy) + len(next_ones):
            self.workers.append(self.start())
        idle = [worker for worker in self.workers if worker.ready and worker not in self.busy]
        for worker, job in zip(idle, next_ones, strict=False):
            self.waiting.remove(job)
            self.busy[worker] = job
            worker.send(job)

    def _receive(self, seconds: float) -> None:
        for worker, news in self.hear(seconds):
            if isinstance(news, Gone):
                self.workers.remove(worker)
                if worker not in self.busy:
                    continue
                news = self._lost(self.busy[worker], news.reason)
            if news.kind in ("begun", "progress"):
                self.reached[news.job] = max(self.reached.get(news.job, 0), news.done)
                self.listen(news)
                continue
            job = self.busy.pop(worker)
            if news.kind == "stopped":
                if worker in self.workers:  # it has ended itself
                    self.workers.remove(worker)
                    self.ending.append(worker)
                if not (self.closing or self.stop()):  # that was meant for this worker alone
                    news = self._again(job, news.note, "another process continues it")
            elif news.kind == "busy" and job in self.deaths:
                news = self._wait_for_lock(job, news.note)
            self.listen(news)

    def _again(self, job: Job, *notes: str) -> Event:
        self.waiting.insert(0, job)
        return Event(job, "stopped", note="; ".join(note for note in notes if note))

    def _lost(self, job: Job, reason: str) -> Event:
        """What becomes of the job of a worker that is gone; a failure is written for it."""
        if not reason:
            return Event(job, "stopped")
        deaths, reached = self.deaths.setdefault(job, []), self.reached.get(job, 0)
        deaths.append(reached)
        self.locked.pop(job, None)  # of an earlier one
        if deaths.count(reached) <= self.retries:
            return Event(job, "stopped", note=reason)
        folder = self.store.folder(job)
        try:
            with folder_lock(folder):
                write_failure(folder, reason)
        except (BusyError, OSError) as error:
            logger.warning(
                "%s: %s could not be written: %s",
                folder,
                reason,
                records.describe_file_error(error),
            )
        return Event(job, "failed", note=reason)

    def _wait_for_lock(self, job: Job, note: str) -> Event:
        """The worker who had the job is dead, but its lock is not free yet."""
        now = time.monotonic()
        first = job not in self.locked
        _, deadline = self.locked.get(job, (now, now + PATIENCE))
        if now > deadline:
            note = f"the lock of a process that died is not released in {PATIENCE:.0f} s: {note}"
            return Event(job, "failed", note=note)
        self.locked[job] = now + PAUSE, deadline
        said = "waiting until the lock of the process that died is released"
        return self._again(job, said if first else "")

    def _close(self) -> None:
        """Let every worker save itself and end."""
        self.closing = True
        for worker in self.workers:
            worker.stop()
        deadline = time.monotonic() + GRACE
        while self.busy and time.monotonic() < deadline:
            self._receive(INTERVAL)
        for worker in [*self.workers, *self.ending]:
            worker.end(INTERVAL if self.busy else GRACE)
