from .headline import headline as headline
from .markdown import terminal as terminal
from .text_tables import duration as duration

__all__: list[str]
