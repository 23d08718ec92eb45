from .geometry import Geometry as Geometry
from .source import Matrix as Matrix
from .source import Source as Source
from .source import as_source as as_source

__all__: list[str]
