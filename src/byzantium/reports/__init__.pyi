from .headline import headline as headline
from .markdown import terminal as terminal
from .pivot import own_runs as own_runs
from .pivot import pivots as pivots
from .tables import duration as duration

__all__: list[str]
