"""Byzantine-robust distributed and federated learning on heterogeneous data.

Many workers train one model together; some of them may lie, and the honest ones hold different
data. A *rule* makes one vector of all workers' vectors, near the mean of the honest ones. A
*mixing* comes before a rule, and makes it work where the honest vectors differ.

>>> import torch, byzantium as bz
>>> rule = bz.Bucketing(s=2) >> bz.GeometricMedian()
>>> updates = torch.ones(10, 3)  # a row for each worker
>>> rule(updates)
tensor([1., 1., 1.])
"""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    __file__,
    moved={
        "KindError": "byzantium.ArgumentTypeError",
        "aggregation": "byzantium.rules",
        "experiments": "byzantium.runs",
        "threats": "byzantium.attacks",
    },
)

__version__ = "0.3.0"
