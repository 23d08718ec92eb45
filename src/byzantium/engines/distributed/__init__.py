"""Robust all-reduce: `torch.distributed` with a rule in the place of the mean."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
