"""What a table or figure is: cells of jobs, the way they are drawn, and cheaper versions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le

from byzantium.core import ByzantiumError, check_fields
from byzantium.learning import metrics
from byzantium.papers import published
from byzantium.papers.released import RELEASED, released
from byzantium.runs import Job, Run, check_names

# As many as were published, and as can be asked for.
SEEDS, MOST_SEEDS = 3, 100
MOST_ROUNDS = 10**9
# Of the flags that make a version; its files are named after them.
LONGEST = 160


@dataclass(frozen=True)
class Picture:
    """How an artifact (a table or figure) is drawn.

    - `kind`: "table" or "grid" of numbers, "curves" over rounds, "bars" over workers, or "points"
      over `x`.
    - `rows`: the label of cells whose values are the rows.
    - `columns`: the label of cells whose values are the columns.
    - `lines`: the labels that tell the lines of one panel apart.
    - `y`: the name of the metric that is shown.
    - `title`: what `y` is called; by default as the table of metrics has it.
    - `x`: what "points" are drawn over.

    >>> Picture("curves", "split", "attack", ("aggregator",)).title
    'test accuracy (%)'
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
    """A place in a table or a line in a figure: its labels, and a job for each seed.

    - `labels`: what tells it from other cells, such as {"aggregator": "krum", "s": 2}.
    - `jobs`: a job for each seed.

    >>> Cell({"aggregator": "krum", "s": 2}, ()).name
    'krum s=2'
    """

    labels: dict[str, Any]
    jobs: tuple[Job, ...]

    @property
    def name(self) -> str:
        """Its labels as words, such as "krum mimic s=2"."""
        return " ".join(
            f"{name}={value}" if isinstance(value, (int, float)) else str(value)
            for name, value in self.labels.items()
        )

    def chosen(self, only: str | None) -> bool:
        """Whether all words of a choice are its own: its values, with their labels or without.

        "krum s=2" and "krum 2" choose the same cells, unless another label has the value 2, too.
        """
        words = re.split(r"[\s,]+", only.strip()) if only else []
        return set(words) <= {*self.name.split(), *map(str, self.labels.values())}

    def seeded(self, seeds: Iterable[int], version: Version) -> Cell:
        """The cell with a job for each of these seeds, in a version of the artifact."""
        changed = (version.applied(self.jobs[0].varied(seed=seed)) for seed in seeds)
        return replace(self, jobs=tuple(changed))


@dataclass(frozen=True)
class Version:
    """A version of an artifact, which may be cheaper than the paper's; None means as in the paper.

    - `seeds`: how many seeds each cell has.
    - `rounds`: how many rounds each run has.
    - `model`: the model to train.
    - `data`: the data set to train on.
    - `only`: words; only cells that have all of them are made. A word is a value of a label, such
      as krum, or a label with its value, such as s=2.
    - `dropout`: "shared" gives all workers and rounds the same dropout, as the published runs had.
    - `released`: whether to repeat the released runs, with their random numbers and the same
      dropout for all workers and rounds unless `dropout` says otherwise; seed by seed.

    >>> Version(seeds=1, model="mlp").words()
    ('1 seed instead of 3', 'model mlp')
    """

    seeds: Annotated[int, Ge(1), Le(MOST_SEEDS)] | None = None
    rounds: Annotated[int, Ge(1), Le(MOST_ROUNDS)] | None = None
    model: str | None = None
    data: str | None = None
    only: str | None = None
    dropout: Literal["fresh", "shared"] | None = None
    released: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "a version")
        if self.released and (self.seeds or 0) > SEEDS:
            raise ByzantiumError(
                f"a version of released runs needs seeds <= {SEEDS}, got seeds={self.seeds}"
            )
        if len(" ".join(self.flags())) > LONGEST:
            raise ByzantiumError(
                f"the options of a version must have at most {LONGEST} characters in all"
            )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The version with these fields; an unknown name raises an error."""
        check_names(cls, values)
        return cls(**values)

    def words(self) -> tuple[str, ...]:
        """In what it differs from the paper's, in words."""
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
        if self.dropout is not None:
            yield f"{self.dropout} dropout"

    def flags(self) -> list[str]:
        """The options of `byzantium reproduce` that ask for it."""
        return [
            f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}"
            for name, value in asdict(self).items()
            if value not in (None, False)
        ]

    def covers(self, other: Version) -> bool:
        """Whether this version has all cells of another one, made in the same way."""
        return self in (other, replace(other, only=None))

    def narrowed(self, cell: Cell) -> Version:
        """This version, of one cell only."""
        return replace(self, only=cell.name)

    def applied(self, job: Job) -> Job:
        """A job as it is in this version."""
        if not isinstance(job, Run):
            return job
        names = ("rounds", "model", "data", "dropout")
        changes = {name: getattr(self, name) for name in names}
        given = {name: value for name, value in changes.items() if value is not None}
        return (released(job) if self.released else job).varied(**given)


