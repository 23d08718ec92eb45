"""Artifacts: tables and figures as cells of jobs, and how they are drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from byzantium.learning import metrics
from byzantium.runs import Job, Run
from byzantium.tables.version import PAPER, Version


@dataclass(frozen=True)
class Picture:
    """How an artifact (a table or figure) is drawn.

    - `kind`: "table" or "grid" of numbers, "curves" over rounds or `x`, "bars" over workers, or
      "points" over `x`.
    - `rows`: the label of cells whose values are the rows.
    - `columns`: the label of cells whose values are the columns.
    - `lines`: the labels by which the lines of one panel differ.
    - `y`: the name of the metric that is shown.
    - `title`: the title of the axis of `y`; by default that of the metric.
    - `x`: what "points" are drawn over; "time" for curves over simulated time.

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

    - `labels`: the settings by which cells differ, such as {"aggregator": "krum", "s": 2}.
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

    def matches(self, only: str | None) -> bool:
        """Whether each word of a choice is one of its values, with or without the label.

        "krum s=2" and "krum 2" choose the same cells, unless another label has the value 2, too.

        - `only`: the words, with spaces or commas between them; None chooses all cells.
        """
        words = re.split(r"[\s,]+", only.strip()) if only else []
        return set(words) <= {*self.name.split(), *map(str, self.labels.values())}


@dataclass(frozen=True)
class Artifact:
    """A table or figure: which jobs it is made of, and how it is drawn.

    - `name`: its name on the command line, such as "table2".
    - `fixed`: the settings that all its cells share, in words.
    - `varies`: the settings by which its cells differ, in words.
    - `picture`: how it is drawn.
    - `notes`: remarks that a reader needs to compare its numbers with others.
    - `version`: the paper's version, or a cheaper one.
    - `maker`: the command that makes it; empty where no single command does.

    >>> from byzantium.papers import artifact
    >>> table2 = artifact("table2")
    >>> table2.title, len(table2.cells), len(table2.jobs)
    ('Table 2: 5 of 25 workers mimic, without bucketing', 10, 30)
    """

    name: str
    title: str
    fixed: str
    varies: str
    picture: Picture
    cells: tuple[Cell, ...]
    notes: str = ""
    version: Version = PAPER
    maker: str = ""

    @property
    def cheaper(self) -> tuple[str, ...]:
        """How its version differs from the paper's, in words; empty where it does not."""
        return self.version.words()

    @property
    def stem(self) -> str:
        """The name of its files, without an ending; every version has a different one.

        >>> from byzantium.papers import artifact
        >>> artifact("table2").stem, artifact("table2", Version(seeds=1, only="krum iid")).stem
        ('table2', 'table2-seeds-1-only-krum-iid')
        """
        return "-".join(re.findall(r"[\w.]+", " ".join([self.name, *self.version.flags()])))

    @property
    def models(self) -> set[str]:
        """The models that its jobs train; empty if none trains any."""
        return {job.model for job in self.jobs if isinstance(job, Run)}

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs of all cells, each once."""
        return tuple(dict.fromkeys(job for cell in self.cells for job in cell.jobs))
