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
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from byzantium.core import ByzantiumError, cached_property, files
from byzantium.runs import records
from byzantium.runs.job import CONFIGURATION, FAILURE, METRICS, SUMMARY
from byzantium.runs.records import Metrics
from byzantium.runs.values import Checks

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


# -- a line -------------------------------------------------------------------------------------


def encode(identity: str, contents: dict[str, bytes]) -> bytes:
    r"""The line of a pack with these files; raises an error where it would not give them back.

    - `identity`: the identity of the job.
    - `contents`: the bytes of its files by name.

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
    return Record(Path(), 0, _parsed(line)).contents()


def _parsed(line: bytes) -> dict[str, Any]:
    """What a line holds; its identity is the one that it begins with."""
    values, start = records.mapping(json.loads(line)), START.match(line)
    if start is None or values["identity"] != start[1].decode():
        raise ByzantiumError("it has two identities")
    return values


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
        return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    if name == METRICS:
        return "".join(json.dumps(line) + "\n" for line in values)
    return json.dumps(values, indent=1) + "\n"


@dataclass(frozen=True)
class Record:
    """What a pack holds of a job.

    - `pack`: the pack.
    - `number`: the number of its line.
    - `values`: what the line holds.
    """

    pack: Path
    number: int
    values: dict[str, Any]

    def name_of(self, file: str) -> str:
        """What errors call a file of the job."""
        return f"{file} in line {self.number} of {self.pack}"

    def contents(self) -> dict[str, bytes]:
        """The bytes of all files of the job, by name."""
        contents = {
            name: _text(name, self.values[key]).encode()
            for name, key in KEYS.items()
            if key in self.values
        }
        for key, bytes_of in (("files", str.encode), ("base64", base64.b64decode)):
            for name, text in records.mapping(self.values.get(key, {})).items():
                if not NAME.fullmatch(name) or name in contents or not isinstance(text, str):
                    raise ByzantiumError(f"it holds a file {name[:100]!r}, which cannot be")
                contents[name] = bytes_of(text)
        return contents

    def content(self, file: str) -> bytes | None:
        """The bytes of one file; None if there is no such file."""
        with records.reading(self.name_of(file)):
            return self.contents().get(file)

    def configuration(self) -> dict[str, Any]:
        """The names and values of the job, as `records.configuration` reads them."""
        with records.reading(self.name_of(CONFIGURATION)):
            text = self._text(CONFIGURATION)
            if text is None:
                values = records.mapping(self.values.get("config"))
                records.check_length(_text(CONFIGURATION, values))
                return values
            records.check_length(text)
            return tomllib.loads(text)

    def summary(self, measure: str, declared: Checks) -> dict[str, Any] | None:
        """The summary of the job, checked like `records.summary`; None if there is none."""
        with records.reading(self.name_of(SUMMARY)):
            text = self._text(SUMMARY)
            if text is None and "summary" not in self.values:
                return None
            values = self.values["summary"] if text is None else json.loads(text)
            return records.check_summary(values, measure, declared)

    def metrics(self, workers: int | None, declared: Checks) -> list[Metrics]:
        """The metrics of the job, checked like `records.metrics`."""
        with records.reading(self.name_of(METRICS)):
            text = self._text(METRICS)
            if text is not None:  # a last line that is not whole does not count
                lines = map(json.loads, text.split("\n")[:-1])
                return records.check_metrics(lines, workers, declared)
            values = self.values.get("metrics", [])
            if not isinstance(values, list):
                raise ByzantiumError("it must hold a list")
            return records.check_metrics(values, workers, declared)

    def failure(self) -> str | None:
        """Why the last attempt at the job failed, checked; None if there is no such file."""
        with records.reading(self.name_of(FAILURE)):
            text = self._text(FAILURE)
            return None if text is None else records.check_failure(text)

    def _text(self, file: str) -> str | None:
        """A file that stands in the line as it is."""
        text = records.mapping(self.values.get("files", {})).get(file)
        if text is not None and (not isinstance(text, str) or KEYS.get(file) in self.values):
            raise ByzantiumError("it must be a text, and there once")
        return text


# -- a pack -------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where in a pack a line is: its first byte, how many bytes it has, and its number."""

    start: int
    size: int
    number: int


class Fault(NamedTuple):
    """Which line of a pack cannot be read, and why, as part of a sentence."""

    number: int
    reason: str


class Index(NamedTuple):
    """Which job is in which line of a pack, and which lines cannot be read.

    `version` is what changes when the file does: its device, inode, size and time.
    """

    version: tuple[int, ...]
    places: dict[str, Place]
    faults: list[Fault]


