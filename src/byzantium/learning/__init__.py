"""Algorithm 2: data, partitions, models, workers, a server, and the simulator."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
