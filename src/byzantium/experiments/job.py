"""A job: a configuration that can be written, hashed, and carried out in a folder of its own."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import os
import platform
import sys
import time
import tomllib
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from filelock import FileLock, Timeout

from byzantium.aggregation import notation
from byzantium.aggregation.formula import SEED_BITS
from byzantium.aggregation.lazy import cached_property

logger = logging.getLogger("byzantium")

# Raised when a definition changes, so that the same configuration means something else than before:
# a formula, a default, the order of random draws. Rounding may change without it; what a run was
# made with stands in its summary.
NUMERICS = 1
CONFIGURATION, METRICS, SUMMARY, LOG = "config.toml", "metrics.jsonl", "summary.json", "run.log"

Watch = Callable[[int, int, str], None]
Stop = Callable[[], bool]
Metrics = dict[str, Any]


class BusyError(RuntimeError):
    """Another process works on this job."""


def told(default: Any, text: str) -> Any:
    """A field and what it means; the command line has it as an option, with this text as help."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass(frozen=True)
class Job(ABC):
    """A frozen dataclass of numbers and words; what it does depends on these alone."""

    @abstractmethod
    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        """Do it, and return the summary; None when it was stopped, to be gone on with."""

    @abstractmethod
    def check(self) -> None:
        """Raise a sentence unless it can be done: sizes, names, combinations."""

    def __post_init__(self) -> None:
        kinds = _kinds(type(self))
        for field in dataclasses.fields(self):
            value = _fitting(field.name, getattr(self, field.name), kinds[field.name])
            object.__setattr__(self, field.name, value)
        self.check()

    # -- text ------------------------------------------------------------------------------------

    def configuration(self) -> dict[str, Any]:
        """Every field, in the order of the class."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}

    def toml(self) -> str:
        """What `read` reads; a field that is None is left out."""
        # A JSON string, number, truth value or list of strings is one of TOML, too.
        lines = [
            f"{name} = {json.dumps(value)}"
            for name, value in self.configuration().items()
            if value is not None
        ]
        return "\n".join(lines) + "\n"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From names and values; an unknown name is refused with the nearest known one."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ValueError(f"a {cls.__name__} has no {name!r}{notation.hint(name, known)}")
        return cls(**values)

    @cached_property
    def identity(self) -> str:
        """A hash of every field and of the version of the numerics."""
        text = json.dumps({**self.configuration(), "numerics": NUMERICS}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def varied(self, **changes: Any) -> Self:
        """The same job with some fields changed."""
        return dataclasses.replace(self, **changes)


def parsed(path: Path) -> Any:
    """What is in a TOML or JSON file."""
    try:
        text = path.read_text()
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """The names and values in a TOML or JSON file."""
    values = parsed(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold names and values, got a {type(values).__name__}")
    return values


@functools.cache
def _kinds(kind: type[Job]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _fitting(name: str, value: Any, kind: Any) -> Any:
    """The value as a field of this kind holds it; a sentence where it does not fit."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and types.NoneType in options:
        return None
    kind = options[0]
    if isinstance(value, int) and (bits := value.bit_length()) > SEED_BITS:
        raise ValueError(f"{name} must have at most {SEED_BITS} bits, got {bits} bits")
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind in (bool, str) and isinstance(value, kind):
        return value
    if typing.get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(_fitting(name, item, typing.get_args(kind)[0]) for item in value)
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    raise ValueError(f"{name} must be {wanted.get(kind, 'a list of texts')}, got {value!r}")


# -- carrying it out ----------------------------------------------------------------------------


def perform(
    job: Job,
    folder: Path,
    watch: Watch = lambda done, total, note: None,
    stop: Stop = lambda: False,
) -> dict[str, Any] | None:
    """Carry a job out in its folder, or go on where it stopped; the summary, None if unfinished.

    A finished job is only read. Two processes never work on one: the lock is the operating
    system's, and dies with its holder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            if (done := summary(folder)) is not None:
                return done
            with _logged(folder):
                write_atomically(folder / CONFIGURATION, job.toml())
                start = time.monotonic()
                result = job.work(folder, watch, stop)
                seconds = time.monotonic() - start + _seconds_before(folder)
                if result is None:
                    write_atomically(folder / ".seconds", f"{seconds:.1f}")
                    logger.info("stopped; it goes on from here when started again")
                    return None
                result |= {"seconds": round(seconds, 1), **surroundings()}
                write_atomically(folder / SUMMARY, json.dumps(result, indent=1) + "\n")
                (folder / ".seconds").unlink(missing_ok=True)
                logger.info("%s", result["status"])
                return result
    except Timeout:
        raise BusyError(f"another process works on {folder}") from None


def _seconds_before(folder: Path) -> float:
    path = folder / ".seconds"
    return float(path.read_text()) if path.exists() else 0.0


def summary(folder: Path) -> dict[str, Any] | None:
    """Of a job that is done; None otherwise."""
    path = folder / SUMMARY
    return read(path) if path.exists() else None


def surroundings() -> dict[str, Any]:
    """What the numbers were made with."""
    from byzantium import __version__

    return {
        "byzantium": __version__,
        "numerics": NUMERICS,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": f"{os.cpu_count()} x {platform.machine()}, {platform.system()}",
    }


def write_atomically(path: Path, text: str) -> None:
    """Whatever happens meanwhile, a file of this name is whole."""
    beside = path.with_name(path.name + ".writing")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def append(path: Path, line: Metrics) -> None:
    """One line of JSON, whole on the disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path) -> list[Metrics]:
    """The whole lines of a file that may be growing; a torn last one is left out."""
    if not path.exists():
        return []
    whole = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
    try:
        return [json.loads(line) for line in whole]
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


@contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """What the library says meanwhile goes to the log of the job as well."""
    handler = logging.FileHandler(folder / LOG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        logger.info("begun with %s: %s", " ".join(sys.argv[:2]), surroundings())
        yield
    except BaseException as error:
        logger.error("%s: %s", type(error).__name__, error)
        raise
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
