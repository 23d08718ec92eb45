r"""The units of the error of a rule, kappa and c, and the smallest error that any rule can have.

Of n vectors, f are Byzantine. The other h = n - f are honest, with mean :math:`\mu` and variance
:math:`\sigma^2`, the mean of :math:`\|x_i - \mu\|^2`. :math:`\rho^2` is the mean of
:math:`\|x_i - x_j\|^2` over pairs of different honest vectors, which is
:math:`\frac{2h}{h-1} \sigma^2`; and :math:`\delta = f/n`. The largest squared error over all
inputs, averaged over random mixings, is measured in one of two units:

.. math:: \kappa = \sup \frac{\|\mathrm{out} - \mu\|^2}{\sigma^2}, \quad
    c = \sup \frac{\|\mathrm{out} - \mu\|^2}{\delta \rho^2}

The first is the :math:`(f, \kappa)`-robustness of Allouah et al. (Fixing by Mixing, 2023), the
second the :math:`(\delta_{\max}, c)`-robustness of the bucketing paper.
"""

from __future__ import annotations

import math


def lower_bound(n: int, f: int) -> float:
    r"""The smallest kappa that any rule can have, :math:`f / (n - 2f)`.

    Where f is half of n or more, the result is infinite.

    Why: let f vectors be at one point and n - f at another. If the f are Byzantine, the result must
    be the other point, because all honest vectors are there. If instead f of the n - f are
    Byzantine, the error of that result is exactly this bound. No rule can distinguish the cases.

    >>> lower_bound(25, 5)
    0.3333333333333333
    """
    return f / (n - 2 * f) if 2 * f < n else math.inf


def c_of(kappa: float, n: int, f: int) -> float:
    r"""The c of the bucketing paper that corresponds to a kappa, :math:`\kappa n (h-1) / (2 f h)`.

    - `kappa`: the largest squared error in units of the honest variance.
    - `n`, `f`: how many vectors there are, and how many of them are Byzantine; h is n - f. Where f
      is 0, or only one vector is honest, the result is NaN.

    >>> round(c_of(lower_bound(25, 5), 25, 5), 2)
    0.79
    """
    h = n - f
    return kappa * n * (h - 1) / (2 * f * h) if f and h > 1 else math.nan
