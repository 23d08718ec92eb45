from .geometry import Geometry as Geometry
from .low_rank import LowRank as LowRank
from .low_rank_update import LowRankUpdate as LowRankUpdate
from .source import Matrix as Matrix
from .source import Source as Source
from .source import as_source as as_source

__all__: list[str]
