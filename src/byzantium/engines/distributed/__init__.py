"""Robust all-reduce: `torch.distributed` with a robust rule instead of the mean."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
