r"""How different honest vectors may be while descent can still be promised.

Of n vectors, f are Byzantine; the others are honest, with mean :math:`\mu` and variance
:math:`\sigma^2`. Their heterogeneity is :math:`B^2 = \sigma^2 / \|\mu\|^2`. A rule promises descent
if its result points in the direction of :math:`\mu`: the expectation of
:math:`\langle \mathrm{out}, \mu \rangle` is positive, whatever the f others send. The proofs are in
docs/guarantees.md, Proposition 12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from byzantium.core import ByzantiumError
from byzantium.guarantees.guarantee import check_counts, guarantee
from byzantium.rules import Aggregator


def largest_heterogeneity(rule: Aggregator | None, n: int, f: int) -> float:
    r"""The number that :math:`B^2` must stay below for a pipeline to promise descent.

    It is :math:`1 / \kappa`, with the kappa of the pipeline's guarantee: then the error is shorter
    than the mean. It is 0 where nothing is promised, and infinite where kappa is 0.

    - `rule`: the rule or pipeline. None gives the number that no rule exceeds, random rules and
      rules with memory included: :math:`(n - 2f) / f`. `TrimmedMean(f)` attains it.
    - `n`, `f`: how many vectors there are, and how many may be Byzantine, less than n / 2.

    >>> from byzantium import Bucketing, Mean, TrimmedMean
    >>> [round(largest_heterogeneity(None, 25, f), 1) for f in (1, 3, 5)]
    [23.0, 6.3, 3.0]
    >>> rules = TrimmedMean(f=3), Bucketing(s=2) >> TrimmedMean(f=3)
    >>> [round(largest_heterogeneity(rule, 25, 3), 2) for rule in rules]
    [6.33, 3.06]
    >>> largest_heterogeneity(Mean(), 25, 3), largest_heterogeneity(Mean(), 25, 0)
    (0.0, inf)
    """
    if rule is None:
        check_counts(n, f)
        return (n - 2 * f) / f if f else math.inf
    return guarantee(rule, n, f).largest_heterogeneity


def most_attackers(n: int, b2: float) -> int:
    r"""The largest f for which some rule can promise descent at a heterogeneity.

    It is the largest f with :math:`f / n < 1 / (2 + B^2)`, which is
    :math:`B^2 < (n - 2f) / f`.

    - `b2`: the heterogeneity :math:`B^2`, at least 0; it may be infinite.

    >>> [most_attackers(25, b2) for b2 in (0, 1.2, 3, 28)]
    [12, 7, 4, 0]
    """
    if not n >= 1 or not b2 >= 0:
        raise ByzantiumError(f"n must be at least 1 and B^2 at least 0, got n={n}, B^2={b2}")
    f = min((n - 1) // 2, int(n / (2 + b2)) + 1)  # rounding errs by less than the one added
    while f and not b2 < largest_heterogeneity(None, n, f):
        f -= 1
    return f


def describe_limit(
    n: int, f: int, measured: Mapping[str, Sequence[float]], subject: str = "yours is"
) -> str:
    r"""The limit on :math:`B^2` in words, beside what was measured.

    - `n`, `f`: how many vectors there are, and how many of them may be Byzantine.
    - `measured`: measured :math:`B^2`, by the name of what they were measured on, or by "". Of
      several the smallest and the largest are named.
    - `subject`: the words before what was measured.

    >>> describe_limit(25, 5, {"": [28.04]})
    '5 of 25 need B² < 3; yours is 28'
    >>> describe_limit(25, 5, {"iid": [1.1], "by label": [28.04, 11.3]})
    '5 of 25 need B² < 3; yours is 1.1 (iid), 11.3 to 28 (by label)'
    """
    yours = []
    for name, values in measured.items():
        ends = dict.fromkeys(f"{value:.3g}" for value in (min(values), max(values)))
        yours.append(" to ".join(ends) + (f" ({name})" if name else ""))
    limit = largest_heterogeneity(None, n, f)
    return f"{f} of {n} need B² < {limit:.3g}; {subject} {', '.join(yours)}"
