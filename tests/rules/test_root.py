"""Rules that use a root gradient: their definitions, laws, bounds and errors."""

from __future__ import annotations

import math

import members
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import byzantium as bz

ROWS = ["honest", "opposite", "huge", "copies", "zeros", "root"]
seeds = st.integers(0, 2**32 - 1)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def scene(
    seed: int, n: int, d: int, bad: int, kind: str, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Heterogeneous rows, of which the last ones attack, and a root gradient."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=d)
    X = mean + rng.lognormal(0, 0.7, size=(n, 1)) * rng.normal(size=(n, d))
    h = n - bad
    root = X[:h].mean(axis=0) + 0.3 * rng.normal(size=d)
    rows = {
        "honest": X[h:],
        "opposite": -10 * X[:h].mean(axis=0),
        "huge": 1e6 * X[h:],
        "copies": X[0],
        "zeros": np.zeros(d),
        "root": root,
    }
    X[h:] = rows[kind]
    return torch.from_numpy(X).to(dtype), torch.from_numpy(root).to(dtype)


# -- the definitions ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_root_rules_agree_with_the_reference(
    member: members.RootRule, kind: str, dtype: torch.dtype
) -> None:
    X, root = scene(3, members.N, 40, 2, kind, dtype)
    expected = member.reference(X.double().numpy(), root.double().numpy())
    result = member.rule(X, root=root).double().numpy()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-7
    assert np.abs(result - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("mix", members.MIXINGS, ids=members.name)
@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
def test_behind_mixings_they_agree_with_the_reference(
    member: members.RootRule, mix: members.Mix
) -> None:
    X, root = scene(5, members.N, 40, 2, "opposite")
    if mix.mixing.rows(members.N) <= 15 and member.rule.bad == 15:
        pytest.skip("fewer rows than f")
    mixed = mix.reference(X.numpy(), generator())
    expected = member.reference(mixed, root.numpy())
    result = (mix.mixing >> member.rule)(X, generator(), root=root).numpy()
    assert np.abs(result - expected).max() <= 1e-7 * np.abs(expected).max()


def quadratic_gap(form: np.ndarray, weights: np.ndarray, cap: float) -> float:
    """By how much, at most, the value of w^T Q w is above its smallest (Frank and Wolfe)."""
    slopes = form @ weights
    best, left = np.zeros(len(form)), 1.0
    for i in slopes.argsort():
        best[i] = min(cap, left)
        left -= best[i]
    return float(2 * slopes @ (weights - best))


@given(seed=seeds, n=st.integers(2, 40), data=st.data())
def test_the_weights_solve_the_quadratic_program(seed: int, n: int, data: st.DataObject) -> None:
    f = data.draw(st.integers(0, n - 1))
    bad = data.draw(st.integers(0, f))
    kind = data.draw(st.sampled_from(ROWS))
    X, root = scene(seed, n, data.draw(st.integers(1, 50)), bad, kind)
    weights = bz.RootMatching(f=f).explain(X, root=root).weights.numpy()
    assert weights.min() >= 0
    assert weights.max() <= 1 / (n - f) + 1e-15
    assert math.isclose(weights.sum(), 1, abs_tol=1e-9)
    if kind == "huge":
        return  # their slopes are large numbers, whose rounding this gap would count
    Y, norms = (X - root).numpy(), (X**2).sum(dim=1).numpy()
    s2 = float(np.median(norms)) if 2 * f < n else float(root @ root)
    form = Y @ Y.T + 0.1 * s2 * np.eye(n)
    assert quadratic_gap(form, weights, 1 / (n - f)) <= 1e-9 * (weights @ form @ weights)


@given(seed=seeds, n=st.integers(2, 40), length=st.floats(1, 9e3), data=st.data())
def test_rows_of_any_length_cost_no_digits(
    seed: int, n: int, length: float, data: st.DataObject
) -> None:
    """No exchange of weight between two rows would reduce the value by a billionth of it."""
    f = data.draw(st.integers(0, n - 1))
    bad = data.draw(st.integers(0, f))
    X, root = scene(seed, n, data.draw(st.integers(1, 50)), bad, "honest")
    X[n - bad :] *= length * root.norm() / X[n - bad :].norm(dim=1, keepdim=True)
    weights = bz.RootMatching(f=f).explain(X, root=root).weights.numpy()
    Y, norms = (X - root).numpy(), (X**2).sum(dim=1).numpy()
    s2 = float(np.median(norms)) if 2 * f < n else float(root @ root)
    form = Y @ Y.T + 0.1 * s2 * np.eye(n)
    slopes, value = form @ weights, weights @ form @ weights
    for give in np.flatnonzero(weights > 0):
        for take in np.flatnonzero((weights < 1 / (n - f)) & (np.arange(n) != give)):
            gain = max(0.0, slopes[give] - slopes[take])
            curvature = form[give, give] + form[take, take] - 2 * form[give, take]
            moved = min(gain / curvature, weights[give], 1 / (n - f) - weights[take])
            assert 2 * moved * gain - moved**2 * curvature <= 1e-9 * value


def test_it_is_exact_for_a_thousand_rows() -> None:
    X, root = scene(1, 1000, 1500, 300, "honest")
    X[700:] *= -3
    weights = bz.RootMatching(f=300).explain(X, root=root).weights.numpy()
    Y = (X - root).numpy()
    form = Y @ Y.T + 0.1 * np.median((X**2).sum(dim=1)) * np.eye(1000)
    assert quadratic_gap(form, weights, 1 / 700) <= 1e-9 * (weights @ form @ weights)


# -- the bound ---------------------------------------------------------------------------------


@given(seed=seeds, n=st.integers(2, 30), data=st.data())
def test_the_theorem_is_never_exceeded(seed: int, n: int, data: st.DataObject) -> None:
    """|out - mu|^2 <= |g0 - mu|^2 - |g0 - out|^2 + ridge s^2 (1/(n-f) - 1/n), for every f < n."""
    f = data.draw(st.integers(0, n - 1))
    kind, ridge = data.draw(st.sampled_from(ROWS)), data.draw(st.sampled_from([0.01, 0.1, 10.0]))
    X, root = scene(seed, n, data.draw(st.integers(1, 20)), f, kind)
    root = root + data.draw(st.sampled_from([0.0, 3.0, -30.0]))
    out = bz.RootMatching(f=f, ridge=ridge)(X, root=root)
    mu, h = X[: n - f].mean(dim=0), n - f
    s2 = float(np.median((X**2).sum(dim=1))) if 2 * f < n else float(root @ root)
    left = float(((out - mu) ** 2).sum() + ((root - out) ** 2).sum())
    right = float(((root - mu) ** 2).sum()) + ridge * s2 * (1 / h - 1 / n)
    assert left <= right * (1 + 1e-7)


@pytest.mark.parametrize("f", [1, 3, 5, 11])
def test_two_worlds_that_nobody_can_tell_apart(f: int) -> None:
    """No rule is nearer than min(e, sigma sqrt(f/(n-2f))) to both honest means."""
    n, d, a = 25, 4, 0.7
    rng = np.random.default_rng(f)
    root, u = rng.normal(size=(2, d))
    u *= a / np.linalg.norm(u)
    X = np.tile(root, (n, 1))
    X[:f] += u * (n - f) / f
    X[f : 2 * f] -= u * (n - f) / f
    worlds = [np.delete(X, slice(0, f), axis=0), np.delete(X, slice(f, 2 * f), axis=0)]
    for world, side in zip(worlds, (-1, 1), strict=True):
        assert np.allclose(world.mean(axis=0), root + side * u)
        spread = float(((world - world.mean(axis=0)) ** 2).sum(axis=1).mean())
        assert math.isclose(math.sqrt(spread * f / (n - 2 * f)), a, rel_tol=1e-9)
    for rule in (bz.RootMatching(f=f), bz.FLTrust(), bz.TrimmedMean(f=f), bz.Mean()):
        out = rule(torch.from_numpy(X), root=torch.from_numpy(root)).numpy()
        errors = [float(np.linalg.norm(out - world.mean(axis=0))) for world in worlds]
        assert max(errors) >= a * (1 - 1e-9)


# -- laws --------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
@given(seed=seeds)
def test_order_rotation_and_scale(member: members.RootRule, seed: int) -> None:
    X, root = scene(seed, members.N, 6, 2, "opposite")
    out = member.rule(X, root=root)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(members.N))
    assert torch.allclose(member.rule(X[order], root=root), out, atol=1e-7)
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator()))[0]
    assert torch.allclose(
        member.rule(X @ rotation, root=root @ rotation), out @ rotation, atol=1e-7
    )
    assert torch.allclose(member.rule(70 * X, root=70 * root), 70 * out, atol=1e-5)


