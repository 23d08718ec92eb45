"""Packs: many finished folders of results in one file, a line of JSON for each job.

A pack is a file such as `results/table2.jsonl`. A line holds the identity of a job, and under
"config", "metrics" and "summary" what its three files hold; other files stand as they are under
"files" (texts) and "base64". `byzantium pack` writes them (`packing`), and a `Store` reads them.

A pack may come from anybody: sizes are bounded, only regular files are opened, and what a line
holds passes the checks of `records`. A line that cannot be read is named, the others are read.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from byzantium.core import ByzantiumError, cached_property, files
from byzantium.runs import records
from byzantium.runs.job import CONFIGURATION, METRICS, SUMMARY
from byzantium.runs.records import PackedFolder

SUFFIX = ".jsonl"
# The most bytes of a pack and of a line in it, and the most lines.
LARGEST_PACK, LONGEST_LINE, MOST_LINES = 1 << 30, 1 << 23, 200_000
# Of so many lines of a pack that cannot be read the log speaks; the others are only counted.
MOST_FAULTS = 10
# For so many packs this process remembers which line holds which job.
MOST_INDEXES = 256
# A line begins with the identity, so that one job is found without decoding the others.
START = re.compile(rb'\{\s?"identity"\s?:\s?"([0-9a-f]{16})"')
# The names of files that are packed. Models, checkpoints, logs and dotfiles are not.
NAME = re.compile(r"(?!.*\.(pt|log|writing)$)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Under which key of a line the contents of a file are, as values instead of text.
KEYS = {CONFIGURATION: "config", METRICS: "metrics", SUMMARY: "summary"}


def encode(identity: str, contents: dict[str, bytes]) -> bytes:
    r"""The line of a pack with these files; raises an error where it would not give them back.

    >>> contents = {"config.toml": b'rule = "Mean()"\n', "metrics.jsonl": b""}
    >>> line = encode("0123456789abcdef", contents)
    >>> line
    b'{"identity":"0123456789abcdef","config":{"rule":"Mean()"},"metrics":[]}\n'
    >>> decode(line) == contents
    True
    """
    record: dict[str, Any] = {"identity": identity}
    texts, binaries = dict[str, str](), dict[str, str]()
    for name in sorted(contents, key=lambda name: (name not in KEYS, name)):
        content = contents[name]
        try:
            text = content.decode()
        except UnicodeDecodeError:
            binaries[name] = base64.b64encode(content).decode()
            continue
        values = _values(name, text) if name in KEYS else None
        if values is None:
            texts[name] = text
        else:
            record[KEYS[name]] = values
    record |= {"files": texts} if texts else {}
    record |= {"base64": binaries} if binaries else {}
    line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    if len(line) > LONGEST_LINE:
        raise ByzantiumError(f"its line would have more than {LONGEST_LINE} bytes")
    if decode(line) != contents:
        raise ByzantiumError("its files would not be the same bytes again")
    return line


def decode(line: bytes) -> dict[str, bytes]:
    """The bytes of the files that a line of a pack holds, by name."""
    values, start = records.mapping(json.loads(line)), START.match(line)
    if start is None or values["identity"] != start[1].decode():
        raise ByzantiumError("it has two identities")
    contents = {
        name: _text(name, values[key]).encode() for name, key in KEYS.items() if key in values
    }
    for key, bytes_of in (("files", str.encode), ("base64", base64.b64decode)):
        for name, text in records.mapping(values.get(key, {})).items():
            if not NAME.fullmatch(name) or name in contents or not isinstance(text, str):
                raise ByzantiumError(f"it holds a file {name[:100]!r}, which cannot be")
            contents[name] = bytes_of(text)
    return contents


def _values(name: str, text: str) -> Any:
    """The values in a file; None where the same text could not be made of them again."""
    values: Any
    try:
        if name == CONFIGURATION:
            values = tomllib.loads(text)
        elif name == METRICS:
            values = [json.loads(line) for line in text.splitlines()]
        else:
            values = json.loads(text)
        return values if _text(name, values) == text else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _text(name: str, values: Any) -> str:
    """The text of a file with these values, as `Job` writes it."""
    if name == CONFIGURATION:
        items = records.mapping(values).items()
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in items)
    if name == METRICS:
        if not isinstance(values, list):
            raise ByzantiumError("its metrics are not a list")
        return "".join(json.dumps(line) + "\n" for line in values)
    return json.dumps(values, indent=1) + "\n"


class Place(NamedTuple):
    """Where in a pack a line is: its first byte, how many bytes it has, and its number."""

    start: int
    size: int
    number: int


class Index(NamedTuple):
    """Which job is in which line of a pack, and which lines cannot be read."""

    places: dict[str, Place]  # by identity
    faults: dict[int, str]  # why, as part of a sentence, by the number of the line


def index(path: Path) -> Index:
    """The index of a pack; a file that has not changed since the last time is not read again.

    Raises an error where it is a link, or anything but a regular file.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise ByzantiumError("it is a link")
    return _index(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(MOST_INDEXES)
def _index(path: Path, *version: int) -> Index:
    """The index of a pack in a version: what changes when the file does."""
    places, faults = dict[str, Place](), dict[int, str]()
    with files.reading(path, LARGEST_PACK) as file:
        for number in range(1, MOST_LINES + 2):
            start = file.tell()
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                break
            match = START.match(line)
            identity = match[1].decode() if match else ""
            if number > MOST_LINES:
                faults[number] = f"it is not among the first {MOST_LINES} lines"
            elif len(line) > LONGEST_LINE:
                faults[number] = f"it has more than {LONGEST_LINE} bytes"
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
            elif not identity:
                faults[number] = "it does not begin with the identity of a job"
            elif identity in places:
                faults[number] = f"line {places[identity].number} holds the same job"
            else:
                places[identity] = Place(start, len(line), number)
    return Index(places, faults)


def paths(root: Path) -> list[Path]:
    """The packs in a folder of results, in the order of their names."""
    try:
        names = os.listdir(root)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [root / name for name in sorted(names) if name.endswith(SUFFIX) and name[0] != "."]


class Packs:
    """The packs in a folder of results, as they are when the first job is looked up.

    Iterate over it for the identities of all jobs in them.

    - `pass_over`: called with what cannot be read, and with the error.
    """

    def __init__(
        self, root: Path, pass_over: Callable[[str, Exception], None] = lambda what, error: None
    ) -> None:
        self.root, self.pass_over = root, pass_over
        self._last: PackedFolder | None = None

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """Which job is in which pack, by identity."""
        packs: dict[str, Path] = {}
        for path in paths(self.root):
            try:
                places, faults = index(path)
            except Exception as error:  # of the system, in many kinds
                self.pass_over(str(path), error)
                continue
            faults = faults | {
                places[identity].number: f"{packs[identity].name} holds the same job"
                for identity in places.keys() & packs
            }
            for number in sorted(faults)[:MOST_FAULTS]:
                self.pass_over(f"line {number} of {path}", ByzantiumError(faults[number]))
            if (rest := len(faults) - MOST_FAULTS) > 0:
                reason = ByzantiumError(f"{rest} other lines of it cannot be read")
                self.pass_over(f"a part of {path}", reason)
            packs = dict.fromkeys(places, path) | packs
        return packs

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __contains__(self, identity: str) -> bool:
        return identity in self._paths

    def __getitem__(self, identity: str) -> PackedFolder:
        """What the packs hold of a job; raises an error where its line cannot be read."""
        if self._last is None or self._last.name != identity:
            self._last = self._folder(self._paths[identity], identity)
        return self._last

    def _folder(self, path: Path, identity: str) -> PackedFolder:
        with records.reading(path):
            place = index(path).places.get(identity, Place(0, 0, 0))
            with files.reading(path, LARGEST_PACK) as file:
                file.seek(place.start)
                line = file.read(place.size)
            match = START.match(line)
            if not match or match[1].decode() != identity:
                raise ByzantiumError("it has just been changed")
        with records.reading(f"line {place.number} of {path}"):
            return PackedFolder(path, place.number, identity, decode(line), line)


def read(path: Path, most: int) -> bytes:
    """The contents of a file in the folder of a job; where there is none, those in a pack."""
    try:
        return files.read(path, most)
    except FileNotFoundError:
        packs, identity = Packs(path.parent.parent), path.parent.name
        if identity not in packs:
            raise
        return records.read_file(packs[identity] / path.name, most)
