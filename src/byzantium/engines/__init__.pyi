from . import distributed as distributed
from . import tracking as tracking
from .files import Adapters as Adapters
from .files import Files as Files
from .files import Merged as Merged
from .files import are_adapters as are_adapters
from .files import merge as merge
from .files import merge_adapters as merge_adapters
from .ray import Ray as Ray

__all__: list[str]
