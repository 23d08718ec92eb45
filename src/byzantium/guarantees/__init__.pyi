from .bounds import Bound as Bound
from .bounds import bound as bound
from .bounds import chance_of_more_bad_groups as chance_of_more_bad_groups
from .bounds import mixed as mixed
from .certification import Certificate as Certificate
from .certification import Finding as Finding
from .certification import attack as attack
from .certification import breakdown as breakdown
from .certification import certify as certify
from .guarantee import Guarantee as Guarantee
from .guarantee import announce as announce
from .guarantee import gap as gap
from .guarantee import guarantee as guarantee
from .heterogeneity import describe_limit as describe_limit
from .heterogeneity import largest_heterogeneity as largest_heterogeneity
from .heterogeneity import most_attackers as most_attackers
from .measure import c_of as c_of
from .measure import lower_bound as lower_bound
from .recommendation import Recommendation as Recommendation
from .recommendation import recommend as recommend

__all__: list[str]
