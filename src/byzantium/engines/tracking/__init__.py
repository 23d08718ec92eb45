"""Jobs in the experiment trackers that people have: MLflow, Weights & Biases, TensorBoard."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
