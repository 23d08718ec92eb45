"""The model of every table: cells of jobs, tables of their results, and pivots of runs."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
