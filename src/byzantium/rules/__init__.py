"""Aggregation rules, and the mixings before them: n vectors in, one vector out.

A rule knows nothing of models, data or training.
"""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
