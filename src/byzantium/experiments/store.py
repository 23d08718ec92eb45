"""Results on disk: one folder a job, named by the job's identity."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from byzantium.experiments.artifact import Version
from byzantium.experiments.job import (
    CONFIGURATION,
    METRICS,
    Job,
    Metrics,
    lines,
    parsed,
    read,
    summary,
    write_atomically,
)
from byzantium.experiments.mimicry import Mimicry
from byzantium.experiments.run import Run

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger("byzantium")

ARTIFACTS = "artifacts.json"
KINDS: dict[str, type[Job]] = {kind.__name__: kind for kind in (Run, Mimicry)}


@dataclass(frozen=True)
class Result:
    """What there is of a job.

    status:  "missing", "unfinished", "running", "completed", or "diverged in round ...".
    metrics: one mapping for each evaluation.
    summary: of a job that is done: its accuracy, how long it took, on what; empty otherwise.
    """

    job: Job
    folder: Path
    status: str
    metrics: list[Metrics]
    summary: dict[str, Any]

    @property
    def done(self) -> bool:
        return bool(self.summary)

    @property
    def accuracy(self) -> float | None:
        """The mean of the last five evaluations, in percent; None unless it was completed."""
        return self.summary.get("accuracy")


class Store:
    """A folder of results.

    >>> from tempfile import mkdtemp
    >>> store = Store(mkdtemp())
    >>> store.result(Run()).status
    'missing'
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, job: Job) -> Path:
        return self.root / job.identity

    def result(self, job: Job) -> Result:
        folder = self.folder(job)
        done = summary(folder)
        if done is not None:
            status = str(done["status"])
        elif not (folder / CONFIGURATION).exists():
            status = "missing"
        else:
            status = "running" if _held(folder) else "unfinished"
        return Result(job, folder, status, lines(folder / METRICS), done or {})

    def __iter__(self) -> Iterator[Result]:
        """All results, by their place on disk; what cannot be read is named in the log."""
        for path in sorted(self.root.glob(f"*/{CONFIGURATION}")):
            try:
                job = job_of(read(path))
                if job.identity != path.parent.name:  # an older version of the numerics is not ours
                    continue
                result = self.result(job)
            except ValueError as error:
                logger.warning("%s is passed over: %s", path.parent, error)
            else:
                yield result

    def request(self, name: str, version: Version) -> None:
        """Note that an artifact was asked for, so that reports show it; a part is in its whole."""
        before = self.requests()
        wider = (known for other, known in before if other == name and known.covers(version))
        wanted = next(wider, version)
        noted = [(name, wanted)]
        noted += [(n, v) for n, v in before if n != name or not wanted.covers(v)]
        entries = [(n, dataclasses.asdict(v)) for n, v in noted]
        self.root.mkdir(parents=True, exist_ok=True)
        write_atomically(self.root / ARTIFACTS, json.dumps(entries, indent=1) + "\n")

    def requests(self) -> list[tuple[str, Version]]:
        """The artifacts that were asked for, the last one first."""
        path = self.root / ARTIFACTS
        return [(n, Version(**v)) for n, v in parsed(path)] if path.exists() else []

    def table(self) -> pandas.DataFrame:
        """One row a job: its fields, status, accuracy and how long it took."""
        import pandas

        return pandas.DataFrame([_row(result) for result in self])


def job_of(values: dict[str, Any]) -> Job:
    """A job from its configuration."""
    values = dict(values)
    kind = values.pop("kind", "Run")
    if kind not in KINDS:
        raise ValueError(f"there is no kind of job {kind!r}; there are {', '.join(KINDS)}")
    return KINDS[kind].of(values)


def _row(result: Result) -> dict[str, Any]:
    configuration = result.job.configuration()
    plain = {
        k: json.dumps(v) if isinstance(v, (tuple, dict)) else v for k, v in configuration.items()
    }
    return {
        "identity": result.job.identity,
        **plain,
        "status": result.status,
        "accuracy": result.accuracy,
        "seconds": result.summary.get("seconds"),
    }


def _held(folder: Path) -> bool:
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True
