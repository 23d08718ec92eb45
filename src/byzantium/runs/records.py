"""Reading the records of a job, and checking them: what is wrong is an error of one sentence.

Records may be damaged, or come from anybody. What passes here is used by tables, figures and the
page without a further check. `packs` reads the same records from another file, and checks them
with the same functions.
"""

from __future__ import annotations

import json
import re
import reprlib
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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


class Outcome(NamedTuple):
    """How a job that is done ended: "completed", or "diverged", and then in which round."""

    status: str
    round: int | None = None


def outcome(text: Any) -> Outcome:
    """What the status in a summary means: "completed" or "diverged in round 17"."""
    if text == "completed":
        return Outcome("completed")
    if isinstance(text, str) and (found := DIVERGED.fullmatch(text)):
        return Outcome("diverged", int(found[1]))
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


def configuration(path: Path) -> dict[str, Any]:
    """The names and values of a job."""
    with reading(path):
        text = _text(path)
        check_length(text)
        return tomllib.loads(text)


def check_length(text: str) -> None:
    """Raise an error where a configuration, as TOML, is longer than that of any job."""
    if len(text) > LONGEST_CONFIGURATION:  # which could take hours to read
        raise ByzantiumError(f"it has {len(text)} characters, more than any job")


def summary(path: Path, measure: str, declared: Checks) -> dict[str, Any] | None:
    """The summary of a finished job, checked; None if there is no such file.

    - `path`: the file.
    - `measure`, `declared`: see `check_summary`.
    """
    with reading(path):
        try:
            values = _parsed(path, _text(path))
        except FileNotFoundError:
            return None
        return check_summary(values, measure, declared)


def check_summary(values: Any, measure: str, declared: Checks) -> dict[str, Any]:
    """The summary of a finished job, checked.

    - `values`: the summary.
    - `measure`: what a completed job must have, such as "accuracy"; for regression, a loss is
      accepted instead.
    - `declared`: the kinds of its values, by name.
    """
    values = mapping(values)
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


def failure(path: Path) -> str | None:
    """Why the last attempt at a job failed; None if there is no such file."""
    with reading(path):
        try:
            return check_failure(_text(path))
        except FileNotFoundError:
            return None


def check_failure(text: str) -> str:
    """Why an attempt at a job failed, checked; `text` is the JSON that says it."""
    reason = mapping(json.loads(text)).get("reason")
    if not kinds.text(reason, LONGEST_SENTENCE + len(CUT)):
        raise ByzantiumError(f"its reason is {reprlib.repr(reason)}")
    return str(reason)


def metrics(path: Path, workers: int | None, declared: Checks) -> list[Metrics]:
    """The metrics of a job, checked: a mapping for each evaluation; empty if there is no such file.

    - `path`: the file.
    - `workers`, `declared`: see `check_metrics`.
    """
    with reading(path):
        return check_metrics(_lines(path), workers, declared)


def check_metrics(lines: Iterable[Any], workers: int | None, declared: Checks) -> list[Metrics]:
    """The metrics of a job, checked.

    - `lines`: a mapping for each evaluation; each is checked before the next is read.
    - `workers`: how many workers there are, each of whom may have a weight. If it is None, all
      lines must agree on it.
    - `declared`: the kinds of its metrics, by name. One that is not among them, of a plugin that is
      not loaded, is in all lines of the kind that it is in the first.
    """
    checked, last, others = list[Metrics](), 0, dict[str, Check]()
    for k, line in enumerate(map(mapping, lines), 1):
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


def lines(path: Path) -> list[Metrics]:
    """The whole lines of a file that may be growing; a torn last one is left out."""
    with reading(path):
        return list(_lines(path))


def entries(path: Path) -> list[Any]:
    """What is listed in a JSON file; empty if there is none."""
    with reading(path):
        try:
            values = _parsed(path, _text(path))
        except FileNotFoundError:
            return []
        if not isinstance(values, list):
            raise ByzantiumError(f"it must hold a list, not {type_name(values)}")
        return values


def seconds(path: Path) -> float:
    """What is written in a file as one number; 0 if there is none."""
    with reading(path):
        try:
            value = float(_text(path))
        except FileNotFoundError:
            return 0.0
        if not kinds.size(value):
            raise ByzantiumError(f"it says {value}")
        return value


# -- how ----------------------------------------------------------------------------------------


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """A context in which every error but that of a missing file becomes a sentence about a file.

    - `path`: the file, or what else is being read.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # decoders have errors of many kinds
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


def _text(path: Path) -> str:
    return files.read(path, LARGEST_RECORD).decode()


def _parsed(path: Path, text: str) -> Any:
    return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)


def mapping(value: Any) -> dict[str, Any]:
    """The value, if it holds names and values; raises an error otherwise."""
    if not isinstance(value, dict):
        raise ByzantiumError(f"it must hold names and values, not {type_name(value)}")
    return value


def _lines(path: Path) -> Iterator[Metrics]:
    with suppress(FileNotFoundError):
        for line in files.read_lines(path, LARGEST_METRICS, LONGEST_LINE):
            yield mapping(json.loads(line))
