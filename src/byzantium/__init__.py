"""Byzantine-robust distributed and federated learning on heterogeneous data."""

from byzantium import aggregation, threats
from byzantium.aggregation import *  # noqa: F403
from byzantium.core.errors import (
    ByzantiumError,
    KindError,
    MissingLibraryError,
    TooManyRejected,
)
from byzantium.threats import *  # noqa: F403

__all__ = ["ByzantiumError", "KindError", "MissingLibraryError", "TooManyRejected"]
__all__ += aggregation.__all__
__all__ += threats.__all__

__version__ = "0.1.0"
