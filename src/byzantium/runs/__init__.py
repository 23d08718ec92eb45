"""Training as data: jobs, runs, sweeps of them, and their results on disk."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
