"""Aggregation of checkpoints in safetensors files, block by block."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
