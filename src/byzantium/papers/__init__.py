"""The tables and figures of the bucketing paper as data, and our numbers beside its own."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
