"""Adapters to what others run: they hold a rule, and never a copy of one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
