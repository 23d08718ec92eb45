"""The foundations: errors, checked parameters, notation, files, locks and threads.

Every other package may use them, and they use none of the others.
"""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
