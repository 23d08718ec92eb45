"""Rules that use a trusted vector: the *root gradient*, from data that the server holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray

from byzantium.core import Count
from byzantium.rules.capped_simplex import CappedSimplex
from byzantium.rules.kinds import Weighting
from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.weights import Weights, weighted_median, weighted_quantile

# A row this many times farther from the root gradient than rows usually are has no influence: in
# sums with its square the regularization would be lost.
FAR = 1e4
# The smallest regularization, relative to the squared distances that rows usually have.
SMALLEST_RIDGE = 1e-12


class RootRule(Weighting):
    """A weighting that needs the root gradient, `rule(updates, root=g0)`.

    - `delta_max`: 1, because the root gradient is trusted: any share of the vectors below all of
      them may be Byzantine.
    """

    delta_max: ClassVar[float] = 1
    #: What is proved of it, whatever the Byzantine vectors are, in words; "" if nothing is.
    promise: ClassVar[str] = ""
    max_share = delta_max
    needs_root = needs_origin = True


@dataclass(frozen=True, repr=False)
class RootMatching(RootRule):
    r"""The mixture of the vectors that comes nearest to the root gradient.

    .. math:: \sum_i w_i x_i, \quad
        w = \operatorname*{argmin}_{0 \le w_i \le 1/(n-f),\ \sum w_i = 1}
        \|\sum_i w_i x_i - g_0\|^2 + \mathrm{ridge} \, s^2 \, \|w - \frac1n\|^2

    :math:`g_0` is the root gradient: that of a small data set at the server, passed as
    `rule(updates, root=g0)`. :math:`s^2` is the median squared norm of the vectors or, where f is
    at least n/2, :math:`\|g_0\|^2`. For every f < n, and however the honest vectors differ from
    each other,

    .. math:: \|\mathrm{out} - \mu\|^2 \le \|g_0 - \mu\|^2 - \|g_0 - \mathrm{out}\|^2
        + \mathrm{ridge} \, s^2 (\frac{1}{n-f} - \frac1n)

    where :math:`\mu` is the mean of the honest vectors: up to the last term the result is never
    farther from it than the root gradient is. docs/guarantees.md has the proof, and
    docs/do/root.md how to use it. Compare with a training on the root data alone: if that is good
    enough, the workers are not needed.

    A vector that is ten thousand times farther from the root gradient than usual has weight 0.

    - `f`: how many vectors may be Byzantine, at least 0 and below n. Too small is fatal, too large
      costs little: when unsure, take (n - 1) // 2.
    - `ridge`: how much the weights are drawn to the mean's, above 0 and at most 1e9.
    - `guard`: while the result is farther from the root gradient than the origin is, double f and
      solve again, with :math:`s^2 = \|g_0\|^2`. Where f is too small this helps against crude
      attacks, not against an attacker who knows the rule.

    The rule is ours.

    >>> updates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-9.0, -9.0]])
    >>> RootMatching(f=1)(updates, root=torch.tensor([0.6, 0.6])).round(decimals=2)
    tensor([0.5000, 0.5000])
    """

    f: Count
    ridge: Annotated[float, Gt(0), Le(1e9)] = 0.1
    guard: bool = False
    takes_weights: ClassVar[bool] = True
    promise: ClassVar[str] = (
        "never farther from the honest mean than the root gradient is, up to the ridge term "
        "(docs/guarantees.md, Proposition 14)"
    )

    def min_vectors(self) -> tuple[int, str]:
        return self.f + 1, "f + 1"

    def weights(self, geometry: Geometry) -> Array:
        return self.weights_of([geometry])[0]

    def weights_of(self, geometries: Sequence[Geometry]) -> list[Array]:
        measured = [self._measured(geometry) for geometry in geometries]
        matched = _matched([self._problem(*each) for each in measured])
        if self.guard:
            for k, geometry in enumerate(geometries):
                matched[k] = self._guarded(matched[k], geometry, *measured[k])
        return matched

    def _measured(self, geometry: Geometry) -> tuple[Array, float, float, Weights | None]:
        """Inner products about the root gradient, s^2, |g0|^2, and the weights of the rows."""
        n, vouched = geometry.n, geometry.vouched
        products = geometry.gram_about(geometry.root)[:n, :n]
        squared_norms = geometry.squares_about(geometry.origin)
        root_square = float(squared_norms[geometry.root])
        return products, self._scale(squared_norms[:n], root_square, vouched), root_square, vouched

    def _guarded(
        self,
        weights: Array,
        geometry: Geometry,
        products: Array,
        s_square: float,
        root_square: float,
        vouched: Weights | None,
    ) -> Array:
        """The weights after f was doubled as often as `guard` says."""
        n, f = len(products), self.f
        while weights @ products @ weights > root_square and f < n - 1:
            f = min(max(1, 2 * f), n - 1)
            rule = replace(self, f=f)
            (weights,) = _matched([rule._problem(products, root_square, root_square, vouched)])
        if f > self.f:
            geometry.note(f"{self!r} was farther from the root gradient than zero is, so f is {f}")
        return weights

    def _scale(self, squared_norms: Array, root_square: float, vouched: Weights | None) -> float:
        """The s^2 of the formula, from the squared norms of the vectors and the root gradient."""
        if vouched is not None:
            minority = vouched.of_largest(self.f) < 1 / 2
            return weighted_median(squared_norms, vouched.shares) if minority else root_square
        n = len(squared_norms)
        if 2 * self.f >= n:
            return root_square
        ordered = np.sort(squared_norms)
        return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2

    def slack(self, norms: Array, root_norm: float, vouched: Weights | None = None) -> float:
        r"""How much farther from the root gradient the result can be than the honest mean is.

        If at most f vectors are Byzantine, it is at most
        :math:`\sqrt{\mathrm{ridge} \, s^2 f / (n (n - f))}` farther (Proposition 14).

        - `norms`: the norms of the n vectors.
        - `root_norm`: the norm of the root gradient.
        - `vouched`: the weights of the vectors that the operator vouches for; f/n is then what the
          f largest hold of them.
        """
        n, s_square = len(norms), self._scale(norms**2, root_norm**2, vouched)
        if vouched is None:
            return math.sqrt(self.ridge * s_square * self.f / (n * (n - self.f)))
        bad = vouched.of_largest(self.f)
        return math.sqrt(self.ridge * s_square * bad / (n * (1 - bad)))

    def _problem(
        self, products: Array, s_square: float, root_square: float, vouched: Weights | None
    ) -> _Problem:
        """The problem whose solution are the weights of the rows.

        Weights sum to one, so |sum_i w_i x_i - g0|^2 = w^T K w with K_ij = <x_i - g0, x_j - g0>,
        and |w - 1/n|^2 = |w|^2 - 1/n. Therefore w minimizes w^T (K + ridge s^2 I) w. With the
        shares p that an operator vouches for, I is the diagonal of 1 / (n p_i), and 1 / (n - f) is
        p_i / (1 - F/N).

        - `products`: the matrix K, (n, n).
        """
        n, squares = len(products), products.diagonal()
        shares = np.ones(n) if vouched is None else vouched.shares
        if vouched is None:
            nearest = np.partition(squares, n - self.f - 1)[n - self.f - 1]
            caps, spread = np.full(n, 1 / (n - self.f)), np.ones(n)
        else:
            bad = vouched.of_largest(self.f)
            nearest = weighted_quantile(squares, shares, 1 - bad)
            caps, spread = np.minimum(shares / (1 - bad), 1), 1 / (n * shares)
        usual = max(s_square, root_square, nearest)
        if not usual > 0:  # n - f vectors and the root gradient are zero: so is their mean
            near = squares == 0
            return _Problem(near, np.eye(near.sum()), shares[near] / shares[near].sum())
        near = squares <= FAR**2 * usual
        ridge = max(self.ridge * s_square, SMALLEST_RIDGE * usual)
        form = products.compress(near, 0).compress(near, 1)
        form.flat[:: len(form) + 1] += ridge * spread[near]
        return _Problem(near, form, caps[near])


class _Problem(NamedTuple):
    """Weights to compute: which rows can have any, (n,), the quadratic form, and the caps."""

    near: NDArray[np.bool_]
    form: Array
    caps: Array


def _matched(problems: Sequence[_Problem]) -> list[Array]:
    """The weights of all rows, (n,) for each problem; those of one size are solved together."""
    results = [np.zeros(len(problem.near)) for problem in problems]
    sizes = [len(problem.caps) for problem in problems]
    for size in set(sizes):
        chosen = [k for k, other in enumerate(sizes) if other == size]
        forms = np.stack([problems[k].form for k in chosen])
        solved = CappedSimplex(forms, np.stack([problems[k].caps for k in chosen])).minimize()
        for k, weights in zip(chosen, solved, strict=True):
            results[k][problems[k].near] = weights
    return results


@dataclass(frozen=True, repr=False)
class FLTrust(RootRule):
    r"""The mean of the vectors, weighted by their cosine with the root gradient.

    .. math:: \frac{1}{\sum_i c_i} \sum_i c_i \frac{\|g_0\|}{\|x_i\|} x_i, \quad
        c_i = \max(0, \cos(x_i, g_0))

    Every vector is scaled to the norm of the root gradient :math:`g_0`, which is passed as
    `rule(updates, root=g0)`. If no vector has a positive cosine, the result is zero.

    It is the best-known rule with root data, here for comparison: an attacker who knows it can make
    a training end below one on the root data alone; `RootMatching` has a bound that excludes this.

    Cao, Fang, Liu, Gong: FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS
    2021.

    >>> FLTrust()(torch.tensor([[2.0, 0.0], [0.0, 3.0], [-9.0, -9.0]]), root=torch.ones(2))
    tensor([0.7071, 0.7071])
    """

    def weights(self, geometry: Geometry) -> Array:
        n, products = geometry.n, geometry.gram_about(geometry.origin)
        norms = np.sqrt(products.diagonal())
        root, norms = norms[geometry.root], norms[:n]
        lengths = norms * root
        cosines = np.divide(
            products[:n, geometry.root], lengths, out=np.zeros(n), where=lengths > 0
        ).clip(0, 1)
        if not cosines.any():
            return geometry.at(geometry.origin)
        shares = np.divide(root, norms, out=np.zeros(n), where=norms > 0)
        weights = np.zeros(geometry.points)
        weights[:n] = cosines / cosines.sum() * shares
        weights[geometry.origin] = 1 - weights.sum()
        return weights


@dataclass(frozen=True, repr=False)
class RootOnly(RootRule):
    """The root gradient itself, :math:`g_0`: what the workers send does not count.

    The baseline of every rule with root data, because a training with it is a training on the root
    data alone: if that is good enough, the workers are not needed.

    >>> RootOnly()(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), root=torch.tensor([0.5, 1.5]))
    tensor([0.5000, 1.5000])
    """

    promise: ClassVar[str] = "the root gradient itself, whatever workers send"
    needs_origin = False

    def weights(self, geometry: Geometry) -> Array:
        return geometry.at(geometry.root)
