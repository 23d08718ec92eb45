from .evaluation import spread as spread
from .heterogeneity import measured_heterogeneity as measured_heterogeneity
from .history import History as History
from .loop import Loop as Loop
from .method import Task as Task
from .method import WorkerMethod as WorkerMethod
from .metrics import Metric as Metric
from .models import cnn as cnn
from .models import convnet as convnet
from .models import linear as linear
from .models import mlp as mlp
from .models import resnet20 as resnet20
from .randomness import Randomness as Randomness
from .root import RootUpdate as RootUpdate
from .root import root_gradient as root_gradient
from .saving import checkpointed as checkpointed
from .saving import resume as resume
from .server import Server as Server
from .settings import Settings as Settings
from .simulation import Simulation as Simulation
from .training import simulate as simulate
from .worker import Momentum as Momentum

__all__: list[str]
