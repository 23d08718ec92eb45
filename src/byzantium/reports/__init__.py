"""What people look at: tables, figures, an HTML page, Markdown, and the demonstration."""

from byzantium.core.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
