"""How large the error of a pipeline can be: what is proved, and what a search by attack finds."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
