"""The paper's artifacts with our results beside the published numbers."""

from __future__ import annotations

import functools

from byzantium.papers import bucketing, published
from byzantium.runs import Store
from byzantium.tables import Artifact, Cell, MeasuredCell, Published, ResultTable


def compare(artifact: Artifact, store: Store) -> ResultTable:
    """The results of an artifact that a store has, beside what was published.

    - `artifact`: the table or figure.
    - `store`: the folder of results.

    >>> from byzantium.papers import artifact
    >>> from byzantium.tables import Version
    >>> krum = artifact("table2", Version(only="krum noniid"))
    >>> compare(krum, Store("nowhere")).cells[0].published.mean
    37.33
    """
    cells = tuple(
        MeasuredCell(cell, _published(artifact, cell), tuple(store.results(cell.jobs)))
        for cell in artifact.cells
    )
    return ResultTable(artifact, cells)


def _published(artifact: Artifact, cell: Cell) -> Published | None:
    """A repeated run is compared with the released runs of its own seeds."""
    if artifact.version.released:
        return published.of_seeds(artifact.name, cell.labels, len(cell.jobs))
    return published.cell(artifact.name, cell.labels)


def published_cells(store: Store) -> list[MeasuredCell]:
    """Every cell for which the paper has a number, with the results that a store has of it.

    - `store`: the folder of results.
    """
    tables = [compare(artifact, store) for artifact in _with_numbers()]
    return [cell for table in tables for cell in table.cells if cell.published]


@functools.cache
def _with_numbers() -> list[Artifact]:
    """The artifacts with published numbers, as in the paper; to make them all takes a second."""
    return [bucketing.artifact(name) for name in bucketing.MAKERS if name in published.artifacts()]
