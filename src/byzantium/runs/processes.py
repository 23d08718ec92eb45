"""Jobs in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from byzantium.runs.job import Job, Stop
from byzantium.runs.pool import INTERVAL, Event, Gone, Listen, Pool, Worker, perform_with_events
from byzantium.runs.store import Store

#: The signals that stop a sweep: from Ctrl-C, from `kill`, and when the terminal is closed.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Processes:
    """The engine that executes jobs in processes of this machine, which share its cores.

    - `most`: how many jobs run at a time. With 1, this process does all work itself.

    >>> from byzantium.runs import Mimicry, Store, execute
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (result,) = execute([Mimicry()], Store(folder), Processes(1))
    >>> result.done
    True
    """

    most: int = 1

    def execute(self, jobs: Sequence[Job], store: Store, listen: Listen, stop: Stop) -> None:
        """Execute jobs, as every `Engine` does."""
        size = min(self.most, len(jobs))
        if size > 1:
            _Pool(store, listen, stop, size).execute(jobs)
            return
        for job in jobs:
            if not stop():
                perform_with_events(job, store.root, listen, stop)


def handle_signal(number: int, handle: Callable[[int, Any], Any]) -> Any:
    """Set the handler of a signal, unless this process was started to ignore it, as by nohup.

    Returns the handler before.
    """
    before = signal.getsignal(number)
    return before if before is signal.SIG_IGN else signal.signal(number, handle)


def _serve(pipe: Connection, root: Path, threads: int) -> None:
    """What a process of the pool does: jobs come in through the pipe, events go out.

    When a signal stops it, or the process that leads the pool is gone, it saves itself and ends.
    """
    import torch

    stopped = threading.Event()
    for number in INTERRUPTS:
        handle_signal(number, lambda *_: stopped.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)  # `_Process` blocked them

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
        perform_with_events(job, root, send, stopped.is_set)


class _Process(Worker):
    def __init__(self, root: Path, threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # torch does not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, root, threads), daemon=True)
        # The process inherits that these signals are blocked, and unblocks them when it is able to
        # save itself. The resource tracker of multiprocessing must have been started before: when
        # it starts, it unblocks signals.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def send(self, job: Job) -> None:
        with suppress(OSError):
            self.pipe.send(job)

    def stop(self) -> None:
        self.process.terminate()

    def end(self, seconds: float) -> None:
        self.process.join(seconds)
        self.process.kill()

    def news(self) -> Event | Gone:
        try:
            event: Event = self.pipe.recv()
            return event
        except (EOFError, OSError):
            self.process.join()
        code = self.process.exitcode or 0
        if -code in (0, *INTERRUPTS):  # a signal stopped it before the job came
            return Gone()
        return Gone(f"its process {'was killed' if code < 0 else f'ended with code {code}'}")


class _Pool(Pool[_Process]):
    def __init__(self, store: Store, listen: Listen, stop: Stop, size: int) -> None:
        super().__init__(store, listen, stop)
        self.most, self.threads = size, max(1, (os.cpu_count() or 1) // size)

    @property
    def size(self) -> int:
        return self.most

    def start(self) -> _Process:
        return _Process(self.store.root, self.threads)

    def hear(self, seconds: float) -> Iterable[tuple[_Process, Event | Gone]]:
        pipes = {worker.pipe: worker for worker in self.busy}
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            yield pipes[pipe], pipes[pipe].news()
