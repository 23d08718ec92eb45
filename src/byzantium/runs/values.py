"""Checks of the values in files of results.

Each class of jobs declares the checks of its values (`Job.summary_checks`, `Job.metric_checks`),
and `records` applies them when a file is read. A file may come from somebody else: a value without
a check is never used, except for metrics of plugins that are not loaded, whose values tell their
type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Nothing that is measured may be larger; the square of this is still a number.
LARGEST = 1e100
# Up to here whole numbers are exact in JavaScript, too, which reads them on the page.
LARGEST_WHOLE = 2**53
# The most characters that a text has.
LONGEST_TEXT = 300
# No data set has more files.
MOST_FILES = 100
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

#: A function that says whether a value is valid.
Check = Callable[[Any], bool]
Checks = Mapping[str, Check]


def number(value: Any, least: float = -LARGEST) -> bool:
    """A finite number of ordinary size.

    >>> number(-1.5), number(True), number(float("nan")), number(10**400)
    (True, False, False, False)
    """
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return numeric and least <= value <= LARGEST


def size(value: Any) -> bool:
    """A number that is not negative."""
    return number(value, 0)


def measured(value: Any) -> bool:
    """A number, or what is not finite: a loss may be infinite."""
    return number(value) or (isinstance(value, float) and not math.isfinite(value))


def whole(value: Any) -> bool:
    """A whole number that is not negative."""
    return isinstance(value, int) and number(value, 0) and value <= LARGEST_WHOLE


def text(value: Any, longest: int = LONGEST_TEXT) -> bool:
    """A short text in one line, of characters that can be seen."""
    return isinstance(value, str) and value.isprintable() and len(value) <= longest


def digests(value: Any) -> bool:
    """The files of a data set, and a digest of each."""
    small = isinstance(value, dict) and len(value) <= MOST_FILES
    return small and all(text(k) and DIGEST.fullmatch(str(v)) for k, v in value.items())


def shares(value: Any) -> bool:
    """A number for each worker; `records` checks how many there are."""
    return isinstance(value, list) and all(map(number, value))


def series(value: Any) -> bool:
    """A number for each of some rounds."""
    return isinstance(value, list) and all(map(number, value))


def times(value: Any) -> bool:
    """How often some workers were named."""
    return isinstance(value, dict) and all(text(k) and whole(v) for k, v in value.items())


def optional(check: Check) -> Check:
    """A check that None passes, too: a job that diverged has no accuracy."""
    return lambda value: value is None or check(value)


#: The checks of metrics, by `Metric.kind`.
METRIC_CHECKS: Checks = {
    "number": measured,
    "rounds": series,
    "shares": shares,
    "edges": series,
    "workers": times,
}


def check_by_value(value: Any) -> Check:
    """The check of a metric that is not in the table, by one of its values."""
    if isinstance(value, list):
        return shares
    return times if isinstance(value, dict) else measured
