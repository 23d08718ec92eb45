"""What a pipeline promises, and what was found by attacking it."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