# The indexes of this process, by path; one of another version is read anew.
_indexes: dict[Path, Index] = {}


def index(path: Path) -> Index:
    """The index of a pack; a file that has not changed since the last time is not read again.

    Raises an error where it is a link, or anything but a regular file.
    """
    status, known = path.lstat(), _indexes.get(path)
    if stat.S_ISLNK(status.st_mode):
        raise ByzantiumError("it is a link")
    if known is not None and known.version == _version(status):
        return known
    with files.reading(path, LARGEST_PACK) as file:
        return _known_index(file, path)


def _known_index(file: BufferedReader, path: Path) -> Index:
    version, known = _version(os.fstat(file.fileno())), _indexes.get(path)
    if known is None or known.version != version:
        if len(_indexes) >= MOST_INDEXES:
            _indexes.clear()
        known = _indexes[path] = _index(file, version)
    return known


def _version(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _index(file: BufferedReader, version: tuple[int, ...]) -> Index:
    places, faults, start = dict[str, Place](), list[Fault](), 0
    for number, (line, size) in enumerate(_lines(file), 1):
        if number > MOST_LINES:
            faults.append(Fault(number, f"it is not among the first {MOST_LINES} lines"))
            break
        match = START.match(line)
        identity = match[1].decode() if match else ""
        if size > LONGEST_LINE:
            faults.append(Fault(number, f"it has more than {LONGEST_LINE} bytes"))
        elif not identity:
            faults.append(Fault(number, "it does not begin with the identity of a job"))
        elif identity in places:
            faults.append(Fault(number, f"line {places[identity].number} holds the same job"))
        else:
            places[identity] = Place(start, size, number)
        start += size
    return Index(version, places, faults)


def _lines(file: BufferedReader) -> Iterator[tuple[bytes, int]]:
    """The lines of a pack and their sizes; of one that is too long, only its beginning."""
    while line := file.readline(LONGEST_LINE + 1):
        size, rest = len(line), line
        while not rest.endswith(b"\n") and (rest := file.readline(LONGEST_LINE)):
            size += len(rest)
        yield line, size


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

    - `root`: the folder of results.
    - `pass_over`: called with what cannot be read, and with the error.
    """

    def __init__(
        self, root: Path, pass_over: Callable[[str, Exception], None] = lambda what, error: None
    ) -> None:
        self.root, self.pass_over = root, pass_over

    @cached_property
    def _indexes(self) -> dict[Path, Index]:
        indexes = {}
        for path in paths(self.root):
            try:
                indexes[path] = index(path)
            except Exception as error:  # of the system, in many kinds
                self.pass_over(str(path), error)
            else:
                self._name(path, indexes[path].faults)
        return indexes

    def _name(self, path: Path, faults: list[Fault]) -> None:
        for fault in faults[:MOST_FAULTS]:
            self.pass_over(f"line {fault.number} of {path}", ByzantiumError(fault.reason))
        if rest := len(faults[MOST_FAULTS:]):
            reason = ByzantiumError(f"{rest} other lines of it cannot be read")
            self.pass_over(f"a part of {path}", reason)

    def __iter__(self) -> Iterator[str]:
        seen: dict[str, Path] = {}
        for path, known in self._indexes.items():
            again = known.places.keys() & seen
            self._name(path, [
                Fault(known.places[identity].number, f"{seen[identity].name} holds the same job")
                for identity in sorted(again)
            ])  # fmt: skip
            seen |= dict.fromkeys(known.places.keys() - again, path)
        return iter(seen)

    def __contains__(self, identity: str) -> bool:
        return any(identity in known.places for known in self._indexes.values())

    def __getitem__(self, identity: str) -> Record:
        """What the packs hold of a job; raises an error where its line cannot be read."""
        path = next(path for path, one in self._indexes.items() if identity in one.places)
        with records.reading(path), files.reading(path, LARGEST_PACK) as file:
            place = _known_index(file, path).places.get(identity)
            if place is None:
                raise ByzantiumError("it has just been changed")
            file.seek(place.start)
            line = file.read(place.size)
        with records.reading(f"line {place.number} of {path}"):
            return Record(path, place.number, _parsed(line))


def read(path: Path, most: int) -> bytes:
    """The contents of a file in the folder of a job; where there is none, those in a pack.

    - `path`: the file, in the folder of the job.
    - `most`: the most bytes that it may have.
    """
    try:
        return files.read(path, most)
    except FileNotFoundError:
        packs, identity = Packs(path.parent.parent), path.parent.name
        content = packs[identity].content(path.name) if identity in packs else None
        if content is None:
            raise
        if len(content) > most:
            raise ByzantiumError(f"it has more than {most} bytes") from None
        return content
