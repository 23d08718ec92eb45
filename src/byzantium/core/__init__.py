"""What every room may use, and what knows nothing of any: files, and who works in a folder."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
