from .ranks import TIMEOUT as TIMEOUT
from .ranks import LostRankError as LostRankError
from .reduce import explain_all_reduce as explain_all_reduce
from .reduce import robust_all_reduce as robust_all_reduce
from .shard import Shard as Shard
from .training import aggregate_before_step as aggregate_before_step
from .training import aggregate_gradients as aggregate_gradients
from .training import aggregate_in_ddp as aggregate_in_ddp

__all__: list[str]
