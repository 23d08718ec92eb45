"""A job: a configuration that can be written, hashed, and carried out in a folder of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import platform
import re
import reprlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from byzantium.core import (
    ByzantiumError,
    cached_property,
    check_fields,
    files,
    folder_lock,
    notation,
    processor,
)
from byzantium.core.options import identity_fields, options_of, present_names
from byzantium.runs import records, values
from byzantium.runs.records import Folder, Metrics
from byzantium.runs.values import Checks

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

logger = logging.getLogger("byzantium")

# Raised when a definition changes, so that the same configuration means something else than before:
# a formula, a default, the order of random draws. Rounding may change without it; what a run was
# made with is in its summary.
NUMERICS = 1
CONFIGURATION, METRICS, SUMMARY, LOG = "config.toml", "metrics.jsonl", "summary.json", "run.log"
# Of a job that is not done: why the last attempt failed, and how long it was worked on.
FAILURE, SECONDS = "failed.json", ".seconds"

# The f of a rule, where it is written.
F = re.compile(r"(?<=\()f=\d+(, )?|, f=\d+")
#: Called with how much of a job is done, how much there is in all, and a short note.
Watch = Callable[[int, int, str], None]
#: Asked now and then whether to stop; once it answers True, a job saves itself and ends.
Stop = Callable[[], bool]


@dataclasses.dataclass(frozen=True)
class Job(ABC):
    """A computation as data: a frozen dataclass of numbers and texts.

    What it computes depends on its fields alone, so that equal jobs have equal results. `perform`
    carries it out in a folder; a `Store` is a folder of such folders. `Run`, `Mimicry`,
    `Certification` and `Federation` are jobs.

    `display_name` is what errors about its fields call it; `measure` is the number in its summary
    that it is judged by; `summary_checks` are the checks of the values in its summary.

    >>> from byzantium.runs import Run
    >>> run = Run(seed=1)
    >>> run == Run().varied(seed=1), run.identity == Run().identity
    (True, False)
    """

    display_name = "a job"
    measure = "accuracy"
    summary_checks: ClassVar[Checks] = {
        "seconds": values.size,
        **dict.fromkeys(("byzantium", "python", "torch", "machine"), values.text),
        **dict.fromkeys(("numerics", "threads"), values.whole),
    }

    @abstractmethod
    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        """Carry it out, and return its summary; None if it was stopped, and can be resumed.

        - `folder`: where its files are.
        - `watch`: called with how much is done, how much there is in all, and a short note.
        - `stop`: asked now and then; once it answers True, the job saves itself and ends.
        """

    @property
    @abstractmethod
    def workers(self) -> int | None:
        """How many workers there are; None if that is not known beforehand."""

    @property
    @abstractmethod
    def metric_checks(self) -> Checks:
        """The checks of its metrics, by name."""

    @abstractmethod
    def check(self) -> None:
        """Raise an error unless it can be carried out: sizes, names, combinations."""

    def __post_init__(self) -> None:
        check_fields(self, self.display_name)
        self.check()
        # A text with a line break or an escape sequence could show something else than it is.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.isprintable():
                    raise ByzantiumError(
                        f"{self.display_name} needs printable characters in {field.name}, got "
                        f"{field.name}={reprlib.repr(text)}"
                    )

    # -- text ------------------------------------------------------------------------------------

    def configuration(self) -> dict[str, Any]:
        """Every field by name, and "kind", the name of the class."""
        names = [field.name for field in options_of(type(self))]
        return {"kind": type(self).__name__, **{name: getattr(self, name) for name in names}}

    def toml(self) -> str:
        """The configuration as a TOML text; a field that is None is left out."""
        # A JSON string, number, truth value or list of strings is one of TOML, too.
        lines = [
            f"{name} = {json.dumps(value)}"
            for name, value in self.configuration().items()
            if value is not None
        ]
        return "\n".join(lines) + "\n"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The job with these fields, of which some may have their former names.

        An unknown name raises an error that suggests a known one.
        """
        values = present_names(cls, values)
        check_names(cls, values)
        return cls(**values)

    @classmethod
    def from_record(cls, values: Mapping[str, Any]) -> Self:
        """The job of a configuration of somebody else: no file that it names is opened."""
        return cls.of(values)

    @cached_property
    def identity(self) -> str:
        """The name of its folder of results: a hash of its fields.

        It also depends on NUMERICS, the version of the definitions behind the fields. A field that
        was added after the first results and has its default does not count.
        """
        return self.identity_in(NUMERICS)

    def identity_in(self, numerics: int) -> str:
        """The identity that it has in a version of the numerics."""
        hashed = {"kind": type(self).__name__, **identity_fields(self), "numerics": numerics}
        text = json.dumps(hashed, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def varied(self, **changes: Any) -> Self:
        """A copy of the job with some fields changed."""
        return dataclasses.replace(self, **present_names(type(self), changes))

    def facets(self) -> dict[str, Any]:
        """The values by which reports filter, label and sort it, by name; empty if they do not.

        A training has "data", "model", "partition", "attack", "momentum", "seed", and those of its
        rule: "text", "mixing", "rule", "kind". "n" and "q" are the numbers of workers and
        attackers.
        """
        return {}


def rule_facets(rule: str) -> dict[str, Any]:
    """The facets of a rule: its text, the mixings before it, itself without f, and its class.

    >>> facets = rule_facets("Bucketing(s=2) >> Krum(f=5, m=2)")
    >>> facets["mixing"], facets["rule"], facets["kind"]
    ('Bucketing(s=2)', 'Krum(m=2)', 'Krum')
    """
    mixing, _, last = without_f(rule).rpartition(" >> ")
    return {"text": rule, "mixing": mixing, "rule": last, "kind": last.partition("(")[0]}


def without_f(rule: str) -> str:
    """A rule in our notation, without its f.

    >>> without_f("Bucketing(s=2) >> Krum(f=5, m=2)"), without_f("TrimmedMean(f=3)")
    ('Bucketing(s=2) >> Krum(m=2)', 'TrimmedMean()')
    """
    return F.sub("", rule)


def check_names(kind: type[DataclassInstance], values: Mapping[str, Any]) -> None:
    """Raise an error where a name is not one of a dataclass's fields.

    >>> from byzantium.runs import Run
    >>> check_names(Run, {"round": 10})
    Traceback (most recent call last):
    byzantium.ByzantiumError: a Run has no 'round'; did you mean 'rounds'?
    """
    known = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise ByzantiumError(f"a {kind.__name__} has no {name!r}{notation.hint(name, known)}")


# -- carrying it out ----------------------------------------------------------------------------


def perform(
    job: Job,
    folder: Path,
    watch: Watch = lambda done, total, note: None,
    stop: Stop = lambda: False,
) -> dict[str, Any] | None:
    """Carry a job out in a folder, or continue where it stopped; a finished one is only read.

    A lock of the operating system keeps two processes from working on one job; it is released when
    its holder dies. An error is raised, and also written into the folder, where it stays until the
    next attempt.

    - `folder`: its folder, such as `Store.folder` names it.
    - `watch`, `stop`: as those of `Job.work`.

    Returns the summary of the finished job; None if it was stopped before.

    >>> import tempfile
    >>> from byzantium.runs import Mimicry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = perform(Mimicry(rule="Median()", n=11, attackers=2), Path(folder))
    >>> summary["status"]
    'completed'
    """
    if (done := finished(job, folder)) is not None:
        return done[0]
    with folder_lock(folder):
        if (done := finished(job, folder)) is not None:  # by another process, a moment ago
            return done[0]
        with suppress(OSError):  # what cannot be removed says nothing of a job that gets done
            (folder / FAILURE).unlink()
        try:
            with _logged(folder):
                return _attempt(job, folder, watch, stop)
        except Exception as error:
            write_failure(folder, records.describe_failure(error))
            raise


def _attempt(job: Job, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
    files.write(folder / CONFIGURATION, job.toml())
    start = time.monotonic()
    result = job.work(folder, watch, stop)
    seconds = time.monotonic() - start
    try:
        seconds += records.seconds(folder / SECONDS)
    except ValueError as error:
        logger.warning("%s; the time of earlier attempts is not counted", error)
    if result is None:
        with suppress(OSError):  # only a time is lost
            files.write(folder / SECONDS, f"{seconds:.1f}")
        logger.info("stopped; the next start continues from here")
        return None
    result |= {"seconds": round(seconds, 1), **environment()}
    files.write(folder / SUMMARY, json.dumps(result, indent=1) + "\n")
    with suppress(OSError):
        (folder / SECONDS).unlink()
    logger.info("%s", result["status"])
    return result


def write_failure(folder: Path, reason: str) -> None:
    """Write down why a job failed; only for the process that has its lock."""
    try:
        files.write(folder / FAILURE, json.dumps({"reason": reason}) + "\n")
    except OSError as error:  # of two things that went wrong the first is the one to be raised
        logger.warning(
            "%s cannot be written: %s", folder / FAILURE, records.describe_file_error(error)
        )


def finished(job: Job, folder: Folder) -> tuple[dict[str, Any], list[Metrics]] | None:
    """The summary and the metrics of a job that is done; None otherwise."""
    done = records.summary(folder / SUMMARY, job.measure, job.summary_checks)
    return None if done is None else (done, measured(job, folder))


def measured(job: Job, folder: Folder) -> list[Metrics]:
    """What a job measured so far, a mapping for each evaluation."""
    return records.metrics(folder / METRICS, job.workers, job.metric_checks)


def environment() -> dict[str, Any]:
    """The versions and the machine that a result was made with."""
    import torch

    from byzantium import __version__

    return {
        "byzantium": __version__,
        "numerics": NUMERICS,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": f"{os.cpu_count()} x {processor()}, {platform.system()}",
    }


@contextmanager
def _logged(folder: Path) -> Iterator[None]:
    """Write the messages of the library to the log of the job, too."""
    stream = files.appending(folder / LOG)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        logger.info("begun with %s: %s", " ".join(sys.argv[:2]), environment())
        yield
    except BaseException as error:
        logger.error("%s: %s", type(error).__name__, error)
        raise
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
        stream.close()