@dataclass(frozen=True)
class Artifact:
    """A table or figure: which jobs it is made of, and how it is drawn.

    - `name`: its name on the command line, such as "table2".
    - `title`: its title.
    - `fixed`: what all its cells share, in words.
    - `varies`: what differs from cell to cell, in words.
    - `picture`: how it is drawn.
    - `cells`: its cells.
    - `notes`: what else one must know to compare.
    - `version`: the paper's, or a cheaper one.
    - `maker`: the command that makes it; empty where no single command does.

    >>> from byzantium.papers import artifact
    >>> made = artifact("table2")
    >>> made.title, len(made.cells), len(made.jobs)
    ('Table 2: 5 of 25 workers mimic, without bucketing', 10, 30)
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
        """In what its version differs from the paper's, in words; empty where it does not."""
        return self.version.words()

    @property
    def stem(self) -> str:
        """The name of its files, without an ending; every version has a name of its own.

        >>> from byzantium.papers.bucketing import artifact
        >>> artifact("table2").stem, artifact("table2", Version(seeds=1, only="krum iid")).stem
        ('table2', 'table2-seeds-1-only-krum-iid')
        """
        return "-".join(re.findall(r"[\w.]+", " ".join([self.name, *self.version.flags()])))

    @property
    def trains(self) -> bool:
        """Whether any model is trained for it."""
        return any(isinstance(job, Run) for job in self.jobs)

    @property
    def varies_the_model(self) -> bool:
        """Whether it compares different models."""
        return len({job.model for job in self.jobs if isinstance(job, Run)}) > 1

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of all cells; each comes once."""
        return tuple(dict.fromkeys(job for cell in self.cells for job in cell.jobs))

    def in_version(self, version: Version | None = None) -> Artifact:
        """The artifact in a version; by default the paper's, with all its seeds."""
        version = version or Version()
        if version.released and self.name not in RELEASED:
            raise ByzantiumError(
                f"no runs of {self.name} can be repeated; those of {', '.join(RELEASED)} can"
            )
        if not self.trains:
            version = Version(seeds=version.seeds, only=version.only)
        if version.model is not None and self.varies_the_model:
            raise ByzantiumError(
                f"{self.name} compares sizes of the paper's model; another model has no place in it"
            )
        cells = [cell for cell in self.cells if cell.chosen(version.only)]
        if not cells:
            raise ByzantiumError(
                f"no cell of {self.name} has all words of {version.only!r}; its first cell is "
                f"{self.cells[0].name!r}"
            )
        seeds = SEEDS if version.seeds is None else version.seeds
        seeded = (cell.seeded(range(seeds), version) for cell in cells)
        made = replace(self, cells=tuple(seeded), version=version)
        return made._repeated() if version.released else made

    def _repeated(self) -> Artifact:
        """The artifact as repeated runs: drawn as curves, where curves were released."""
        picture, (first, *_) = self.picture, self.cells
        if picture.kind == "table" and published.curves(self.name, first.labels):
            picture = Picture("curves", "split", "aggregator", ("s",))
        title = f"{self.title}, with the released random numbers"
        return replace(self, picture=picture, title=title, notes="")
