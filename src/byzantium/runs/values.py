"""What a file of results may hold under a name: kinds of values.

Each kind of job declares the kinds of its own fields (`Job.in_summary` and `Job.in_metrics`), and
`records` checks them when a file is read. A file may come from a stranger: what is not declared is
never used, apart from metrics of plugins that are not loaded, which show their kind themselves.
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

#: Whether a value is of a kind.
Kind = Callable[[Any], bool]
Kinds = Mapping[str, Kind]


def number(value: Any, least: float = -LARGEST) -> bool:
    """A finite number of ordinary size.

    >>> number(-1.5), number(True), number(float("nan")), number(10**400)
    (True, False, False, False)
    """
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and least <= value <= LARGEST


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
    if not isinstance(value, dict) or len(value) > MOST_FILES:
        return False
    return all(
        text(name) and isinstance(digest, str) and DIGEST.fullmatch(digest)
        for name, digest in value.items()
    )


def shares(value: Any) -> bool:
    """A number for each worker; how many there are, the file as a whole says."""
    return isinstance(value, list) and all(map(number, value))


def series(value: Any) -> bool:
    """A number for each of some rounds."""
    return isinstance(value, list) and all(map(number, value))


def times(value: Any) -> bool:
    """How often some workers were named."""
    return isinstance(value, dict) and all(text(k) and whole(v) for k, v in value.items())


def absent_or(kind: Kind) -> Kind:
    """A value of a kind, or None: a job that diverged has no accuracy."""
    return lambda value: value is None or kind(value)


#: The kinds of metrics, by the names that the table of metrics gives them.
OF_METRICS: Kinds = {
    "number": measured,
    "rounds": series,
    "shares": shares,
    "workers": times,
}


def of_unknown(value: Any) -> Kind:
    """The kind of a metric that nobody here knows, by its value."""
    if isinstance(value, list):
        return shares
    return times if isinstance(value, dict) else measured
