"""Requests: the tables and figures that `byzantium reproduce` made, so that reports show them."""

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
    """The tables and figures that were requested, in a file in the folder of results.

    Reports show them. Iterate over it for their names and versions, the last one first.

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
        """Add the request of an artifact, unless a version with all its cells was requested."""
        noted = self._entries()
        if noted is None:
            return
        known = [asked[1] for _, asked in noted if asked is not None and asked[0] == name]
        wanted = next((other for other in known if other.covers(version)), version)
        # Unreadable entries stay: they may be from a later version of this program.
        others = [
            entry
            for entry, asked in noted
            if asked is None or asked[0] != name or not wanted.covers(asked[1])
        ]
        entries = [(name, dataclasses.asdict(wanted)), *others]
        try:
            files.write(self.path, json.dumps(entries, indent=1) + "\n")
        except RecursionError as error:  # nested too deeply to be written
            self.store.pass_over(str(self.path), error)

    def __iter__(self) -> Iterator[tuple[str, Version]]:
        """The names and versions of the requested artifacts, the last one first."""
        return (asked for _, asked in self._entries() or () if asked is not None)

    def _entries(self) -> list[tuple[Any, tuple[str, Version] | None]] | None:
        """Each entry of the file and its request; None for what cannot be read."""
        noted: list[tuple[Any, tuple[str, Version] | None]] = []
        try:
            entries = records.entries(self.path)
        except ValueError as error:
            self.store.pass_over(str(self.path), error)
            return None
        for number, entry in enumerate(entries, 1):
            try:
                noted.append((entry, _request(entry)))
            except Exception as error:  # the file may come from anybody
                self.store.pass_over(f"entry {number} of {self.path}", error)
                noted.append((entry, None))
        return noted


def _request(entry: Any) -> tuple[str, Version]:
    """The artifact and the version of an entry; raises an error if they cannot be made."""
    match entry:
        case [str(name), dict(values)]:
            version = Version.of(values)
            artifact(name, version)
            return name, version
    raise ByzantiumError("it is not the name of an artifact and its version")
