"""Robust rules in other systems: torch.distributed, Ray, Flower, and files of checkpoints."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
