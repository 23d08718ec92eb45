"""Data sets, how they are partitioned among workers, and batches of them."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