@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
@pytest.mark.parametrize("kind", ROWS)
def test_weights_and_remainder_explain_the_result(member: members.RootRule, kind: str) -> None:
    X, root = scene(9, members.N, 30, 2, kind)
    report = member.rule.explain(X, root=root)
    assert math.isclose(float(report.weights.sum()) + report.remainder, 1, abs_tol=1e-9)
    remainder = root if isinstance(member.rule, bz.RootOnly) else torch.zeros_like(root)
    expected = report.weights @ X + report.remainder * remainder
    assert torch.allclose(expected, report.aggregate, atol=1e-9)


def test_known_answers_of_matching() -> None:
    X, root = scene(0, 12, 30, 0, "honest")
    mean = X.mean(dim=0)
    assert torch.allclose(bz.RootMatching(f=0)(X, root=root), mean)
    assert torch.allclose(bz.RootMatching(f=4)(X, root=mean), mean)
    assert torch.allclose(bz.RootMatching(f=4, ridge=1e9)(X, root=root), mean, atol=1e-6)
    assert torch.allclose(bz.RootMatching(f=4)(X[:1].expand(12, -1), root=root), X[0])
    X[-1] = -1000 * root
    assert bz.RootMatching(f=1).explain(X, root=root).weights[-1] < 1e-3
    zeros = torch.zeros(5, 3)
    assert torch.equal(bz.RootMatching(f=1)(zeros, root=zeros[0]), zeros[0])


