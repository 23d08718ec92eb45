"""Training runs as data: single runs, sweeps over settings, and their results on disk."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
