from .artifact import Artifact as Artifact
from .artifact import Cell as Cell
from .artifact import Picture as Picture
from .pivot import check_axes as check_axes
from .pivot import own_runs as own_runs
from .pivot import pivots as pivots
from .ranking import Ranking as Ranking
from .ranking import Row as Row
from .ranking import Worst as Worst
from .ranking import ranking_rows as ranking_rows
from .results import ALIKE as ALIKE
from .results import COLLAPSED as COLLAPSED
from .results import CRITERION as CRITERION
from .results import POINTS as POINTS
from .results import MeasuredCell as MeasuredCell
from .results import Published as Published
from .results import ResultTable as ResultTable
from .results import tied as tied
from .results import worst as worst
from .version import PAPER as PAPER
from .version import SEEDS as SEEDS
from .version import Version as Version

__all__: list[str]
