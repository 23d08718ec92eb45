"""Federated training, simulated: data sets, partitions, models, workers and a server."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
