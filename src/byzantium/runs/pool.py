"""Who carries jobs out: workers that take one after the other, and what becomes of each job."""

from __future__ import annotations

import dataclasses
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar, Generic, Protocol, TypeVar

from byzantium.core import held
from byzantium.runs import records
from byzantium.runs.job import BusyError, Job, Stop, perform, write_failure
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


class Engine(Protocol):
    """Where jobs are carried out."""

    def carry_out(self, jobs: Sequence[Job], store: Store, listen: Listen, stop: Stop) -> None:
        """Carry out jobs that are not done; what happens to each is an event and not raised."""


def attempt(job: Job, root: Path, listen: Listen, stop: Stop) -> None:
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


# -- many workers ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Gone:
    """A worker is no more.

    reason: what it died of; empty if it was told to end.
    """

    reason: str = ""


class Worker(ABC):
    """Takes one job after the other.

    ready: whether it can take one now, if it has none.
    """

    ready = True

    @abstractmethod
    def send(self, job: Job) -> None:
        """Give it a job; if it is gone, that is heard of later."""

    @abstractmethod
    def stop(self) -> None:
        """Tell it to save its job, and to end."""

    @abstractmethod
    def end(self, seconds: float) -> None:
        """Wait so long until it has ended; then it is ended."""


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Pool(ABC, Generic[AnyWorker]):
    """Workers who share jobs; one that dies is replaced.

    retries: how often a job whose worker died is given to another; those who got further than all
             before do not count.
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
        """How many work at a time."""

    @abstractmethod
    def start(self) -> AnyWorker:
        """One more worker."""

    @abstractmethod
    def hear(self, seconds: float) -> Iterable[tuple[AnyWorker, Event | Gone]]:
        """What workers tell, and who is gone; so many seconds are waited for the first."""

    def carry_out(self, jobs: Sequence[Job]) -> None:
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
                    news = self._again(job, news.note, "another process goes on with it")
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
            with held(folder):
                write_failure(folder, reason)
        except (BusyError, OSError) as error:
            logger.warning("%s: %s could not be written: %s", folder, reason, records.why(error))
        return Event(job, "failed", note=reason)

    def _wait_for_lock(self, job: Job, note: str) -> Event:
        """The worker who had the job is dead, but its lock is not free yet."""
        now = time.monotonic()
        first = job not in self.locked
        _, deadline = self.locked.get(job, (now, now + PATIENCE))
        if now > deadline:
            note = f"the lock of a process that died is held for {PATIENCE:.0f} s: {note}"
            return Event(job, "failed", note=note)
        self.locked[job] = now + PAUSE, deadline
        said = "the lock of the process that died is not free yet, and is waited for"
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
