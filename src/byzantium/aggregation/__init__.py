"""Robust aggregation: tensors in, a tensor out. Knows nothing of learning."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
