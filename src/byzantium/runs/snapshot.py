"""A folder of results that is read once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from byzantium.runs.job import Job
from byzantium.runs.packs import Packs
from byzantium.runs.store import Result, Store


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
