"""Reading the records of a job, and checking them: what is wrong is an error of one sentence.

Records may be damaged, or come from anybody. What passes here is used by tables, figures and the
page without a further check. They are in a folder, or in a line of a pack, which is read like one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import reprlib
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from byzantium.core import ByzantiumError, files, one_line, type_name
from byzantium.runs import values as kinds
from byzantium.runs.values import Check, Checks

#: What was measured at an evaluation, by name: a line of metrics.jsonl.
Metrics = dict[str, Any]

# The most characters that a sentence about an error and a configuration have.
LONGEST_SENTENCE, LONGEST_CONFIGURATION = 600, 16000
CUT = "..."
# The most bytes of a file with one record, such as a summary; of a sweep; of all metrics of a job,
# and of one line of them.
LARGEST_RECORD, LARGEST_SWEEP = 1 << 20, 1 << 24
LARGEST_METRICS, LONGEST_LINE = 1 << 28, 1 << 22
DIVERGED = re.compile(r"diverged in round ([0-9]{1,15})")


@dataclass(frozen=True)
class PackedFolder:
    """A line of a pack, read like the folder of a job: `/` gives a file in it.

    - `number`: the number of the line.
    - `name`: the identity of the job, which would be the name of the folder.
    - `contents`: the bytes of its files, by name.
    """

    pack: Path
    number: int
    name: str
    contents: dict[str, bytes]
    line: bytes

    def __str__(self) -> str:
        return f"line {self.number} of {self.pack}"

    def __truediv__(self, name: str) -> PackedFile:
        return PackedFile(name, str(self), self.contents.get(name))


class PackedFile(NamedTuple):
    """A file in a line of a pack; its content is None if there is no such file."""

    name: str
    line: str
    content: bytes | None

    def __str__(self) -> str:
        return f"{self.name} in {self.line}"


#: A folder of a job, on the disk or in a pack, and a file in it.
Folder = Path | PackedFolder
File = Path | PackedFile


class Outcome(NamedTuple):
    """How a job that is done ended: "completed", or "diverged", and then in which round."""

    status: str
    round: int | None = None


def outcome(text: Any) -> Outcome:
    """What the status in a summary means: "completed" or "diverged in round 17"."""
    if text == "completed":
        return Outcome("completed")
    if isinstance(text, str) and (match := DIVERGED.fullmatch(text)):
        return Outcome("diverged", int(match[1]))
    raise ByzantiumError(f"its status is {reprlib.repr(text)}")


def read(path: Path) -> dict[str, Any]:
    """The names and values in a TOML or JSON file.

    - `path`: the file; if its name ends in .json, it is read as JSON.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "run.toml")
    ...     _ = path.write_text('rule = "Krum()"')
    ...     read(path)
    {'rule': 'Krum()'}
    """
    with reading(path):
        return mapping(_parsed(path, files.read(path, LARGEST_SWEEP, pipe=True).decode()))


def configuration(path: File) -> dict[str, Any]:
    """The names and values of a job."""
    with reading(path):
        text = _text(path)
        if len(text) > LONGEST_CONFIGURATION:  # which could take hours to read
            raise ByzantiumError(f"it has {len(text)} characters, more than any job")
        return tomllib.loads(text)


def summary(path: File, measure: str, declared: Checks) -> dict[str, Any] | None:
    """The summary of a finished job, checked; None if there is no such file.

    - `measure`: what a completed job must have, such as "accuracy"; for regression, a loss is
      accepted instead.
    - `declared`: the kinds of its values, by name.
    """
    with reading(path):
        if (text := _text_if_there(path)) is None:
            return None
        values = mapping(_parsed(path, text))
        status = outcome(values.get("status")).status
        for name, kind in declared.items():
            if name in values and not kind(values[name]):
                raise ByzantiumError(f"its {name} is {reprlib.repr(values[name])}")
        measured = values.get(measure)
        instead = measure == "accuracy" and values.get("loss") is not None
        if status == "completed" and measured is None and not instead:
            raise ByzantiumError(f"it {status} and has no {measure}")
        if status != "completed" and measured is not None:
            raise ByzantiumError(f"it {status} and has the {measure} {reprlib.repr(measured)}")
        return values


def failure(path: File) -> str | None:
    """Why the last attempt at a job failed; None if there is no such file."""
    with reading(path):
        if (text := _text_if_there(path)) is None:
            return None
        reason = mapping(json.loads(text)).get("reason")
        if not kinds.text(reason, LONGEST_SENTENCE + len(CUT)):
            raise ByzantiumError(f"its reason is {reprlib.repr(reason)}")
        return str(reason)


def metrics(path: File, workers: int | None, declared: Checks) -> list[Metrics]:
    """The metrics of a job, checked: a mapping for each evaluation; empty if there is no such file.

    - `workers`: how many workers there are, each of whom may have a weight. If it is None, all
      lines must agree on it.
    - `declared`: the kinds of its metrics, by name. One that is not among them, of a plugin that is
      not loaded, is in all lines of the kind that it is in the first.
    """
    with reading(path):
        checked, last, others = list[Metrics](), 0, dict[str, Check]()
        for k, line in enumerate(_lines(path), 1):
            at: Any = line.get("round")
            if not kinds.whole(at) or at <= last:
                raise ByzantiumError(f"line {k} has the round {reprlib.repr(at)}")
            last = at
            if workers is None and isinstance(line.get("weights"), list):
                workers = len(line["weights"])
            for name, value in line.items():
                if not kinds.text(name):
                    raise ByzantiumError(f"line {k} has a metric named {reprlib.repr(name)}")
                kind = declared.get(name) or others.setdefault(name, kinds.check_by_value(value))
                odd = kind is kinds.shares and isinstance(value, list) and len(value) != workers
                if odd or not kind(value):
                    raise ByzantiumError(f"line {k} has the {name[:40]} {reprlib.repr(value)}")
            checked.append(line)
        return checked


def entries(path: Path) -> list[Any]:
    """What is listed in a JSON file; empty if there is none."""
    with reading(path):
        if (text := _text_if_there(path)) is None:
            return []
        values = _parsed(path, text)
        if not isinstance(values, list):
            raise ByzantiumError(f"it must hold a list, not {type_name(values)}")
        return values


def seconds(path: Path) -> float:
    """What is written in a file as one number; 0 if there is none."""
    with reading(path):
        text = _text_if_there(path)
        value = 0.0 if text is None else float(text)
        if not kinds.size(value):
            raise ByzantiumError(f"it says {value}")
        return value


@contextmanager
def reading(path: File | str, *, there: bool = False) -> Iterator[None]:
    """A context in which every error becomes a sentence about a file.

    - `path`: the file, or what else is being read.
    - `there`: whether this is also so for the error that it is missing.
    """
    try:
        yield
    except Exception as error:  # decoders have errors of many kinds
        if isinstance(error, FileNotFoundError) and not there:
            raise
        raise ByzantiumError(f"{path} cannot be read: {describe_file_error(error)}") from error


def describe_file_error(error: BaseException) -> str:
    """An error in a few words, as part of a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror, LONGEST_SENTENCE)
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text in UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return one_line(str(error), LONGEST_SENTENCE) or type(error).__name__


