from . import attacks as attacks
from . import data as data
from . import engines as engines
from . import guarantees as guarantees
from . import learning as learning
from . import related as related
from . import rules as rules
from . import testing as testing
from . import vectors as vectors
from .attacks import *
from .core import ArgumentTypeError as ArgumentTypeError
from .core import ByzantiumError as ByzantiumError
from .core import MissingLibraryError as MissingLibraryError
from .core import TooManyRejected as TooManyRejected
from .data import Dataset as Dataset
from .data import Partition as Partition
from .data.dataset import dataset as dataset
from .data.partition import partition as partition
from .guarantees import recommend as recommend
from .learning import Metric as Metric
from .learning.losses import loss as loss
from .learning.models import model as model
from .rules import *
from .runs import load_plugin as load_plugin
from .vectors import Geometry as Geometry

__all__: list[str]
__version__: str
