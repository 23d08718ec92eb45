"""Robust rules in other systems: torch.distributed, Ray, Flower, and files of checkpoints."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
