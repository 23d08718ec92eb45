from . import distributed as distributed
from . import tracking as tracking
from .files import Files as Files
from .files import Merged as Merged
from .files import merge as merge
from .ray import Ray as Ray

__all__: list[str]
