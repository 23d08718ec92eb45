"""What a tracker is told of a job, and what a tracker is."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from byzantium.runs import Job, described

#: The project or experiment, unless an environment variable of the tracker names another.
PROJECT = "byzantium"


@dataclass(frozen=True)
class Tracked:
    """A job as a tracker shows it, or several jobs together.

    - `identity`: what it is found by again: that of the job.
    - `name`: its name for people.
    - `parameters`: the fields of the job that are not None.
    - `group`: the identity of the jobs that it belongs to; empty if it stands alone.

    >>> from byzantium.runs import Run
    >>> Tracked.of(Run(seed=7)).parameters["seed"]
    7
    """

    identity: str
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""

    @classmethod
    def of(cls, job: Job, group: str = "") -> Tracked:
        """A job."""
        values = {
            name: ", ".join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in job.configuration().items()
            if value is not None
        }
        return cls(job.identity, described(job), values, group)

    @classmethod
    def together(cls, jobs: Iterable[Job], name: str) -> Tracked:
        """Several jobs, such as those of a sweep: the same jobs are the same again."""
        identities = sorted({job.identity for job in jobs})
        identity = hashlib.sha256("\n".join(identities).encode()).hexdigest()[:16]
        return cls(identity, name, {"kind": "Sweep", "jobs": len(identities)})


class Before(NamedTuple):
    """What a tracker had of a job when it was begun.

    - `round`: the last round whose numbers it had; 0 if it had none.
    - `ended`: whether it had its end.
    """

    round: int = 0
    ended: bool = False


class Tracker(ABC):
    """A tracker, through its own library, which is imported when an object is made.

    A job that was begun before is continued: its identity finds it. Methods may raise any error.

    - `root`: the folder of results.

    `title` is what messages call it.

    >>> class Printed(Tracker):
    ...     title = "the terminal"
    ...     def begin(self, tracked):
    ...         return Before()
    ...     def log(self, tracked, number, numbers):
    ...         print(tracked.name, number, numbers)
    ...     def end(self, tracked, status, summary, artifacts):
    ...         print(tracked.name, status)
    >>> Printed(Path("results")).log(Tracked("0", "mine"), 30, {"accuracy": 91.5})
    mine 30 {'accuracy': 91.5}
    """

    title: ClassVar[str]

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def begin(self, tracked: Tracked) -> Before:
        """Begin a job, or continue it."""

    @abstractmethod
    def log(self, tracked: Tracked, number: int, numbers: Mapping[str, float]) -> None:
        """Add what was measured after the round of a number; it need not be finite."""

    @abstractmethod
    def end(
        self, tracked: Tracked, status: str, summary: Mapping[str, Any], artifacts: Sequence[Path]
    ) -> None:
        """End a job.

        - `status`: "completed", "diverged", "failed", or "stopped" if it can be continued.
        - `summary`: numbers and texts by name.
        - `artifacts`: files to keep with it.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release what it holds; nothing is begun after this."""


def setting(variable: str, default: str = PROJECT) -> str:
    """A setting of a tracker, from its environment variable."""
    return os.environ.get(variable) or default