def test_known_answers_of_fltrust() -> None:
    X, root = scene(0, 12, 30, 0, "honest")
    out = bz.FLTrust()(X, root=root)
    assert out.norm() <= root.norm() * (1 + 1e-12)
    assert torch.allclose(bz.FLTrust()(X * torch.arange(1.0, 13.0)[:, None], root=root), out)
    assert torch.allclose(bz.FLTrust()(root.expand(12, -1), root=root), root)
    assert torch.equal(bz.FLTrust()(-root.expand(12, -1), root=root), torch.zeros_like(root))
    assert torch.equal(bz.FLTrust()(X, root=torch.zeros(30)), torch.zeros_like(root))


def test_a_majority_far_away_costs_no_digits() -> None:
    """The reference of inner products is the row nearest to the root, whatever most rows are."""
    X, root = scene(4, 25, 200, 15, "huge")
    X[10:] = 1e9 * torch.randn(15, 200, dtype=torch.float64, generator=generator())
    out = bz.RootMatching(f=15)(X, root=root)
    honest = bz.RootMatching(f=0)(X[:10], root=root)
    assert torch.allclose(out, honest, atol=1e-7)


def test_the_guard_raises_f_against_crude_attackers() -> None:
    X, root = scene(2, 25, 50, 10, "opposite")
    mean = X[:15].mean(dim=0)
    open_rule, guarded = bz.RootMatching(f=5), bz.RootMatching(f=5, guard=True)
    assert (open_rule(X, root=root) - mean).norm() > mean.norm()
    report = guarded.explain(X, root=root)
    assert (report.aggregate - mean).norm() < 0.5 * mean.norm()
    assert "f is 10" in report.notes[0]
    X, root = scene(2, 25, 50, 5, "opposite")
    assert torch.equal(open_rule(X, root=root), guarded(X, root=root))


# -- forms and errors --------------------------------------------------------------------------


@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
def test_the_root_has_any_form_that_rows_have(member: members.RootRule) -> None:
    X, root = scene(6, members.N, 10, 2, "opposite")
    expected = member.rule(X, root=root)
    named = [{"a": x[:4], "b": x[4:].reshape(2, 3)} for x in X]
    result = member.rule(named, root={"b": root[4:].reshape(2, 3), "a": root[:4]})
    assert torch.equal(torch.cat([result["a"], result["b"].flatten()]), expected)
    arrays = member.rule(X.numpy(), root=root.numpy())
    assert np.array_equal(arrays, expected.numpy())
    assert torch.equal(member.rule(X, root=root.tolist()), expected)
    base = torch.full((10,), 3.0, dtype=torch.float64)
    moved = member.rule(X + base, root=root + base, base=base)
    assert torch.allclose(moved - base, expected, atol=1e-9)


@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
def test_unusable_rows_are_rejected_and_a_bad_root_is_an_error(member: members.RootRule) -> None:
    X, root = scene(6, members.N, 10, 1, "honest")
    X[-1] = math.nan
    report = member.rule.explain(X, root=root)
    assert report.rejected == (members.N - 1,)
    assert report.aggregate.isfinite().all()
    with pytest.raises(bz.ByzantiumError, match="needs the root gradient, root="):
        member.rule(X)
    with pytest.raises(bz.ByzantiumError, match="the root needs as many numbers as each vector"):
        member.rule(X, root=root[1:])
    with pytest.raises(bz.ByzantiumError, match="the root holds numbers that are not finite"):
        member.rule(X, root=root * math.inf)
    with pytest.raises(bz.ByzantiumError, match="the root lacks the entry 'a'"):
        member.rule([{"a": x} for x in X], root={"b": root})
    with pytest.raises(bz.ByzantiumError, match="needs the vectors themselves"):
        member.rule.weigh(np.eye(members.N))


def test_other_rules_ignore_the_root() -> None:
    X, root = scene(6, 11, 10, 1, "opposite")
    assert torch.equal(bz.Median()(X, root=root), bz.Median()(X))


def test_sizes() -> None:
    X, root = scene(6, 5, 3, 1, "honest")
    assert bz.RootMatching(f=4)(X, root=root).shape == (3,)
    with pytest.raises(bz.ByzantiumError, match=r"needs at least f \+ 1 = 6 vectors, got 5"):
        bz.RootMatching(f=5)(X, root=root)
    with pytest.raises(bz.ByzantiumError, match="ridge"):
        bz.RootMatching(f=1, ridge=0)
