"""Rules that average some of the vectors: what their papers say, and where it ends."""

from __future__ import annotations

import numpy as np
import pytest
import reference_related
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


def divisions() -> list[torch.Tensor]:
    """Vectors in two to four directions with noise, of which brute force can look at all parts."""
    found = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        centers = torch.randn(2 + seed % 3, 3, generator=generator, dtype=torch.float64)
        noise = torch.randn(12, 3, generator=generator, dtype=torch.float64)
        rows = torch.arange(12 if seed == 0 else 8 + seed % 2) % len(centers)
        found.append(centers[rows] + 0.4 * noise[: len(rows)])
    return found


@pytest.mark.parametrize("similarity", [-0.3, 0.0, 0.6])
@pytest.mark.parametrize("X", divisions(), ids=lambda X: f"n={len(X)}")
def test_the_largest_cluster_is_that_of_all_divisions(X: torch.Tensor, similarity: float) -> None:
    expected, _ = reference_related.largest_cluster(X.numpy(), similarity, brute=True)
    linked, _ = reference_related.largest_cluster(X.numpy(), similarity)
    result = related.LargestCluster(similarity=similarity)(X)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(linked, expected, atol=1e-12)


def test_colluding_sign_flippers_have_no_weight() -> None:
    X = honest() + 2
    report = related.LargestCluster().explain(torch.cat([X, -3 * X[:8]]))
    assert report.weights[:21].tolist() == pytest.approx([1 / 21] * 21)
    assert not report.weights[21:].any()


def test_in_the_largest_cluster_lengths_do_not_count() -> None:
    X = honest() + 3
    moved = related.LargestCluster()(torch.cat([X, 1e6 * X[:1]]))
    assert float(moved.norm()) > 1e4


def test_the_largest_cluster_does_not_move_with_the_vectors() -> None:
    """Directions are seen from the origin."""
    X = torch.tensor([[1.0], [1.0], [-1.0]])
    rule = related.LargestCluster()
    assert rule(X).item() == 1
    assert rule(X + 3).item() == pytest.approx(3 + 1 / 3)


def test_two_equal_parts_are_not_divided() -> None:
    X = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]])
    assert related.LargestCluster()(X).item() == 0
