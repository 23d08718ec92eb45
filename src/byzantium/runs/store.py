"""Results on disk: of each job a folder, named by its identity, or a line of a pack."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byzantium.core import ByzantiumError, import_optional, is_locked
from byzantium.runs import records
from byzantium.runs.certification import Certification
from byzantium.runs.federation import Federation
from byzantium.runs.job import CONFIGURATION, FAILURE, NUMERICS, Job, finished, measured
from byzantium.runs.mimicry import Mimicry
from byzantium.runs.packs import Packs
from byzantium.runs.records import Folder, Metrics
from byzantium.runs.run import LAST, Run
from byzantium.runs.values import number

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger("byzantium")

KINDS: dict[str, type[Job]] = {
    kind.__name__: kind for kind in (Run, Mimicry, Federation, Certification)
}


@dataclass(frozen=True)
class Result:
    """What is on disk of a job: how far it is, and what it measured.

    - `folder`: its folder; where `pack` names a file, it need not exist.
    - `status`: "missing" (nothing is there), "unfinished", "running" (another process works on it),
      "failed", "completed", "diverged", or "damaged" (its files cannot be read).
    - `metrics`: what was measured: a mapping from names to values for each evaluation.
    - `summary`: of a finished job, its accuracy, how long it took, and on what machine; empty for
      all others.
    - `round`: in which round it diverged; None if it did not.
    - `reason`: why it failed or is damaged, in one sentence.
    - `pack`: the pack that holds it; None if it is in its folder.

    >>> from byzantium.runs import Run
    >>> Result(Run(), Path("results"), "completed", [], {"accuracy": 91.5}).accuracy
    91.5
    """

    job: Job
    folder: Path
    status: str
    metrics: list[Metrics]
    summary: dict[str, Any]
    round: int | None = None
    reason: str = ""
    pack: Path | None = None

    @property
    def done(self) -> bool:
        """Whether the job is finished: completed, or diverged."""
        return bool(self.summary)

    @property
    def ending(self) -> str:
        """The status; for a job that diverged, also in which round."""
        return self.status if self.round is None else f"{self.status} in round {self.round}"

    @property
    def accuracy(self) -> float | None:
        """The mean test accuracy of the last five evaluations, in percent.

        None unless the job is completed, and where there are no classes.
        """
        return self.summary.get("accuracy")

    @property
    def measured(self) -> float | None:
        """The number that the job is judged by: accuracy, error, or for regression the test loss.

        None unless the job is completed.
        """
        value = self.summary.get(self.job.measure)
        return self.summary.get("loss") if value is None else value

    def mean_of_last(self, metric: str) -> float | None:
        """The mean of a metric over its last five evaluations that are finite.

        None unless the job is completed and recorded it.
        """
        values = [line[metric] for line in self.metrics if number(line.get(metric))][-LAST:]
        return sum(values) / len(values) if values and self.status == "completed" else None


class Store:
    """A folder of results, in which every job has a folder of its own, named by its identity.

    Files beside the folders that end in .jsonl are packs, which `byzantium pack` makes: each line
    of them stands for a folder. A job that has both is read from its folder.

    Iterate over it for all results that are there. Looking takes no lock and writes nothing.

    - `root`: the folder; it need not exist yet.

    >>> from tempfile import mkdtemp
    >>> store = Store(mkdtemp())
    >>> store.result(Run()).status
    'missing'
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._named: set[str] = set()

    def folder(self, job: Job) -> Path:
        """The folder of a job, whether it exists or not."""
        return self.root / job.identity

    def result(self, job: Job) -> Result:
        """What is on disk of a job; raises an error where its files cannot be read."""
        return self._result(job, self._packs())

    def results(self, jobs: Iterable[Job]) -> list[Result]:
        """What is on disk of each of some jobs.

        Where files cannot be read, the log says so, and the status is "damaged".
        """
        packs, results = self._packs(), list[Result]()
        for job in jobs:
            try:
                results.append(self._result(job, packs))
            except ValueError as error:
                folder, reason = self.folder(job), records.describe_file_error(error)
                self.pass_over(str(folder), error)
                results.append(Result(job, folder, "damaged", [], {}, reason=reason))
        return results

    def __iter__(self) -> Iterator[Result]:
        """All results in the order of their identities; the log names those that are damaged."""
        packs = self._packs()
        places = self.root.iterdir() if self.root.exists() else ()
        folders = {place.name for place in places if re.fullmatch(r"[0-9a-f]{16}", place.name)}
        for identity in sorted(folders.union(packs)):
            place: Folder = (folder := self.root / identity)
            try:
                if identity in packs and not _is_there(folder):
                    place = packs[identity]
                result = self._result(job_in(place), packs)
            except FileNotFoundError:
                # A process that has just begun to work there has not written it yet.
                if not is_locked(folder):
                    self.pass_over(str(place), ByzantiumError(f"it has no {CONFIGURATION}"))
            except Exception as error:  # whatever it is that the file of somebody else causes
                self.pass_over(str(place), error)
            else:
                yield result

    def _packs(self) -> Packs:
        return Packs(self.root, self.pass_over)

    def _result(self, job: Job, packs: Packs) -> Result:
        folder = self.folder(job)
        if there := _is_there(folder):
            result = self._read(job, folder)
            if _is_there(folder):
                return result
            packs = self._packs()  # somebody has just packed it
        if job.identity in packs:
            return self._read(job, packs[job.identity])
        return result if there else self._read(job, folder)

    def _read(self, job: Job, place: Folder) -> Result:
        folder, pack = self.folder(job), None if isinstance(place, Path) else place.pack
        # This is asked before anything is read: a job that another process finishes meanwhile would
        # otherwise seem to be left unfinished.
        working = is_locked(folder)
        if (done := finished(job, place)) is not None:
            summary, metrics = done
            status, at = records.outcome(summary["status"])
            return Result(job, folder, status, metrics, summary, at, pack=pack)
        metrics = measured(job, place)
        reason = None if working else records.failure(place / FAILURE)
        if reason is not None:
            return Result(job, folder, "failed", metrics, {}, reason=reason, pack=pack)
        there = pack is not None or _is_there(folder)
        status = "missing" if not there else "running" if working else "unfinished"
        return Result(job, folder, status, metrics, {}, pack=pack)

    def pass_over(self, what: str, error: Exception) -> None:
        """Say in the log, once, what cannot be read; nothing is changed."""
        if what not in self._named:
            self._named.add(what)
            logger.warning("%s is skipped: %s", what, records.describe_file_error(error))

    def table(self) -> pandas.DataFrame:
        """All results as a table of pandas: fields, status, accuracy and seconds, a row each."""
        table = import_optional("pandas", "report", "a table of results")
        return table.DataFrame([_row(result) for result in self])


