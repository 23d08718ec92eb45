"""The results of jobs, sent to trackers while they are made or afterwards.

The process that leads the work follows the folders of results, where each job writes what it
measured. So it does not matter which process or machine does a job, and what was sent before is not
sent again.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from byzantium.core import ByzantiumError, files, one_line
from byzantium.engines.tracking.tracker import Before, Tracked, Tracker
from byzantium.runs import Event, Job, Result, Store
from byzantium.runs.job import CONFIGURATION, LOG, METRICS, SUMMARY, measured

logger = logging.getLogger("byzantium")

#: The trackers by name, each as its module and class: imported when they are asked for.
TRACKERS = {
    "mlflow": ("mlflow", "MLflow"),
    "wandb": ("wandb", "WandB"),
    "tensorboard": ("tensorboard", "TensorBoard"),
}
# A larger log is not sent.
MAX_LOG = 10 << 20

Artifacts = Callable[[Result], Iterable[Path]]


class Tracking:
    """Trackers that follow jobs in a folder of results; use it in a `with` statement.

    An error of a tracker never stops a job: the log says so once, and that tracker is not used any
    further. `export` sends later what is missing.

    - `names`: names of trackers: mlflow, wandb, tensorboard.
    - `root`: the folder of results.
    - `artifacts`: a function that makes further files for a finished job, in a temporary folder.

    >>> import tempfile
    >>> from byzantium.runs import Mimicry, execute
    >>> with tempfile.TemporaryDirectory() as folder, Tracking([], Path(folder)) as tracking:
    ...     (result,) = execute([Mimicry()], Store(folder), listen=tracking.show)
    """

    def __init__(
        self,
        names: Sequence[str],
        root: Path | str,
        artifacts: Artifacts = lambda result: (),
    ) -> None:
        self.root, self.artifacts, self.group = Path(root), artifacts, ""
        self.store = Store(root)
        self.trackers: list[Tracker] = [make_tracker(name, self.root) for name in names]
        self._open: dict[str, dict[Tracker, Before]] = {}
        self._tracked: dict[str, Tracked] = {}
        self._sizes: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for identity in list(self._open):
            self._end(self._tracked[identity], "stopped", {}, ())
        for tracker in self.trackers:
            self._try(tracker, tracker.close)

    def show(self, event: Event) -> None:
        """Follow what happens to a job; a `Listen` for `execute`."""
        if not self.trackers or event.kind == "busy":
            return
        if event.kind in ("begun", "progress"):
            self.update(event.job)
        else:
            self.finish(event.job, event.kind, event.note)

    def update(self, job: Job) -> None:
        """Begin a job, if that was not done, and send what it measured since."""
        tracked, folder = self._begin(job), self.store.folder(job)
        try:
            size = os.stat(folder / METRICS).st_size
            if size == self._sizes.get(job.identity):
                return
            lines = measured(job, folder)
        except (OSError, ValueError):  # nothing is there yet, or the job will say what is wrong
            return
        self._sizes[job.identity] = size
        self._send(tracked, lines)

    def finish(self, job: Job, kind: str = "done", reason: str = "") -> None:
        """End a job: it is done, failed, or stopped so that it can be continued.

        - `kind`: "done", "failed", or anything else for stopped.
        """
        if not self.trackers:
            return
        (result,) = self.store.results([job])
        if kind == "done" and result.done:
            self.send(result)
        else:
            self.update(job)
            failed = kind != "stopped" and (kind == "failed" or result.status == "damaged")
            summary = {"reason": reason or result.reason} if failed else {}
            self._end(self._begin(job), "failed" if failed else "stopped", summary, ())

    def send(self, result: Result) -> None:
        """Send a finished result, or what a tracker lacks of it."""
        if not self.trackers:
            return
        tracked = self._begin(result.job)
        self._send(tracked, result.metrics)
        summary = {k: v for k, v in result.summary.items() if isinstance(v, int | float | str)}
        with job_files(result) as made:
            paths = [*made, *(self.artifacts(result) if self._open.get(tracked.identity) else ())]
            self._end(tracked, result.status, summary, paths)

    def begin_group(self, name: str, jobs: Iterable[Job]) -> None:
        """Begin what the jobs belong to, such as a sweep; `attach` ends it."""
        tracked = Tracked.together(jobs, name)
        self.group = tracked.identity
        self._open_in_trackers(tracked)

    def attach(self, artifacts: Sequence[Path]) -> None:
        """End the group, with files that belong to all of its jobs together, such as a report."""
        self._end(self._tracked[self.group], "completed", {}, artifacts)

    def _begin(self, job: Job) -> Tracked:
        if job.identity not in self._open:
            self._open_in_trackers(Tracked.of(job, self.group))
        return self._tracked[job.identity]

    def _open_in_trackers(self, tracked: Tracked) -> None:
        self._tracked[tracked.identity] = tracked
        states = {one: self._try(one, one.begin, tracked) for one in list(self.trackers)}
        self._open[tracked.identity] = {
            tracker: state for tracker, state in states.items() if state is not None
        }

    def _send(self, tracked: Tracked, lines: Sequence[Mapping[str, Any]]) -> None:
        """Send the numbers of each line that a tracker lacks; lists are in metrics.jsonl."""
        states = self._open[tracked.identity]
        for tracker, before in states.items():
            for k, line in enumerate(lines):
                at = int(line.get("round", k + 1))
                if at <= before.round or before.ended:
                    continue
                numbers = {
                    name: float(value)
                    for name, value in line.items()
                    if name != "round" and isinstance(value, int | float)
                }
                self._try(tracker, tracker.log, tracked, at, numbers)
                states[tracker] = Before(at)

    def _end(
        self, tracked: Tracked, status: str, summary: Mapping[str, Any], artifacts: Sequence[Path]
    ) -> None:
        for tracker, state in self._open.pop(tracked.identity, {}).items():
            if not state.ended:
                self._try(tracker, tracker.end, tracked, status, summary, artifacts)
        self._sizes.pop(tracked.identity, None)

    def _try(self, tracker: Tracker, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a tracker; after an error the tracker is not used any further."""
        if tracker not in self.trackers:
            return None
        try:
            return method(*arguments)
        except Exception as error:  # of the library of others, and of what it talks to
            self.trackers.remove(tracker)
            logger.warning(
                "%s is not used any further: %s; the results are complete in %s, and "
                "byzantium track sends what is missing",
                *(tracker.title, one_line(f"{type(error).__name__}: {error}"), self.root),
            )
            return None


