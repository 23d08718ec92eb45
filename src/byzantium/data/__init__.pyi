from .batches import Batches as Batches
from .batches import GivenBatches as GivenBatches
from .dataset import Dataset as Dataset
from .datasets import load as load
from .partition import Partition as Partition
from .partition import by_label as by_label
from .partition import by_user as by_user
from .partition import dirichlet as dirichlet
from .partition import iid as iid
from .partition import long_tail as long_tail
from .partition import mixed as mixed

__all__: list[str]
