from .artifacts import Artifact as Artifact
from .artifacts import Cell as Cell
from .artifacts import Picture as Picture
from .artifacts import Version as Version
from .benchmarks import benchmark as benchmark
from .bucketing import MAKERS as MAKERS
from .bucketing import artifact as artifact
from .bucketing import bucketed as bucketed
from .comparison import CRITERION as CRITERION
from .comparison import POINTS as POINTS
from .comparison import MeasuredCell as MeasuredCell
from .comparison import ResultTable as ResultTable
from .comparison import compare as compare
from .comparison import published_cells as published_cells
from .comparison import worst as worst
from .released import CAUSES as CAUSES
from .released import RELEASED as RELEASED
from .released import released as released
from .replay import Replay as Replay
from .replay import replays as replays
from .requests import Requests as Requests

__all__: list[str]
