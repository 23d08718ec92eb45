"""Algorithm 2: data, partitions, models, workers, a server, and the simulator."""

from byzantium.learning.data import Dataset, load
from byzantium.learning.history import History
from byzantium.learning.models import cnn, linear, mlp
from byzantium.learning.partition import Partition, by_label, dirichlet, iid, long_tail, mixed
from byzantium.learning.server import Server
from byzantium.learning.settings import Settings
from byzantium.learning.simulation import Simulation
from byzantium.learning.training import simulate
from byzantium.learning.worker import Momentum

__all__ = [
    "Dataset",
    "History",
    "Momentum",
    "Partition",
    "Server",
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
