"""What nodes say in words and numbers: in a printable form, and as medians."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from byzantium.core import ByzantiumError, one_line

# The most characters of a node's text that messages show.
MAX_TEXT = 80
# A larger metric counts as infinite.
MAX_METRIC = 1e300


class UnusableReply(ByzantiumError):  # noqa: N818
    """A reply cannot be used; the message is a predicate whose subject is its node."""


@contextmanager
def any_error_is_unusable() -> Iterator[None]:
    """Convert every error to `UnusableReply`: a node can provoke any."""
    try:
        yield
    except UnusableReply:
        raise
    except Exception as error:
        raise UnusableReply(f"cannot be read: {type(error).__name__}") from error


def printable(text: Any) -> str:
    """A text from a node, in one short printable line."""
    return one_line(str(text)[: 4 * MAX_TEXT], MAX_TEXT)


def median_metrics(records: Sequence[Mapping[str, Any]], omitted: str = "") -> dict[str, Any]:
    """The median of each metric over nodes, of the finite numbers; lists element by element.

    A metric must be of the same length, or no list, in more than half of the records. The one
    named `omitted` is omitted.
    """
    result: dict[str, Any] = {}
    for name in dict.fromkeys(name for metrics in records for name in metrics):
        values = [metrics[name] for metrics in records if name in metrics]
        (length, count), *_ = Counter(map(_length, values)).most_common(1)
        if name == omitted or 2 * count <= len(records):
            continue
        rows = [_numbers(value) for value in values if _length(value) == length]
        finite = [[x for x in column if math.isfinite(x)] for column in zip(*rows, strict=True)]
        if all(finite):
            middle = [float(np.median(column)) for column in finite]
            result[name] = middle[0] if length is None else middle
    return result


def _length(value: Any) -> int | None:
    return len(value) if isinstance(value, list) else None


def _numbers(value: Any) -> list[float]:
    """The numbers of a metric; integers beyond float64 become infinite."""
    numbers = value if isinstance(value, list) else [value]
    return [float(x) if abs(x) < MAX_METRIC else math.inf for x in numbers]