def make_tracker(name: str, root: Path) -> Tracker:
    """A tracker by its name; raises an error where it, or its library, cannot be used."""
    if name not in TRACKERS:
        raise ByzantiumError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
    module, cls = TRACKERS[name]
    tracker: type[Tracker] = getattr(importlib.import_module(f"{__package__}.{module}"), cls)
    try:
        return tracker(root)
    except (ByzantiumError, ImportError):
        raise
    except Exception as error:
        raise ByzantiumError(
            f"{tracker.title} cannot be used: {one_line(f'{type(error).__name__}: {error}')}"
        ) from error


@contextmanager
def job_files(result: Result) -> Iterator[list[Path]]:
    """The files of a finished job, as its folder has them, also where a pack holds it."""
    with tempfile.TemporaryDirectory(prefix="byzantium-") as name:
        texts: dict[str, str | bytes] = {
            CONFIGURATION: result.job.toml(),
            METRICS: "".join(json.dumps(line) + "\n" for line in result.metrics),
            SUMMARY: json.dumps(result.summary, indent=1) + "\n",
        }
        log = result.folder / LOG
        if result.pack is None and log.exists() and log.stat().st_size <= MAX_LOG:
            texts[LOG] = files.read(log, MAX_LOG)
        for one, text in texts.items():
            files.write(Path(name, one), text)
        yield [Path(name, one) for one in texts]
