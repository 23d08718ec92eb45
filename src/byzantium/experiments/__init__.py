"""The old name of what `byzantium.runs` and `byzantium.papers` offer."""

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
