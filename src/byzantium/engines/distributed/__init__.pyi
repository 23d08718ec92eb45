from .ranks import TIMEOUT as TIMEOUT
from .ranks import LostRankError as LostRankError
from .reduce import explain_all_reduce as explain_all_reduce
from .reduce import robust_all_reduce as robust_all_reduce
from .shard import Shard as Shard

__all__: list[str]
