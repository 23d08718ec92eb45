"""What people look at: tables, figures, an HTML page, Markdown, and the demonstration."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
