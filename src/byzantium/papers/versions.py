"""Artifacts in a version: with other seeds, settings or random numbers than the paper's."""

from __future__ import annotations

from dataclasses import replace

from byzantium.core import ByzantiumError
from byzantium.papers import published
from byzantium.papers.released import RELEASED, released
from byzantium.runs import Job, Run
from byzantium.tables import PAPER, SEEDS, Artifact, Cell, Picture, Version


def in_version(artifact: Artifact, version: Version | None = None) -> Artifact:
    """An artifact in a version; by default the paper's, with all its seeds.

    - `artifact`: the artifact, with one job for each cell.
    - `version`: the version.

    >>> from byzantium.papers import MAKERS
    >>> len(in_version(MAKERS["table2"](), Version(seeds=2)).jobs)
    20
    """
    version = version or PAPER
    if version.released and artifact.name not in RELEASED:
        raise ByzantiumError(
            f"no runs of {artifact.name} can be repeated; those of {', '.join(RELEASED)} can"
        )
    if not artifact.trains:
        version = Version(seeds=version.seeds, only=version.only)
    if version.model is not None and artifact.varies_the_model:
        raise ByzantiumError(
            f"{artifact.name} compares sizes of the paper's model; another model has no place in it"
        )
    cells = [cell for cell in artifact.cells if cell.matches(version.only)]
    if not cells:
        raise ByzantiumError(
            f"no cell of {artifact.name} has all words of {version.only!r}; its first cell is "
            f"{artifact.cells[0].name!r}"
        )
    seeded = tuple(_with_seeds(cell, version) for cell in cells)
    artifact = replace(artifact, cells=seeded, version=version)
    return _as_repeated(artifact) if version.released else artifact


def _with_seeds(cell: Cell, version: Version) -> Cell:
    """A cell with a job for each seed of a version."""
    seeds = range(SEEDS if version.seeds is None else version.seeds)
    jobs = (_job_in_version(cell.jobs[0].varied(seed=seed), version) for seed in seeds)
    return replace(cell, jobs=tuple(jobs))


def _job_in_version(job: Job, version: Version) -> Job:
    if not isinstance(job, Run):
        return job
    settings = {name: getattr(version, name) for name in ("rounds", "model", "data", "dropout")}
    changes = {name: value for name, value in settings.items() if value is not None}
    return (released(job) if version.released else job).varied(**changes)


def _as_repeated(artifact: Artifact) -> Artifact:
    """An artifact of repeated runs: drawn as curves, where curves were released."""
    picture, (first, *_) = artifact.picture, artifact.cells
    if picture.kind == "table" and published.curves(artifact.name, first.labels):
        picture = Picture("curves", "split", "aggregator", ("s",))
    title = f"{artifact.title}, with the released random numbers"
    return replace(artifact, picture=picture, title=title, notes="")
