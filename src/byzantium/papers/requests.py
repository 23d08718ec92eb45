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
# The name of an artifact, and its version.
Request = tuple[str, Version]


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
        entries = self._entries()
        if entries is None:
            return
        before = [request[1] for _, request in entries if request and request[0] == name]
        version = next((other for other in before if other.covers(version)), version)
        # Unreadable entries stay: they may be from a later version of this program.
        others = [
            entry
            for entry, request in entries
            if not request or request[0] != name or not version.covers(request[1])
        ]
        text = [(name, dataclasses.asdict(version)), *others]
        try:
            files.write(self.path, json.dumps(text, indent=1) + "\n")
        except RecursionError as error:  # nested too deeply to be written
            self.store.pass_over(str(self.path), error)

    def __iter__(self) -> Iterator[Request]:
        """The names and versions of the requested artifacts, the last one first."""
        return (request for _, request in self._entries() or () if request is not None)

    def _entries(self) -> list[tuple[Any, Request | None]] | None:
        """Each entry of the file and its request; None for what cannot be read."""
        try:
            entries = records.entries(self.path)
        except ValueError as error:
            self.store.pass_over(str(self.path), error)
            return None
        return [(entry, self._read(entry, number)) for number, entry in enumerate(entries, 1)]

    def _read(self, entry: Any, number: int) -> Request | None:
        try:
            match entry:
                case [str(name), dict(values)]:
                    version = Version.of(values)
                    artifact(name, version)  # raises an error if it cannot be made
                    return name, version
            raise ByzantiumError("it is not the name of an artifact and its version")
        except Exception as error:  # the file may come from anybody
            self.store.pass_over(f"entry {number} of {self.path}", error)
            return None
