"""Where the vectors of the workers are stored, and what is known of them: norms, distances."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
