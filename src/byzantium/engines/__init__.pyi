from . import distributed as distributed
from .files import Files as Files
from .files import Merged as Merged
from .merging import merge as merge

__all__: list[str]
