"""What `runs` and `papers` offer, under the name it had before there were two rooms."""

from byzantium.papers import (
    MAKERS,
    Artifact,
    Cell,
    Compared,
    Comparison,
    Picture,
    Version,
    artifact,
    compare,
)
from byzantium.runs import Job, Mimicry, Result, Run, Store, execute, load, perform, product

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
