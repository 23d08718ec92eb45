"""What a table or figure is: cells of jobs, the way they are drawn, and cheaper versions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Self

from byzantium.core import Bounds, ByzantiumError, check_fields
from byzantium.learning import metrics
from byzantium.runs import Job, Run, check_names

# As many as were published, and as can be asked for.
SEEDS, MOST_SEEDS = 3, 100
MOST_ROUNDS = 10**9
# Of the flags that make a version; its files are named after them.
LONGEST = 160


@dataclass(frozen=True)
class Picture:
    """How an artifact is drawn.

    kind:          "table", "curves" over rounds, "bars" over workers, or "points" over `x`.
    rows, columns: the labels whose values make the grid.
    lines:         the labels that tell the lines of one panel apart.
    y, title:      which of the metrics is shown, and what it is called if not as everywhere.
    """

    kind: str
    rows: str
    columns: str
    lines: tuple[str, ...] = ()
    y: str = "accuracy"
    title: str = ""
    x: str = "round"

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or metrics.TABLE[self.y].title)


@dataclass(frozen=True)
class Cell:
    """A place in a table or a line in a figure: its labels, and a job for each seed."""

    labels: dict[str, Any]
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        return " ".join(
            f"{name}={value}" if isinstance(value, (int, float)) else str(value)
            for name, value in self.labels.items()
        )

    def chosen(self, only: str | None) -> bool:
        """Whether all words of a choice are among the labels, as in `krum mimic s=2`."""
        words = re.split(r"[\s,]+", only.strip()) if only else []
        return set(words) <= set(self.name.split())

    def seeded(self, seeds: Iterable[int], version: Version) -> Cell:
        """With a job for each seed, as the version has it."""
        changed = version.applied(self.jobs[0])
        return replace(self, jobs=tuple(changed.varied(seed=seed) for seed in seeds))


@dataclass(frozen=True)
class Version:
    """A cheaper version of an artifact; None is as in the paper."""

    seeds: Annotated[int, Bounds(least=1, most=MOST_SEEDS)] | None = None
    rounds: Annotated[int, Bounds(least=1, most=MOST_ROUNDS)] | None = None
    model: str | None = None
    data: str | None = None
    only: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, "a version")
        if len(" ".join(self.flags())) > LONGEST:
            raise ByzantiumError(f"a version must be told in at most {LONGEST} characters")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """From names and values."""
        check_names(cls, values)
        return cls(**values)

    def words(self) -> tuple[str, ...]:
        return tuple(self._words())

    def _words(self) -> Iterator[str]:
        if self.seeds is not None and self.seeds < SEEDS:
            yield f"{self.seeds} seed{'s' * (self.seeds > 1)} instead of {SEEDS}"
        if self.rounds is not None:
            yield f"{self.rounds} rounds"
        if self.model is not None:
            yield f"model {self.model}"
        if self.data is not None:
            yield f"data set {self.data}"
        if self.only is not None:
            yield f"only {self.only}"

    def flags(self) -> list[str]:
        """The same on the command line."""
        return [
            f"--{name} {shlex.quote(str(value))}"
            for name, value in asdict(self).items()
            if value is not None
        ]

    def covers(self, other: Version) -> bool:
        """Whether all of the other is in this one."""
        return self in (other, replace(other, only=None))

    def narrowed(self, cell: Cell) -> Version:
        """The version of one cell alone."""
        return replace(self, only=cell.name)

    def applied(self, job: Job) -> Job:
        if not isinstance(job, Run):
            return job
        changes = {"rounds": self.rounds, "model": self.model, "data": self.data}
        return job.varied(**{name: value for name, value in changes.items() if value is not None})


@dataclass(frozen=True)
class Artifact:
    """A table or figure.

    fixed, varies: in words.
    notes:         what else one must know to compare.
    version:       the paper's, or a cheaper one.
    maker:         the command that makes it; empty where no one command does.
    """

    name: str
    title: str
    fixed: str
    varies: str
    picture: Picture
    cells: tuple[Cell, ...]
    notes: str = ""
    version: Version = Version()
    maker: str = ""

    @property
    def cheaper(self) -> tuple[str, ...]:
        """In what it is less than the paper's; empty where it is the paper's."""
        return self.version.words()

    @property
    def stem(self) -> str:
        """The name of its files; versions have names of their own.

        >>> from byzantium.papers.bucketing import artifact
        >>> artifact("table2").stem, artifact("table2", Version(seeds=1, only="krum iid")).stem
        ('table2', 'table2-seeds-1-only-krum-iid')
        """
        return "-".join(re.findall(r"[\w.]+", " ".join([self.name, *self.version.flags()])))

    @property
    def trains(self) -> bool:
        return any(isinstance(job, Run) for job in self.jobs)

    @property
    def varies_the_model(self) -> bool:
        return len({job.model for job in self.jobs if isinstance(job, Run)}) > 1

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(dict.fromkeys(job for cell in self.cells for job in cell.jobs))

    def in_version(self, version: Version | None = None) -> Artifact:
        """With all its seeds, or cheaper."""
        version = version or Version()
        if not self.trains:
            version = Version(seeds=version.seeds, only=version.only)
        if version.model is not None and self.varies_the_model:
            raise ByzantiumError(
                f"{self.name} compares sizes of the paper's model; it has no other model"
            )
        cells = [cell for cell in self.cells if cell.chosen(version.only)]
        if not cells:
            raise ByzantiumError(
                f"no cell of {self.name} has all of {version.only!r}; one is {self.cells[0].name!r}"
            )
        seeds = SEEDS if version.seeds is None else version.seeds
        seeded = (cell.seeded(range(seeds), version) for cell in cells)
        return replace(self, cells=tuple(seeded), version=version)
