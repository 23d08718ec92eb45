"""How large the error of a pipeline can be: what is proved, and what a search by attack finds."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
