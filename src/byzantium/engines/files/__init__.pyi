from .merging import merge as merge
from .source import Files as Files
from .source import Merged as Merged

__all__: list[str]
