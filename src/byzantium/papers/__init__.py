"""The bucketing paper and the benchmark: their tables and figures, and the published numbers."""

from byzantium.core.exports import lazy_exports

_MODEL = ["Artifact", "Cell", "CRITERION", "MeasuredCell", "Picture", "POINTS", "ResultTable"]
_MODEL += ["Version", "worst"]

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    __file__,
    moved={name: f"byzantium.tables.{name}" for name in _MODEL}
    | {
        "Compared": "byzantium.tables.MeasuredCell",
        "Comparison": "byzantium.tables.ResultTable",
    },
)
