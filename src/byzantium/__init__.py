"""Byzantine-robust distributed and federated learning on heterogeneous data."""

from byzantium import aggregation
from byzantium.aggregation import *  # noqa: F403

__all__ = []
__all__ += aggregation.__all__

__version__ = "0.1.0"
