from .tracker import Tracked as Tracked
from .tracker import Tracker as Tracker
from .tracking import Tracking as Tracking

__all__: list[str]
