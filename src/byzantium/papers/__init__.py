"""Tables and figures of papers, as data, and ours beside the published numbers."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
