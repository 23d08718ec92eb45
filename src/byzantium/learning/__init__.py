"""Federated training, simulated: models, workers and a server."""

from byzantium.core.exports import lazy_exports

# Until 0.2.0 data sets and partitions were here, too.
_MOVED = ("Batches", "Dataset", "GivenBatches", "Partition", "by_label", "by_user", "dirichlet")
_MOVED += ("iid", "load", "long_tail", "mixed")

__getattr__, __dir__, __all__ = lazy_exports(
    __name__, __file__, moved={name: f"byzantium.data.{name}" for name in _MOVED}
)
