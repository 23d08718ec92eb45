"""Adapters to what others run: they hold a rule, and never a copy of one."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
