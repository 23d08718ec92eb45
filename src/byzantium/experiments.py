"""The former name of `byzantium.runs`, `byzantium.tables` and `byzantium.papers`."""

from byzantium.core.exports import former_package

__getattr__ = former_package(
    __name__,
    ["byzantium.runs", "byzantium.tables", "byzantium.papers"],
    renamed={"Compared": "MeasuredCell", "Comparison": "ResultTable"},
)
