from .adapter_merging import merge_adapters as merge_adapters
from .adapters import Adapters as Adapters
from .adapters import are_adapters as are_adapters
from .merging import merge as merge
from .sizes import read_weights as read_weights
from .source import Files as Files
from .source import Merged as Merged

__all__: list[str]