class Snapshot(Store):
    """A folder of results as it was when each result was first asked for: nothing is read twice.

    - `root`: the folder.
    - `results`: results that were read before; those of finished jobs are not read again.

    >>> from byzantium.runs import Run
    >>> snapshot = Snapshot("nowhere")
    >>> snapshot.result(Run()) is snapshot.result(Run())
    True
    """

    def __init__(self, root: Path | str, results: Iterable[Result] = ()) -> None:
        super().__init__(root)
        self._results = {result.job: result for result in results if result.done}
        self._all: list[Result] | None = None

    def renewed(self) -> Snapshot:
        """The folder as it is now; finished jobs are not read again.

        The log does not name again what is skipped.

        >>> Snapshot("nowhere").renewed().root.name
        'nowhere'
        """
        fresh = Snapshot(self.root, self._results.values())
        fresh._named = self._named
        return fresh

    def _result(self, job: Job, packs: Packs) -> Result:
        if job not in self._results:
            self._results[job] = super()._result(job, packs)
        return self._results[job]

    def __iter__(self) -> Iterator[Result]:
        if self._all is None:
            self._all = list(super().__iter__())
        return iter(self._all)


def _is_there(folder: Path) -> bool:
    """Whether a folder holds a job: its configuration is written first, and removed first."""
    return os.path.exists(folder / CONFIGURATION)


def job_in(folder: Folder) -> Job:
    """The job whose results a folder holds; raises an error where its name is of another job."""
    job = job_of(records.configuration(folder / CONFIGURATION))
    if job.identity == folder.name:
        return job
    for older in range(NUMERICS):
        if job.identity_in(older) == folder.name:
            raise ByzantiumError(
                f"it was made with numerics {older}, in which the same job meant something else; "
                f"this is numerics {NUMERICS}"
            )
    raise ByzantiumError(f"its {CONFIGURATION} is that of another job")


def job_of(values: dict[str, Any]) -> Job:
    """A job from its configuration."""
    values = dict(values)
    kind = values.pop("kind", "Run")
    if kind not in KINDS:
        raise ByzantiumError(f"there is no kind of job {kind!r}; there are {', '.join(KINDS)}")
    return KINDS[kind].from_record(values)


def _row(result: Result) -> dict[str, Any]:
    values = result.job.configuration().items()
    return {
        "identity": result.job.identity,
        **{k: json.dumps(v) if isinstance(v, (tuple, dict)) else v for k, v in values},
        "status": result.ending,
        "accuracy": result.accuracy,
        "seconds": result.summary.get("seconds"),
        "reason": result.reason,
    }
