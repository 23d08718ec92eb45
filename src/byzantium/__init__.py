"""Byzantine-robust distributed and federated learning on heterogeneous data."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)

__version__ = "0.2.0"
