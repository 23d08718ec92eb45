"""Training runs as data: single runs, sweeps over settings, and their results on disk."""

from byzantium.core.exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__, __file__, moved={"attempt": "byzantium.runs.perform_with_events"}
)
