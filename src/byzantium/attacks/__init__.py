"""Attacks: what Byzantine workers send instead of honest vectors."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
