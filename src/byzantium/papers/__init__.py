"""The tables and figures of the bucketing paper as data, and our numbers beside its own."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
