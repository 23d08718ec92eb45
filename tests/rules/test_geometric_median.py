"""The ways to the geometric median: Newton's steps alone, and the search that takes care.

Steps are found by elimination or, of many rows, by conjugate gradients.
"""

from __future__ import annotations

import platform
from collections.abc import Callable

import inputs
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium._kernels import compiler as machine
from byzantium._kernels import conjugate_gradients
from byzantium._kernels.compiler import Processor
from byzantium.rules.geometric_median import SumOfDistances
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix

Array = NDArray[np.float64]

SIZES = [3, 4, 7, 8, 9, 13, 16, 25, 40]


def far_away(n: int, scale: float) -> Tensor:
    X = inputs.gaussian(n, 30, seed=n)
    X[: n // 4] *= scale
    return X


def copies(n: int) -> Tensor:
    X = inputs.gaussian(n, 30, seed=n)
    X[: n // 4 + 1] = X[-1]
    return X


ORDINARY: dict[str, Callable[[int], Tensor]] = {
    "many dimensions": lambda n: inputs.gaussian(n, 300, seed=n),
    "a plane": lambda n: inputs.gaussian(n, 2, seed=n),
    "a common part": lambda n: inputs.gaussian(n, 30, seed=n) + 1e4,
    "far rows": lambda n: far_away(n, 1e3),
    "very far rows": lambda n: far_away(n, 1e12),
    "copies of a row": copies,
    "all scales": lambda n: inputs.gaussian(n, 30, seed=n) * torch.logspace(-3, 3, n)[:, None],
}


@pytest.fixture(params=["elimination", "conjugate gradients"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "conjugate gradients":
        monkeypatch.setattr(conjugate_gradients, "MANY", 1)


def sum_of_distances(X: Tensor, smoothing: float = 0.0) -> SumOfDistances:
    return SumOfDistances(Geometry.of(SourcePoints(Matrix(X))), smoothing)


def gradient(X: Tensor, weights: Array, smoothing: float) -> Array:
    away = weights @ X.numpy() - X.numpy()
    lengths = np.linalg.norm(away, axis=1).clip(min=smoothing)
    return (away / lengths[:, None]).sum(axis=0)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("smoothing", [0.0, 1.0])
@pytest.mark.parametrize("kind", ORDINARY)
def test_both_ways_lead_to_where_the_gradient_vanishes(kind: str, smoothing: float, n: int) -> None:
    X = ORDINARY[kind](n)
    objective = sum_of_distances(X, smoothing)
    found, searched = objective._newton(), objective._search()
    if found is not None:
        assert np.linalg.norm(gradient(X, found, smoothing)) < 1e-8
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1, abs=1e-14)
        scale = np.median(np.linalg.norm(X - X.mean(dim=0), axis=1))
        assert np.linalg.norm((found - searched) @ X.numpy()) < 1e-8 * scale
    elif not smoothing:
        assert searched.max() == 1, "only a row itself is no ordinary case"


@pytest.mark.usefixtures("solver")
def test_ordinary_sums_need_no_search() -> None:
    for n in SIZES:
        for kind in ("many dimensions", "a common part", "far rows", "very far rows"):
            assert sum_of_distances(ORDINARY[kind](n))._newton() is not None, (kind, n)


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("n", [2, 3, 20, 30, 50, 51])
def test_smoothed_sums_are_least_where_their_gradient_vanishes(n: int, d: int) -> None:
    """Near its minimiser the square of the gradient comes out negative now and then."""
    for seed in range(5):
        X = inputs.gaussian(n, d, seed=seed)
        objective = sum_of_distances(X, 1.0)
        for weights in (objective.minimize(), objective._search()):
            assert np.linalg.norm(gradient(X, weights, 1.0)) < 1e-9 * n


EXTRAORDINARY = {
    "one row": torch.ones(1, 3, dtype=torch.float64),
    "two rows": inputs.gaussian(2, 5),
    "equal rows": inputs.gaussian(1, 5).repeat(9, 1),
    "a line": inputs.gaussian(9, 1),
    "a line, an even number": inputs.gaussian(10, 1) * inputs.gaussian(1, 5, seed=1),
    "a row that is the minimiser": torch.cat([inputs.gaussian(12, 4), torch.zeros(9, 4)]),
    "a cross, whose centre it is": torch.tensor([[0.0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]]),
}


@pytest.mark.usefixtures("solver")
@pytest.mark.parametrize("kind", EXTRAORDINARY)
def test_newtons_steps_are_not_trusted_at_corners_and_on_lines(kind: str) -> None:
    X = EXTRAORDINARY[kind].double()
    objective = sum_of_distances(X)
    assert objective._newton() is None
    weights = objective.minimize()
    assert weights.sum() == pytest.approx(1)
    lengths = torch.cdist(torch.from_numpy(weights)[None] @ X, X).sum()
    assert lengths <= torch.cdist(X, X).sum(dim=1).min() * (1 + 1e-12)


@pytest.mark.parametrize("name", ["haswell", "x86-64"])
def test_other_processors_take_the_same_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() not in ("x86_64", "AMD64") or machine.HOST.vector < 64:
        pytest.skip("it takes a processor that can do what these do, and more")
    matrices = [ORDINARY[kind](13) for kind in ORDINARY]
    objectives = [sum_of_distances(X) for X in matrices]
    expected = [objective._newton() for objective in objectives]
    monkeypatch.setattr(machine, "HOST", Processor(name, "", 32))
    for objective, weights in zip(objectives, expected, strict=True):
        found = objective._newton()
        assert (found is None) == (weights is None)
        if found is not None and weights is not None:
            assert np.array_equal(found, weights)


@pytest.mark.usefixtures("solver")
def test_a_step_beyond_all_numbers_has_not_arrived() -> None:
    """There, no row pulls any more: the gradient is zero, but there are no weights."""
    X = torch.zeros(6, 3, dtype=torch.float64)
    small = [2.511, 1.892e-6, -2.346e27, -7.353e-12, 6.374e-7, -3.276e-7]
    X[:, 0] = 1e-18 * torch.tensor(small, dtype=X.dtype)
    X[2, 1], X[4, 2] = 2.0**499, 2.0**499
    for exponent in range(-40, 1):
        weights = sum_of_distances(X * 2.0**exponent, 0.0).minimize()
        assert abs(weights.sum() - 1) < 1e-12
        assert (weights[[2, 4]] < 1e-100).all()
