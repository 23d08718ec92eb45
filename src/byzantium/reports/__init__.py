"""Renderers of tables: terminal, Markdown, LaTeX, CSV, figures, and the page."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    __file__,
    moved={
        "own_runs": "byzantium.tables.own_runs",
        "pivots": "byzantium.tables.pivots",
    },
)
