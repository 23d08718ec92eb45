"""Hundreds of random matrices, sizes and parameters against the slow references."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch

import byzantium as bz


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400))
def test_every_rule_on_a_random_case(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    n, d = pick(3, 17), pick(1, 9)
    X = 3 * torch.randn(n, d, dtype=torch.float64, generator=generator) + 1
    if seed % 3 == 0:
        X[1] = X[0]
    if seed % 5 == 0:
        X[-1] *= 1e6
    A, f = X.numpy(), pick(0, (n - 1) // 2)
    zero = np.zeros(d)
    cases: list[tuple[bz.Aggregator, reference.Result]] = [
        (bz.Mean(), reference.mean(A)),
        (bz.Median(), reference.median(A)),
        (bz.TrimmedMean(f), reference.trimmed_mean(A, f)),
        (bz.MeaMed(f), reference.meamed(A, f)),
        (bz.GeometricMedian(), reference.geometric_median(A)),
        (
            bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
            reference.weiszfeld(A, 8, 0.1, zero),
        ),
        (bz.CenteredClipping(2.0, 3), reference.centered_clipping(A, 2.0, 3, zero)),
        (bz.AgnosticClipping(f), reference.agnostic_clipping(A, f)),
        (bz.SpectralFilter(f), reference.spectral_filter(A, f)),
    ]
    if n <= 13:
        cases.append((bz.MinimumDiameter(f), reference.minimum_diameter(A, f)))
    if n >= 2 * f + 3:
        cases.append((bz.Krum(f), reference.krum(A, f)))
        cases.append((bz.Krum(f, m=2, power=4), reference.krum(A, f, 2, 4)))
    if n >= 4 * f + 3:
        cases.append((bz.Bulyan(f), reference.bulyan(A, f)))
    for rule, (expected, margin) in cases:
        if margin < 1e-9:
            continue
        error = np.abs(rule(X).numpy() - expected).max()
        assert error <= 1e-11 * max(1, np.abs(expected).max(), float(X.norm(dim=1).median())), rule
