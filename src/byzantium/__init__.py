"""Byzantine-robust distributed and federated learning on heterogeneous data."""

from byzantium.aggregation import *  # noqa: F403
from byzantium.aggregation import __all__

__version__ = "0.1.0"
