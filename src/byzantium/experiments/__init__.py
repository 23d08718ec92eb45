"""Experiments as data: runs, sweeps, the paper's tables and figures, results on disk, reports."""

from byzantium.experiments.artifact import Artifact, Cell, Picture, Version
from byzantium.experiments.comparison import Compared, Comparison, compare
from byzantium.experiments.job import Job, perform
from byzantium.experiments.mimicry import Mimicry
from byzantium.experiments.paper import MAKERS, artifact
from byzantium.experiments.run import Run
from byzantium.experiments.store import Result, Store
from byzantium.experiments.sweep import execute, load, product

__all__ = [
    "MAKERS",
    "Artifact",
    "Cell",
    "Compared",
    "Comparison",
    "Job",
    "Mimicry",
    "Picture",
    "Result",
    "Run",
    "Store",
    "Version",
    "artifact",
    "compare",
    "execute",
    "load",
    "perform",
    "product",
]
