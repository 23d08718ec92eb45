"""What `runs` and `papers` offer, under the name it had before there were two rooms."""

from byzantium.papers.artifact import Artifact, Cell, Picture, Version
from byzantium.papers.bucketing import MAKERS, artifact
from byzantium.papers.comparison import Compared, Comparison, compare
from byzantium.runs.job import Job, perform
from byzantium.runs.mimicry import Mimicry
from byzantium.runs.run import Run
from byzantium.runs.store import Result, Store
from byzantium.runs.sweep import execute, load, product

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
