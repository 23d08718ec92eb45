"""Robust all-reduce: `torch.distributed` with a robust rule instead of the mean."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
