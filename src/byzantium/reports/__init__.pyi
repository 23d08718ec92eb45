from . import certificates as certificates
from . import demo as demo
from . import figures as figures
from . import markdown as markdown
from . import report as report
from .markdown import terminal as terminal
from .tables import duration as duration
