"""Where the vectors of real federations are: rules hold here as they are, and none is copied."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
