from .subsets import DivideAndConquer as DivideAndConquer
from .variance import SAGA as SAGA
from .variance import Marina as Marina

__all__: list[str]
