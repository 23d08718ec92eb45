"""Attacks: what the honest workers send in, what the attackers send out."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
