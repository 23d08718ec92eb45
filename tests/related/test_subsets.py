"""Rules that average some of the vectors: what their papers say, and where it ends."""

from __future__ import annotations

import pytest
import torch

from byzantium import related


def honest(n: int = 21, d: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("f", [1, 2, 5])
def test_divide_and_conquer_removes_one_far_cluster_exactly(f: int) -> None:
    X = honest()
    far = 50 + honest(f)
    rule = related.DivideAndConquer(f=f)
    torch.testing.assert_close(rule(torch.cat([X, far])), X.mean(dim=0), rtol=0, atol=1e-12)


def test_divide_and_conquer_misses_an_attacker_behind_a_farther_one() -> None:
    """The error grows without limit, so `delta_max` is 0."""
    X, errors = honest(), []
    for scale in (1e4, 1e8):
        pair = torch.zeros(2, 6, dtype=torch.float64)
        pair[0, 0], pair[1, 1] = scale, scale**0.5
        out = related.DivideAndConquer(f=2)(torch.cat([X, pair]))
        errors.append(float((out - X.mean(dim=0)).norm()))
    assert errors[1] > 10 * errors[0] > 10
