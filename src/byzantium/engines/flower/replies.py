"""Replies of nodes as named arrays and metrics, or a reason why a reply cannot be used.

A node chooses every byte of its reply. So nothing in it is executed or unpickled, the sizes that it
claims allocate no memory, and whatever is wrong with it is an error about one node. Arrays are
views of the received bytes, which are neither copied nor converted.
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

from byzantium.engines.federation.replies import (
    UnusableReply,
    any_error_is_unusable,
    median_metrics,
    printable,
)
from byzantium.engines.federation.vectors import Arrays
from byzantium.vectors import as_source

# What `numpy.save` writes before the numbers: magic bytes, a version, the length of a header, and
# the header.
MAGIC = b"\x93NUMPY"
LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
MAX_HEADER = 4096
HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>=|]?(?:[fiubcOSUVmM]\d{0,3}|\?))',\s*'fortran_order':\s*(True|False),"
    rb"\s*'shape':\s*\(((?:\s*\d{1,18}\s*,)*(?:\s*\d{1,18})?)\s*\),?\s*\}\s*"
)
# The code of the error that replaces a reply which cannot be read; Flower's codes are >= 0.
UNREADABLE = -1


def model_of(record: ArrayRecord) -> Arrays:
    """The model of the server, as arrays; raises an error if no rule can aggregate such arrays."""
    model = {key: _array_view(key, array) for key, array in record.items()}
    as_source([model])
    return model


@any_error_is_unusable()
def row_of(content: RecordDict, model: Arrays) -> Arrays:
    """The arrays of a reply to a model, which must have its names, shapes and dtypes."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise UnusableReply(f"holds {len(records)} records of arrays instead of one")
    (record,) = records
    for key in model.keys() - record.keys():
        raise UnusableReply(f"lacks the entry {printable(key)!r}")
    for key in record.keys() - model.keys():
        raise UnusableReply(f"has an entry {printable(key)!r} that the model lacks")
    return {key: _array_view(key, record[key], array) for key, array in model.items()}


def _array_view(key: str, array: Array, model: NDArray[Any] | None = None) -> NDArray[Any]:
    """The numbers in the bytes of an array, as a view.

    - `model`: the array of the model, whose shape and dtype it must have.

    Only its bytes count: Flower's other fields may contradict them.
    """
    data = array.data
    if model is not None and len(data) > model.nbytes + MAX_HEADER:
        raise UnusableReply(f"has {len(data)} bytes for {model.nbytes} bytes of numbers at {key!r}")
    if array.stype != "numpy.ndarray" or data[:6] != MAGIC or len(data) < 12:
        raise UnusableReply(f"holds what is no array of numbers at {key!r}")
    if data[6] not in LENGTH_BYTES:
        raise UnusableReply(f"holds an array of an unknown version at {key!r}")
    start = 8 + LENGTH_BYTES[data[6]]
    end = start + int.from_bytes(data[8:start], "little")
    header = HEADER.fullmatch(data[start:end]) if end - start <= MAX_HEADER else None
    if header is None:
        raise UnusableReply(f"holds an array with a header that makes no sense at {key!r}")
    descr, fortran, sizes = (part.decode() for part in header.groups())
    shape = tuple(int(size) for size in sizes.replace(",", " ").split())
    try:
        dtype = np.dtype(descr)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "fiub":
        raise UnusableReply(f"holds numbers of the kind {printable(descr)!r} at {key!r}")
    if model is not None and shape != model.shape:
        raise UnusableReply(f"has the shape {printable(shape)} instead of {model.shape} at {key!r}")
    if model is not None and dtype.newbyteorder("=") != model.dtype.newbyteorder("="):
        raise UnusableReply(f"has the dtype {dtype} instead of {model.dtype} at {key!r}")
    if len(data) - end != math.prod(shape) * dtype.itemsize:
        raise UnusableReply(
            f"has a false header at {key!r}: the shape {shape} of {dtype} takes "
            f"{math.prod(shape) * dtype.itemsize} bytes, and there are {len(data) - end}"
        )
    numbers = np.frombuffer(data, dtype, offset=end) if len(data) > end else np.empty(0, dtype)
    return numbers.reshape(shape, order="F" if fortran == "True" else "C")


def record_of(model: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """A model as a record of Flower, with equal dtypes and shapes."""
    return ArrayRecord(
        {key: Array(np.ascontiguousarray(a).reshape(a.shape)) for key, a in model.items()}
    )


def metrics_of(content: RecordDict) -> MetricRecord:
    """The metrics of a reply."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise UnusableReply(f"holds {len(records)} records of metrics instead of one")
    return records[0]


def metric_faults(records: Mapping[int, MetricRecord], examples: str) -> dict[int, str]:
    """The nodes whose metrics have unusual names or an impossible number of examples, and why.

    The number of examples is checked only if most nodes send one, and changes no weight.
    """
    names = {node: frozenset(metrics) for node, metrics in records.items()}
    usual = Counter(names.values()).most_common(1)[0][0] if names else frozenset()
    faults = {}
    for node, metrics in records.items():
        if missing := usual - names[node]:
            faults[node] = f"lacks the metric {printable(min(missing))!r}"
        elif extra := names[node] - usual:
            faults[node] = f"has a metric {printable(min(extra))!r} that the others lack"
        elif examples in metrics:
            count = metrics[examples]
            if isinstance(count, list) or not 0 <= count < math.inf:
                faults[node] = f"claims {printable(count)} examples"
    return faults


def medians(contents: Sequence[RecordDict], examples: str) -> MetricRecord:
    """The median of each metric over nodes, except the number of examples."""
    return MetricRecord(median_metrics([metrics_of(content) for content in contents], examples))
