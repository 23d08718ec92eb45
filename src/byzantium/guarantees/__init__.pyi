from .bounds import Bound as Bound
from .bounds import bound as bound
from .bounds import mixed as mixed
from .guarantee import Guarantee as Guarantee
from .guarantee import announce as announce
from .guarantee import guarantee as guarantee
from .measure import c_of as c_of
from .measure import lower_bound as lower_bound
from .recommendation import Recommendation as Recommendation
from .recommendation import recommend as recommend

__all__: list[str]
