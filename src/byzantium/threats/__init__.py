"""Attacks: honest vectors in, Byzantine vectors out; and attacks on labels."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
