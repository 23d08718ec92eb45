from .measure import c_of as c_of
from .measure import lower_bound as lower_bound

__all__: list[str]