def describe_failure(error: BaseException) -> str:
    """Why a job failed, in one line; our own sentences say all, of others the kind helps."""
    own = isinstance(error, ByzantiumError)
    text = str(error) if own else f"{type(error).__name__}: {error}"
    return one_line(text, LONGEST_SENTENCE)


def read_file(path: File, most: int) -> bytes:
    """The contents of a file that has at most so many bytes."""
    if isinstance(path, Path):
        return files.read(path, most)
    if path.content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if len(path.content) > most:
        raise ByzantiumError(f"it has more than {most} bytes")
    return path.content


def _text(path: File) -> str:
    return read_file(path, LARGEST_RECORD).decode()


def _text_if_there(path: File) -> str | None:
    with suppress(FileNotFoundError):
        return _text(path)
    return None


def _parsed(path: File, text: str) -> Any:
    return json.loads(text) if path.name.endswith(".json") else tomllib.loads(text)


def mapping(value: Any) -> dict[str, Any]:
    """The value, if it holds names and values; raises an error otherwise."""
    if not isinstance(value, dict):
        raise ByzantiumError(f"it must hold names and values, not {type_name(value)}")
    return value


def _lines(path: File) -> Iterator[Metrics]:
    with suppress(FileNotFoundError):
        if isinstance(path, Path):
            yield from map(_line, files.read_lines(path, LARGEST_METRICS, LONGEST_LINE))
        else:  # a last line that is not whole does not count
            yield from map(_line, read_file(path, LARGEST_METRICS).split(b"\n")[:-1])


def _line(text: str | bytes) -> Metrics:
    return mapping(json.loads(text))
