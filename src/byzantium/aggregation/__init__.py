"""Robust aggregation: the vectors of n workers in, one vector out.

It knows nothing of models, data or training.
"""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
