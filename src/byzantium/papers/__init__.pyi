from .benchmarks import LEVELS as LEVELS
from .benchmarks import benchmark as benchmark
from .benchmarks import recorded_ranking as recorded_ranking
from .bucketing import MAKERS as MAKERS
from .bucketing import artifact as artifact
from .bucketing import bucketed as bucketed
from .causes import CAUSES as CAUSES
from .comparison import compare as compare
from .comparison import published_cells as published_cells
from .replay import IMAGES as IMAGES
from .replay import Replay as Replay
from .replay import replays as replays
from .requests import Requests as Requests
from .versions import RELEASED as RELEASED
from .versions import in_version as in_version
from .versions import released as released

__all__: list[str]
