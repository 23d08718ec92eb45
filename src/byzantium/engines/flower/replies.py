"""A reply of a node becomes a row of named arrays, or a reason why it cannot.

Whoever sends a reply chose every byte of it. So nothing in it is executed or unpickled, nothing is
allocated on its word, and whatever is wrong with it is a sentence about one node. Arrays are views
of the bytes that came, which are neither copied nor converted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

from byzantium.core import ByzantiumError
from byzantium.vectors import as_source

Arrays = dict[str, NDArray[Any]]

# What `numpy.save` writes before the numbers: two marks, the length of a header, the header.
MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
LONGEST_HEADER = 4096
HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>=|]?(?:[fiubcOSUVmM]\d{0,3}|\?))',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(((?:\s*\d{1,18}\s*,)*(?:\s*\d{1,18})?)\s*\),?\s*\}\s*"
)
# A larger metric is nonsense.
LARGEST = 1e300
# The most characters of a stranger's text that are shown.
LONGEST_SHOWN = 80
# The code of the error that takes the place of a reply which cannot be read; Flower's are >= 0.
UNREADABLE = -1


class Unusable(ByzantiumError):  # noqa: N818
    """Why a reply cannot be used, as the end of a sentence about its node."""


def shown(text: Any) -> str:
    """What a stranger wrote, in one short printable line."""
    line = " ".join(str(text)[: 4 * LONGEST_SHOWN].split())
    line = "".join(sign if sign.isprintable() else "?" for sign in line)
    return line if len(line) <= LONGEST_SHOWN else f"{line[:LONGEST_SHOWN]}..."


# -- arrays ---------------------------------------------------------------------------------------


def model_of(record: ArrayRecord) -> Arrays:
    """Our own model, as arrays; a sentence if no rule could aggregate such."""
    model = {key: _viewed(key, array) for key, array in record.items()}
    as_source([model])
    return model


def row_of(content: RecordDict, model: Arrays) -> Arrays:
    """The arrays of a reply to a model, which must have its names, shapes and dtypes."""
    try:
        return _row(content, model)
    except Unusable:
        raise
    except Exception as error:  # whatever it is that a stranger made it trip over
        raise Unusable(f"cannot be read: {type(error).__name__}") from error


def _row(content: RecordDict, model: Arrays) -> Arrays:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise Unusable(f"holds {len(records)} records of arrays instead of one")
    (record,) = records
    for key in model.keys() - record.keys():
        raise Unusable(f"lacks the entry {shown(key)!r}")
    for key in record.keys() - model.keys():
        raise Unusable(f"has an entry {shown(key)!r} that the model lacks")
    row = {}
    for key, wanted in model.items():
        row[key] = _viewed(key, record[key], wanted)
    return row


def _viewed(key: str, array: Array, wanted: NDArray[Any] | None = None) -> NDArray[Any]:
    """The numbers in the bytes of an array, where they lie.

    Only its bytes say what it is: Flower's fields beside them may say something else.
    """
    data = array.data
    if wanted is not None and len(data) > wanted.nbytes + LONGEST_HEADER:
        raise Unusable(f"has {len(data)} bytes for {wanted.nbytes} bytes of numbers at {key!r}")
    if array.stype != "numpy.ndarray" or data[:6] != MAGIC or len(data) < 12:
        raise Unusable(f"holds what is no array of numbers at {key!r}")
    if data[6] not in LENGTH_BYTES:
        raise Unusable(f"holds an array of an unknown version at {key!r}")
    start = 8 + LENGTH_BYTES[data[6]]
    end = start + int.from_bytes(data[8:start], "little")
    header = HEADER.fullmatch(data[start:end]) if end - start <= LONGEST_HEADER else None
    if header is None:
        raise Unusable(f"holds an array with a header that makes no sense at {key!r}")
    descr, fortran, sizes = (part.decode() for part in header.groups())
    shape = tuple(int(size) for size in sizes.replace(",", " ").split())
    try:
        dtype = np.dtype(descr)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        raise Unusable(f"holds numbers of the kind {shown(descr)!r} at {key!r}")
    if wanted is not None and shape != wanted.shape:
        raise Unusable(f"has the shape {shown(shape)} instead of {wanted.shape} at {key!r}")
    if wanted is not None and dtype.newbyteorder("=") != wanted.dtype.newbyteorder("="):
        raise Unusable(f"has the dtype {dtype} instead of {wanted.dtype} at {key!r}")
    if len(data) - end != math.prod(shape) * dtype.itemsize:
        raise Unusable(
            f"has a header that lies at {key!r}: the shape {shape} of {dtype} takes "
            f"{math.prod(shape) * dtype.itemsize} bytes, and there are {len(data) - end}"
        )
    numbers = np.frombuffer(data, dtype, offset=end) if len(data) > end else np.empty(0, dtype)
    return numbers.reshape(shape, order="F" if fortran == "True" else "C")


def record_of(model: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A model as Flower sends it; the arrays keep their dtypes and shapes."""
    return ArrayRecord(
        {key: Array(np.ascontiguousarray(a).reshape(a.shape)) for key, a in model.items()}
    )


# -- metrics --------------------------------------------------------------------------------------


def metrics_of(content: RecordDict) -> MetricRecord:
    """What a node says of itself."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise Unusable(f"holds {len(records)} records of metrics instead of one")
    return records[0]


def odd_ones(said: Mapping[int, MetricRecord], examples: str) -> dict[int, str]:
    """The nodes whose metrics have other names than those of most, or claim no possible count.

    A count of examples is looked at where most nodes send one, and changes no weight.
    """
    names = {node: frozenset(metrics) for node, metrics in said.items()}
    usual = Counter(names.values()).most_common(1)[0][0] if names else frozenset()
    odd = {}
    for node, metrics in said.items():
        if missing := usual - names[node]:
            odd[node] = f"lacks the metric {shown(min(missing))!r}"
        elif extra := names[node] - usual:
            odd[node] = f"has a metric {shown(min(extra))!r} that the others lack"
        elif examples in metrics:
            count = metrics[examples]
            if isinstance(count, list) or not 0 <= count < math.inf:
                odd[node] = f"claims {shown(count)} examples"
    return odd


def medians(contents: Sequence[RecordDict], examples: str) -> MetricRecord:
    """The median of each metric over nodes, of the numbers that are finite; lists by place."""
    said = [metrics_of(content) for content in contents]
    found = MetricRecord()
    for name in dict.fromkeys(name for metrics in said for name in metrics):
        values = [_numbers(metrics[name]) for metrics in said if name in metrics]
        (is_list, length), count = Counter((listed, len(v)) for listed, v in values).most_common(1)[
            0
        ]
        if name == examples or 2 * count <= len(said):
            continue
        rows = [v for listed, v in values if (listed, len(v)) == (is_list, length)]
        finite = [[x for x in column if math.isfinite(x)] for column in zip(*rows, strict=True)]
        if all(finite):
            middle = [float(np.median(column)) for column in finite]
            found[name] = middle if is_list else middle[0]
    return found


def _numbers(value: Any) -> tuple[bool, list[float]]:
    """Whether a metric is a list, and its numbers; whole ones beyond float64 are infinite."""
    listed = isinstance(value, list)
    numbers = value if listed else [value]
    return listed, [float(x) if abs(x) < LARGEST else math.inf for x in numbers]
