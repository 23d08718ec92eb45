"""How far a rule may be led astray: kappa and c, and what no rule can do better.

Of n vectors f are bad; the others, h = n - f, have mean mu and variance sigma^2, the mean of
|x_i - mu|^2. rho^2 is the mean of |x_i - x_j|^2 over pairs of different honest vectors, which is
2h / (h - 1) sigma^2; delta = f / n. The largest squared error over all inputs is

    kappa = sup |out - mu|^2 / sigma^2            (Allouah et al. 2023: (f, kappa)-robustness)
    c     = sup |out - mu|^2 / (delta rho^2)      (the bucketing paper: (delta_max, c)-robustness)

where random mixings are averaged over: the two say the same in different units.
"""

from __future__ import annotations

import math


def lower_bound(n: int, f: int) -> float:
    """The kappa below which no rule gets: f / (n - 2f); infinite without an honest majority.

    Let f vectors stand at one place and n - f at another. If the f are bad, the result must be the
    other place, because the honest ones do not differ. If instead f of the n - f are bad, it errs
    by that much: no rule can tell which of both is the case.

    >>> lower_bound(25, 5)
    0.3333333333333333
    """
    return f / (n - 2 * f) if 2 * f < n else math.inf


def c_of(kappa: float, n: int, f: int) -> float:
    """The paper's c for a kappa; not a number where nobody is bad, or one is honest.

    >>> round(c_of(lower_bound(25, 5), 25, 5), 2)
    0.79
    """
    h = n - f
    return kappa * n * (h - 1) / (2 * f * h) if f and h > 1 else math.nan
