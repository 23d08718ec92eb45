"""The paper's theorems on quadratics: what the example shows is so."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from paths import ROOT

import byzantium as bz


def _loaded() -> ModuleType:
    path = ROOT / "examples" / "theorems.py"
    spec = importlib.util.spec_from_file_location("theorems", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["theorems"] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


theorems = _loaded()
N = theorems.N
RULES = [*theorems.RULES, "NearestNeighborMixing() >> Median()", "MinimumDiameter()"]


@pytest.mark.parametrize("f", [1, 5])
@pytest.mark.parametrize("text", RULES)
def test_theorem_3_every_rule_errs_in_one_of_two_worlds(text: str, f: int) -> None:
    gradient, value = theorems.two_worlds(bz.parse_rule(text, f=f), f, zeta2=2.0)
    delta = f / N
    assert gradient >= delta * 2.0 / 4
    # The paper has mu (G / 2 mu)^2 = delta zeta^2 / (4 mu) here; of mu x^2 / 2 it is half of that.
    assert value >= delta * 2.0 / (8 * theorems.MU)


def test_theorem_3_who_stands_between_both_worlds_errs_by_exactly_that() -> None:
    """Half of what the paper prints, so its constant for f - min f cannot be right."""

    class Between(bz.MatrixRule):
        def aggregate(self, updates: torch.Tensor) -> torch.Tensor:
            return (updates.mean(dim=0) + updates.median(dim=0).values) / 2

    gradient, value = theorems.two_worlds(Between(), 5)
    assert gradient == pytest.approx(0.2 / 4, rel=1e-6)
    assert value == pytest.approx(0.2 / (8 * theorems.MU), rel=1e-6)


@pytest.mark.parametrize("text", ["TrimmedMean()", "GeometricMedian()", "Krum()"])
def test_theorem_2_the_plateau_grows_linearly_in_delta_zeta2(text: str) -> None:
    for f in (1, 3, 5, 8):
        plateaus = [theorems.plateau(bz.parse_rule(text, f=f), f, zeta2) for zeta2 in (1.0, 4.0)]
        # The bound that no rule gets below, f / (n - 2f) zeta^2: delta zeta^2 for few attackers.
        assert plateaus == pytest.approx([f / (N - 2 * f), 4 * f / (N - 2 * f)], rel=1e-6)


def test_theorem_2_momentum_removes_the_part_of_sigma2() -> None:
    rule = bz.TrimmedMean(f=5)
    without, half = (theorems.noisy(rule, 5, sigma2, 0.0) for sigma2 in (2.0, 1.0))
    assert without == pytest.approx(2 * half, rel=0.2)
    # The variance of momentum is (1 - beta) / (1 + beta) of that of a gradient.
    assert theorems.noisy(rule, 5, 2.0, 0.9) < 0.15 * without
    assert theorems.noisy(rule, 5, 0.0, 0.0) < 1e-20


def test_theorem_4_with_a_shared_optimum_the_gradient_goes_to_zero() -> None:
    rule = bz.TrimmedMean(f=5)
    shared = theorems.shared_optimum(rule, 5, spread=0.5)
    assert shared[-1] < 1e-12 * shared[0]
    apart = theorems.shared_optimum(rule, 5, spread=0.5, zeta2=1.0)
    assert apart[-1] > 1e-3


def test_theorem_4_heterogeneity_is_b2_times_the_gradient_there() -> None:
    signs = torch.arange(20)[:, None].expand(20, 4) % 2 * 2.0 - 1
    world = theorems.Quadratics((1 + 0.5 * signs).double(), torch.zeros(20, 4).double())
    for scale in (1.0, 0.1):
        x = scale * torch.arange(1.0, 5.0).double()
        b2 = world.heterogeneity(x) / float(world.gradient(x).square().sum())
        assert b2 == pytest.approx(0.25)
