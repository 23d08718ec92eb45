"""Algorithm 2: data, partitions, models, gradients, and the simulator."""

from byzantium.learning.data import Dataset, load
from byzantium.learning.models import cnn, linear, mlp
from byzantium.learning.partition import Partition, by_label, dirichlet, iid, long_tail, mixed
from byzantium.learning.settings import History, Settings
from byzantium.learning.simulation import Simulation, simulate

__all__ = [
    "Dataset",
    "History",
    "Partition",
    "Settings",
    "Simulation",
    "by_label",
    "cnn",
    "dirichlet",
    "iid",
    "linear",
    "load",
    "long_tail",
    "mixed",
    "mlp",
    "simulate",
]
