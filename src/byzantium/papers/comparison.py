"""The paper's artifacts with our results beside the published numbers."""

from __future__ import annotations

import functools

from byzantium.papers import bucketing, published
from byzantium.runs import Store
from byzantium.tables import Artifact, MeasuredCell, ResultTable


def compare(artifact: Artifact, store: Store) -> ResultTable:
    """The results of an artifact that a store has, beside what was published.

    >>> from byzantium.papers import artifact
    >>> from byzantium.tables import Version
    >>> krum = artifact("table2", Version(only="krum noniid"))
    >>> compare(krum, Store("nowhere")).cells[0].published.mean
    37.33
    """
    name, cells = artifact.name, []
    for cell in artifact.cells:
        number = published.cell(name, cell.labels)
        if artifact.version.released:  # each run repeats the released one of its seed
            number = published.of_seeds(name, cell.labels, len(cell.jobs))
        cells.append(MeasuredCell(cell, number, tuple(store.results(cell.jobs))))
    return ResultTable(artifact, tuple(cells))


def published_cells(store: Store) -> list[MeasuredCell]:
    """Every cell for which the paper has a number, with the results that a store has of it."""
    tables = [compare(artifact, store) for artifact in _with_numbers()]
    return [cell for table in tables for cell in table.cells if cell.published]


@functools.cache
def _with_numbers() -> list[Artifact]:
    """The artifacts with published numbers, as in the paper; to make them all takes a second."""
    return [bucketing.artifact(name) for name in bucketing.MAKERS if name in published.artifacts()]
