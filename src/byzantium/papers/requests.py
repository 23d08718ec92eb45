"""Which tables and figures were asked for, so that reports show them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from byzantium.core import ByzantiumError, files
from byzantium.papers.bucketing import artifact
from byzantium.runs import Store, records
from byzantium.tables import Version

ARTIFACTS = "artifacts.json"


class Requests:
    """The tables and figures that were asked for, noted in a folder of results, for its report.

    Iterate over it for their names and versions, the last one first.

    - `store`: the folder of results.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     requests = Requests(Store(folder))
    ...     requests.add("table2", Version(seeds=1))
    ...     [(name, version.seeds) for name, version in requests]
    [('table2', 1)]
    """

    def __init__(self, store: Store) -> None:
        self.store, self.path = store, store.root / ARTIFACTS

    def add(self, name: str, version: Version) -> None:
        """Note that an artifact was asked for; a version with more of its cells stays instead."""
        noted = self._noted()
        if noted is None:
            return
        known = [asked[1] for _, asked in noted if asked is not None and asked[0] == name]
        wanted = next((other for other in known if other.covers(version)), version)
        # What cannot be read is kept: it may be of a later version of this program.
        others = [
            entry
            for entry, asked in noted
            if asked is None or asked[0] != name or not wanted.covers(asked[1])
        ]
        entries = [(name, dataclasses.asdict(wanted)), *others]
        try:
            files.write(self.path, json.dumps(entries, indent=1) + "\n")
        except RecursionError as error:  # what could just be read may be too deep to be written
            self.store.pass_over(str(self.path), error)

    def __iter__(self) -> Iterator[tuple[str, Version]]:
        """The artifacts that were asked for and their versions, the last one first."""
        return (asked for _, asked in self._noted() or () if asked is not None)

    def _noted(self) -> list[tuple[Any, tuple[str, Version] | None]] | None:
        """Each entry and what it asks for; None for one, or for all, that cannot be read."""
        noted: list[tuple[Any, tuple[str, Version] | None]] = []
        try:
            entries = records.entries(self.path)
        except ValueError as error:
            self.store.pass_over(str(self.path), error)
            return None
        for number, entry in enumerate(entries, 1):
            try:
                noted.append((entry, _asked(entry)))
            except Exception as error:  # whatever it is that a stranger made it trip over
                self.store.pass_over(f"entry {number} of {self.path}", error)
                noted.append((entry, None))
        return noted


def _asked(entry: Any) -> tuple[str, Version]:
    """An artifact and its version, which can be made."""
    match entry:
        case [str(name), dict(values)]:
            version = Version.of(values)
            artifact(name, version)
            return name, version
    raise ByzantiumError("it is not the name of an artifact and its version")
