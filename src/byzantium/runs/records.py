"""Reading the files of a folder of results, and checking them: what is wrong is an error.

A folder may be damaged, or come from a stranger. What passes here is used by tables, figures and
the page without a further check.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from byzantium.core import ByzantiumError, files, kind_of
from byzantium.learning import metrics as measured

#: What was measured at an evaluation, by name: a line of metrics.jsonl.
Metrics = dict[str, Any]

#: Nothing that is measured may be larger; the square of this is still a number.
LARGEST = 1e100
# Up to here whole numbers are exact in JavaScript, too, which reads them on the page.
LARGEST_ROUND = 2**53
# The most characters that a text in a summary, a sentence about an error, and a configuration have.
LONGEST_TEXT, LONGEST_SENTENCE, LONGEST_CONFIGURATION = 300, 600, 16000
CUT = "..."
# The most bytes of a file with one record, such as a summary; of a sweep; of all metrics of a job,
# and of one line of them.
LARGEST_RECORD, LARGEST_SWEEP = 1 << 20, 1 << 24
LARGEST_METRICS, LONGEST_LINE = 1 << 28, 1 << 22
# No data set has more files.
MOST_FILES = 100
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DIVERGED = re.compile(r"diverged in round ([0-9]{1,15})")
TEXTS, COUNTS = ("byzantium", "python", "torch", "machine"), ("numerics", "threads")


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
    with _reading(path):
        return _mapping(_parsed(path, files.read(path, LARGEST_SWEEP, pipe=True).decode()))


def configuration(path: Path) -> dict[str, Any]:
    """The names and values of a job."""
    with _reading(path):
        text = _text(path)
        if len(text) > LONGEST_CONFIGURATION:  # which could take hours to read
            raise ByzantiumError(f"it has {len(text)} characters, more than any job")
        return tomllib.loads(text)


def summary(path: Path, measure: str) -> dict[str, Any] | None:
    """The summary of a finished job, checked; None if there is no such file.

    - `path`: the file.
    - `measure`: what a completed job must have, such as "accuracy"; for regression, a loss is
      accepted instead.
    """
    with _reading(path):
        try:
            values = _mapping(_parsed(path, _text(path)))
        except FileNotFoundError:
            return None
        status, measured = outcome(values.get("status")).status, values.get(measure)
        instead = measure == "accuracy" and measured is None and _is_number(values.get("loss"))
        if status == "completed" and not _is_number(measured, 0) and not instead:
            raise ByzantiumError(f"its {measure} is {reprlib.repr(measured)}")
        if status != "completed" and measured is not None:
            raise ByzantiumError(f"it {status} and has the {measure} {reprlib.repr(measured)}")
        if not _is_number(values.get("seconds", 0), 0):
            raise ByzantiumError(f"its seconds are {reprlib.repr(values['seconds'])}")
        for name in TEXTS:
            if not _is_text(values.get(name, "")):
                raise ByzantiumError(f"its {name} is {reprlib.repr(values[name])}")
        for name in COUNTS:
            if not _is_whole(values.get(name, 1)):
                raise ByzantiumError(f"its {name} is {reprlib.repr(values[name])}")
        if not _are_digests(values.get("data", {})):
            raise ByzantiumError(f"its data are {reprlib.repr(values['data'])}")
        return values


def failure(path: Path) -> str | None:
    """Why the last attempt at a job failed; None if there is no such file."""
    with _reading(path):
        try:
            reason = _mapping(_parsed(path, _text(path))).get("reason")
        except FileNotFoundError:
            return None
        if not _is_text(reason, LONGEST_SENTENCE + len(CUT)):
            raise ByzantiumError(f"its reason is {reprlib.repr(reason)}")
        return str(reason)


def metrics(path: Path, workers: int | None) -> list[Metrics]:
    """The metrics of a job, checked: a mapping for each evaluation; empty if there is no such file.

    - `path`: the file.
    - `workers`: how many workers there are, each of whom may have a weight. If it is None, all
      lines must agree on it.
    """
    with _reading(path):
        found, last = list[Metrics](), 1
        for k, line in enumerate(_lines(path), 1):  # one at a time, so that nothing else is held
            at: Any = line.get("round")
            if not _is_whole(at) or at < last:
                raise ByzantiumError(f"line {k} has the round {reprlib.repr(at)}")
            last = at
            if workers is None and isinstance(line.get("weights"), list):
                workers = len(line["weights"])
            for name, value in line.items():
                if not _is_measured(name, value, workers):
                    raise ByzantiumError(f"line {k} has the {name[:40]} {reprlib.repr(value)}")
            found.append(line)
        return found


def lines(path: Path) -> list[Metrics]:
    """The whole lines of a file that may be growing; a torn last one is left out."""
    with _reading(path):
        return list(_lines(path))


def entries(path: Path) -> list[Any]:
    """What is listed in a JSON file; empty if there is none."""
    with _reading(path):
        try:
            values = _parsed(path, _text(path))
        except FileNotFoundError:
            return []
        if not isinstance(values, list):
            raise ByzantiumError(f"it must hold a list, not {kind_of(values)}")
        return values


def seconds(path: Path) -> float:
    """What is written in a file as one number; 0 if there is none."""
    with _reading(path):
        try:
            value = float(_text(path))
        except FileNotFoundError:
            return 0.0
        if not _is_number(value, 0):
            raise ByzantiumError(f"it says {value}")
        return value


# -- how ----------------------------------------------------------------------------------------


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is a sentence about it; one that is not there is not wrong."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:  # decoders have errors of many kinds
        raise ByzantiumError(f"{path} cannot be read: {why(error)}") from error


def why(error: BaseException) -> str:
    """An error in a few words, as part of a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "it is not a text in UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return _line(str(error)) or type(error).__name__


