"""The progress of jobs: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from byzantium.core import one_line
from byzantium.runs.certification import Certification
from byzantium.runs.federation import Federation
from byzantium.runs.job import Job
from byzantium.runs.mimicry import Mimicry
from byzantium.runs.pool import Event
from byzantium.runs.run import Run


def described(job: Job) -> str:
    """A job in one line, for progress bars and errors.

    >>> described(Run(rule="Krum()", attack="Mimic()"))
    'Krum(f=5) against Mimic(), momentum 0.9, by_label(), seed 0'
    >>> described(Run(rule="Median()", f=3, momentum=0, clock="FedBuff(13)"))
    'Median() against InnerProduct(), by_label(), FedBuff(size=13), seed 0'
    """
    if isinstance(job, Run):
        momentum = [f"momentum {job.momentum:g}"] if job.momentum else []
        others = [
            one_line(str(getattr(job, name)), 40)  # a graph may have many edges
            for name in ("worker", "clock", "topology")
            if getattr(job, name) != getattr(Run, name)
        ]
        words = [*momentum, job.partition, *others, f"seed {job.seed}"]
        return f"{job.rule} against {job.attack}, {', '.join(words)}"
    if isinstance(job, Mimicry):
        return f"{job.rule}, {job.attackers} of {job.n} workers copy one, dimension {job.d}"
    if isinstance(job, Certification):
        return f"{job.rule} attacked, {job.f} of {job.n} vectors are Byzantine, seed {job.seed}"
    if isinstance(job, Federation):
        return f"{job.name}: {job.rule}, f = {job.f}"
    return job.identity


class Board:
    """Shows what happens to jobs: progress bars on a terminal, and a line for each that ends.

    Use it in a `with` statement, and give its `show` to `execute` as `listen`.

    - `total`: how many jobs there are.
    - `done`: how many of them are finished already.

    >>> import sys
    >>> with Board(total=2, done=0, console=Console(file=sys.stdout)) as board:
    ...     board.show(Event(Run(rule="Mean()"), "done", note="diverged in round 7"))
    1/2 done: Mean() against InnerProduct(), momentum 0.9, by_label(), seed 0 (diverged in round 7)
    """

    def __init__(self, total: int, done: int, console: Console) -> None:
        self.total, self.done, self.console = total, done, console
        self.bars: dict[Job, TaskID] = {}
        columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        name = TextColumn("{task.description}", markup=False)
        self.progress = Progress(name, *columns, console=console, transient=True)
        self.whole = self.progress.add_task("all", total=total, completed=done)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.progress.live.is_started:  # otherwise it would print an empty line
            self.progress.stop()

    def show(self, event: Event) -> None:
        """Show an event."""
        name = described(event.job)
        if event.kind == "begun":
            if event.job not in self.bars:  # by another worker, whose end was not reported
                self.bars[event.job] = self.progress.add_task(name, total=None)
        elif event.kind == "progress":
            self.progress.update(
                self.bars[event.job],
                completed=event.done,
                total=event.total,
                description=f"{name} {event.note}",
            )
        else:
            if event.job in self.bars:
                self.progress.remove_task(self.bars.pop(event.job))
            if event.kind == "done":
                self.done += 1
                self.progress.update(self.whole, completed=self.done)
            if event.kind != "stopped" or event.note:
                text = f"{self.done}/{self.total} {event.kind}: {name}"
                text += f" ({event.note})" if event.note not in ("", "completed") else ""
                self.console.print(text, markup=False, highlight=False, soft_wrap=True)
