"""Federations with Flower: a robust strategy for servers, and mods for clients."""

from byzantium.core import import_optional

import_optional("flwr", "flower", "a federation with Flower")

from byzantium.engines.federation.rounds import Round, Standstill  # noqa: E402
from byzantium.engines.flower.mods import byzantine, worker_momentum  # noqa: E402
from byzantium.engines.flower.nodes import TooFewNodes  # noqa: E402
from byzantium.engines.flower.strategy import RobustStrategy  # noqa: E402

__all__ = [
    "RobustStrategy",
    "Round",
    "Standstill",
    "TooFewNodes",
    "byzantine",
    "worker_momentum",
]