def reason(error: BaseException) -> str:
    """Why a job failed, in one line; our own sentences say all, of others the kind helps."""
    own = isinstance(error, ByzantiumError)
    text = _line(str(error) if own else f"{type(error).__name__}: {error}")
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_SENTENCE else text[:LONGEST_SENTENCE] + CUT


def _text(path: Path) -> str:
    return files.read(path, LARGEST_RECORD).decode()


def _parsed(path: Path, text: str) -> Any:
    return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ByzantiumError(f"it must hold names and values, not {kind_of(value)}")
    return value


def _lines(path: Path) -> Iterator[Metrics]:
    with suppress(FileNotFoundError):
        for line in files.read_lines(path, LARGEST_METRICS, LONGEST_LINE):
            yield _mapping(json.loads(line))


def _is_number(value: Any, least: float = -LARGEST, most: float = LARGEST) -> bool:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and least <= value <= most


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value, 0, LARGEST_ROUND)


def _is_text(value: Any, longest: int = LONGEST_TEXT) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= longest


def _are_digests(value: Any) -> bool:
    """The files of a data set, and a digest of each."""
    if not isinstance(value, dict) or len(value) > MOST_FILES:
        return False
    return all(
        _is_text(name) and isinstance(digest, str) and DIGEST.fullmatch(digest)
        for name, digest in value.items()
    )


def _is_measured(name: str, value: Any, workers: int | None) -> bool:
    """A number, which need not be finite; a number for each worker; how often some were named.

    A metric that is not in the table, of a plugin that is not loaded, may be any of these.
    """
    kind = measured.TABLE[name].kind if name in measured.TABLE else _kind_of(value)
    if kind == "shares":
        return isinstance(value, list) and len(value) == workers and all(map(_is_number, value))
    if kind == "workers":
        return isinstance(value, dict) and all(map(_is_whole, value.values()))
    return _is_number(value) or (isinstance(value, float) and not math.isfinite(value))


def _kind_of(value: Any) -> str:
    if isinstance(value, list):
        return "shares"
    return "workers" if isinstance(value, dict) else "number"
