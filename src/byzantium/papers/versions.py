"""Artifacts in a version: with other seeds or settings, or the random numbers of released runs.

The latter are in `runs/released.py`.
"""

from __future__ import annotations

from dataclasses import replace

from byzantium.core import ByzantiumError
from byzantium.papers import published
from byzantium.runs import Job, Run
from byzantium.tables import PAPER, SEEDS, Artifact, Picture, Version

#: The tables and figures of which runs were released, with the seeds 0, 1 and 2.
RELEASED = ("table1", "table2", "table3", "table4", "figure-main")
# Whom the attackers copied, by seed, from the logs. The direction that decided it was drawn on a
# GPU; from other directions the choice is nearly a lottery.
COPIED = {"by_label()": (14, 17, 1), "iid()": (2, 4, 12)}


def in_version(artifact: Artifact, version: Version | None = None) -> Artifact:
    """An artifact, which has one job for each cell, in a version; by default the paper's.

    >>> from byzantium.papers import MAKERS
    >>> len(in_version(MAKERS["table2"](), Version(seeds=2)).jobs)
    20
    """
    version = version or PAPER
    if version.released and artifact.name not in RELEASED:
        raise ByzantiumError(
            f"no runs of {artifact.name} can be repeated; those of {', '.join(RELEASED)} can"
        )
    if not artifact.models:
        version = Version(seeds=version.seeds, only=version.only)
    if version.model is not None and len(artifact.models) > 1:
        raise ByzantiumError(
            f"{artifact.name} compares sizes of the paper's model; another model has no place in it"
        )
    cells = [cell for cell in artifact.cells if cell.matches(version.only)]
    if not cells:
        raise ByzantiumError(
            f"no cell of {artifact.name} has all words of {version.only!r}; its first cell is "
            f"{artifact.cells[0].name!r}"
        )
    seeds = range(SEEDS if version.seeds is None else version.seeds)
    seeded = tuple(
        replace(cell, jobs=tuple(_in_version(cell.jobs[0].varied(seed=k), version) for k in seeds))
        for cell in cells
    )
    artifact = replace(artifact, cells=seeded, version=version)
    return _as_repeated(artifact) if version.released else artifact


def _in_version(job: Job, version: Version) -> Job:
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


def released(run: Run) -> Run:
    """A run of the paper, with the random numbers of the released run of the same seed.

    It records the training loss of each round over all workers, attackers included, of which the
    released logs have every tenth.

    - `run`: the run, with the seed 0, 1 or 2.

    >>> released(Run(attack="Mimic(warmup=1)", seed=1)).attack
    'Mimic(target=17)'
    """
    seeds = len(COPIED["iid()"])
    if run.seed >= seeds:
        raise ByzantiumError(f"a released run needs seed < {seeds}, got seed={run.seed}")
    attack = run.attack
    if attack == "Mimic(warmup=1)":
        attack = f"Mimic(target={COPIED[run.partition][run.seed]})"
    return run.varied(randomness="released", dropout="shared", record=("losses",), attack=attack)
