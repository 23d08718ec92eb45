from .blocks import BlockGeometricMedian as BlockGeometricMedian
from .histories import ByzantineSGD as ByzantineSGD
from .histories import Safeguard as Safeguard
from .penalty import RSA as RSA
from .subsets import DivideAndConquer as DivideAndConquer
from .subsets import LargestCluster as LargestCluster
from .trials import Zeno as Zeno
from .variance import SAGA as SAGA
from .variance import Marina as Marina
from .votes import MajorityVote as MajorityVote
from .votes import SignSum as SignSum
from .votes import SignVote as SignVote

__all__: list[str]
