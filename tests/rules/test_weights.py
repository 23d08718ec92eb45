"""Weights of the operator: a row with the weight w counts as w equal rows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import inputs
import members
import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import Array, Result
from torch import Tensor

import byzantium as bz
from byzantium.rules import truncated_weights

N, F = 11, 2
# Sites of different sizes: the two largest hold 11 of 28.
SIZES = [2, 1, 3, 1, 5, 2, 1, 6, 1, 2, 4]
HELD = 11
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}

Make = Callable[[int], bz.Aggregator]
Slow = Callable[[Array, int], Result]


def from_medoid(X: Array, f: int) -> Result:
    """The margin is that of the medoid."""
    rows = np.unique(X.round(12), axis=0)
    sums = sorted(reference.sum_of_distances(X, row) for row in rows)
    result, _ = reference.weiszfeld(X, 5, 0.1, members.medoid(X))
    return result, reference.gap(*sums[:2]) if len(sums) > 1 else np.inf


#: For each rule: how it is built for f, and the slow reference for f.
RULES: dict[str, tuple[Make, Slow]] = {
    "Mean": (lambda f: bz.Mean(), lambda X, f: reference.mean(X)),
    "Median": (lambda f: bz.Median(), lambda X, f: reference.median(X)),
    "TrimmedMean": (lambda f: bz.TrimmedMean(f=f), reference.trimmed_mean),
    "MeaMed": (lambda f: bz.MeaMed(f=f), reference.meamed),
    "GeometricMedian": (
        lambda f: bz.GeometricMedian(),
        lambda X, f: reference.geometric_median(X),
    ),
    "smoothed": (
        lambda f: bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
        lambda X, f: reference.weiszfeld(X, 8, 0.1, np.zeros(X.shape[1])),
    ),
    "from the medoid": (
        lambda f: bz.GeometricMedian(steps=5, smoothing=0.1),
        from_medoid,
    ),
    "CenteredClipping": (
        lambda f: bz.CenteredClipping(radius=2.0, steps=3),
        lambda X, f: reference.centered_clipping(X, 2.0, 3, np.zeros(X.shape[1])),
    ),
    "AgnosticClipping": (lambda f: bz.AgnosticClipping(f=f), reference.agnostic_clipping),
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def copies(X: Tensor, weights: list[int]) -> Tensor:
    """Each row as often as its weight says."""
    return X.repeat_interleave(torch.tensor(weights), dim=0)


def close(ours: Tensor, theirs: Tensor, X: Tensor, tolerance: float) -> None:
    scale = max(float(theirs.double().abs().max()), float(X.double().norm(dim=1).median()))
    assert (ours.double() - theirs.double()).abs().max() <= tolerance * scale


# -- the law -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", inputs.INPUTS)
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_weight_counts_as_so_many_equal_rows(name: str, kind: str, dtype: torch.dtype) -> None:
    """Against the slow reference, which knows no weights."""
    make, slow = RULES[name]
    X = inputs.INPUTS[kind](N).to(dtype)
    expected, margin = slow(copies(X, SIZES).double().numpy(), HELD)
    if margin < 10 * TOLERANCE[dtype]:
        pytest.skip("the best two alternatives are closer than the tolerance")
    close(make(F)(X, weights=SIZES), torch.from_numpy(expected), X, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", inputs.INPUTS)
@pytest.mark.parametrize("name", RULES)
def test_it_does_so_after_nearest_neighbor_mixing(name: str, kind: str) -> None:
    make, slow = RULES[name]
    X = inputs.INPUTS[kind](N)
    mixing, mixing_of_copies = bz.NearestNeighborMixing(f=F), bz.NearestNeighborMixing(f=HELD)
    _, margin = reference.nearest_neighbor_mixing(copies(X, SIZES).numpy(), HELD)
    if margin < 1e-9:
        pytest.skip("two neighbors are equally near")
    mixed = mixing_of_copies(copies(X, SIZES))
    close(mixing(X, weights=SIZES), mixed[np.cumsum([0, *SIZES[:-1]])], X, 1e-10)
    if slow(mixed.numpy(), HELD)[1] < 1e-9:
        pytest.skip("the best two alternatives are closer than rounding")
    ours = (mixing >> make(F))(X, weights=SIZES)
    theirs = (mixing_of_copies >> make(HELD))(copies(X, SIZES))
    close(ours, theirs, X, 1e-7)


@pytest.mark.parametrize(("f", "held"), [(2, HELD), (8, sum(sorted(SIZES)[-8:]))])
def test_it_does_so_with_a_root_gradient(f: int, held: int) -> None:
    """The ridge is in units of 1/n: scaling all weights must change nothing."""
    X = inputs.gaussian(N) + 1
    root = X.mean(dim=0) + 0.3 * inputs.gaussian(1, seed=5)[0]
    ours = bz.RootMatching(f=f, ridge=0.1)(X, weights=SIZES, root=root)
    for times in (1, 3):
        sizes = [times * size for size in SIZES]
        ridge = 0.1 * sum(sizes) / N
        rule = bz.RootMatching(f=times * held, ridge=ridge)
        close(ours, rule(copies(X, sizes), root=root), X, 1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.lists(st.integers(1, 9), min_size=3, max_size=12),
    st.integers(0, 3),
    st.integers(0, 2**20),
    st.integers(1, 4),
)
def test_any_whole_weights(name: str, sizes: list[int], f: int, seed: int, values: int) -> None:
    """Few different values, so that many of them are equal."""
    held, total = sum(sorted(sizes)[::-1][:f]), sum(sizes)
    make, _ = RULES[name]
    if 2 * held >= total or len(sizes) < 2 * f + 1:
        return
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.integers(-values, values + 1, size=(len(sizes), 5)) / 4)
    ours, theirs = make(f)(X, weights=sizes), make(held)(copies(X, sizes))
    if name in ("GeometricMedian", "AgnosticClipping"):  # whose minimizer may not be unique
        assert objective(ours, X, sizes) <= objective(theirs, X, sizes) + 1e-6 or name[0] == "A"
    else:
        close(ours, theirs, X, 1e-9)


def objective(z: Tensor, X: Tensor, sizes: list[int]) -> float:
    return float(((X - z).norm(dim=1) * torch.tensor(sizes)).sum())


def test_a_bucket_is_averaged_by_weight_and_carries_the_sum() -> None:
    X = inputs.heterogeneous(N)
    order = torch.randperm(N, generator=generator()).tolist()
    groups = [order[k : k + 2] for k in range(0, N, 2)]
    sizes = [sum(SIZES[i] for i in group) for group in groups]
    own = torch.tensor(SIZES, dtype=torch.float64)
    rows = torch.stack([own[group] @ X[group] / own[group].sum() for group in groups])
    mixed = bz.Bucketing(s=2)(X, generator(), weights=SIZES)
    close(mixed, rows, X, 1e-12)
    held = max(sizes)
    for make, slow in RULES.values():
        expected, _ = slow(copies(rows, sizes).numpy(), held)
        result = (bz.Bucketing(s=2) >> make(1))(X, generator(), weights=SIZES)
        close(result, torch.from_numpy(expected), X, 1e-9)


# -- reports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_the_weights_of_a_report_are_those_of_the_result(name: str) -> None:
    make, _ = RULES[name]
    X = inputs.gaussian(N, 400)
    report = make(F).explain(X, weights=SIZES)
    assert torch.equal(report.aggregate, make(F)(X, weights=SIZES))
    assert float(report.weights.sum()) + report.remainder == pytest.approx(1, abs=1e-9)
    repeated = make(HELD).explain(copies(X, SIZES)).weights
    starts = np.cumsum([0, *SIZES[:-1]])
    assert np.allclose(report.weights, np.add.reduceat(repeated.numpy(), starts), atol=1e-6)
    if make(F).knows_weights == "always":
        close(report.weights.to(X) @ X, report.aggregate, X, 1e-9)


def test_equal_values_share_in_proportion_to_weights() -> None:
    X = torch.tensor([[0.0], [1.0], [1.0], [2.0]])
    report = bz.Median().explain(X, weights=[2, 1, 3, 2])
    assert report.weights.tolist() == pytest.approx([0, 0.25, 0.75, 0])


# -- what changes nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [*RULES, "RootMatching"])
@pytest.mark.parametrize("mixings", ["", "Bucketing(s=2) >> ", "NearestNeighborMixing(f=1) >> "])
def test_equal_weights_give_the_unweighted_bits(name: str, mixings: str) -> None:
    X = inputs.gaussian(N, 300).float()
    make = (lambda f: bz.RootMatching(f=f)) if name == "RootMatching" else RULES[name][0]
    rule = bz.rules.parse_rule(f"{mixings}{make(1)!r}")
    expected = rule.explain(X, generator(), root=X[0])
    for weights in ([3] * N, np.full(N, 0.1), torch.full((N,), 1e-300, dtype=torch.float64)):
        rule.reset()
        report = rule.explain(X, generator(), root=X[0], weights=weights)
        assert torch.equal(report.aggregate, expected.aggregate)
        assert torch.equal(report.weights, expected.weights)
        rule.reset()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("unit", [1e-12, 0.1, 1 / 3, 1e9, 1e300, 1e-305])
def test_the_scale_of_weights_does_not_matter(name: str, unit: float) -> None:
    make, _ = RULES[name]
    X = inputs.gaussian(N)
    scaled = [unit * size for size in SIZES]
    close(make(F)(X, weights=scaled), make(F)(X, weights=SIZES), X, 1e-12)


def test_ties_are_found_at_any_scale() -> None:
    """0.1 + 0.2 is not 0.3 in float64."""
    X = torch.tensor([[0.0], [1.0], [5.0]])
    assert bz.Median()(X, weights=[0.1, 0.2, 0.3]) == torch.tensor([3.0])
    assert bz.Median()(X, weights=[1, 2, 3]) == torch.tensor([3.0])


@pytest.mark.parametrize("name", RULES)
def test_real_weights_are_the_limit_of_whole_ones(name: str) -> None:
    """Except for the median, which jumps, results follow the weights."""
    make, _ = RULES[name]
    X = inputs.gaussian(N)
    before = make(F)(X, weights=SIZES)
    for step in (1e-6, -1e-6):
        moved = np.array(SIZES, dtype=float)
        moved[3] += step
        moved[7] -= 3 * step
        close(make(F)(X, weights=moved), before, X, 1e-4)


def test_a_rule_by_coordinate_moves_from_one_weight_to_the_next() -> None:
    """As much as its weights do, also where values enter and leave."""
    X = inputs.gaussian(N, 50)
    for rule in (bz.TrimmedMean(f=F), bz.MeaMed(f=F)):
        results = [
            rule(X, weights=[*SIZES[:-1], weight]) for weight in np.linspace(0.01, 6, 400).tolist()
        ]
        steps = [float((a - b).abs().max()) for a, b in pairwise(results)]
        if isinstance(rule, bz.TrimmedMean):
            assert max(steps) < 0.02 * float(X.abs().max())
        assert all(np.isfinite(steps))


# -- weights of zero ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["matrix", "array", "mappings", "lists"])
def test_a_row_without_weight_changes_nothing(form: str) -> None:
    X = inputs.gaussian(6)
    weights = [2.0, 0, 1, 3, 0, 1]
    some = [0, 2, 3, 5]
    forms: dict[str, Callable[[Tensor], object]] = {
        "matrix": lambda X: X,
        "array": lambda X: X.numpy(),
        "mappings": lambda X: [{"a": row[:3], "b": row[3:]} for row in X],
        "lists": lambda X: [[row[:3], row[3:]] for row in X],
    }
    whole, left = forms[form](X), forms[form](X[some])
    for rule in (bz.TrimmedMean(f=1), bz.GeometricMedian(), bz.Bucketing(s=2) >> bz.Median()):
        expected = rule.explain(left, generator(), weights=[2.0, 1, 3, 1])
        report = rule.explain(whole, generator(), weights=weights)
        assert same(report.aggregate, expected.aggregate)
        assert report.weights[some].tolist() == expected.weights.tolist()
        assert report.weights[[1, 4]].tolist() == [0, 0]
        assert torch.equal(report.mixing[:, some], expected.mixing)


def same(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return all(map(same, a, b))
    return np.array_equal(np.asarray(a), np.asarray(b))


def test_it_is_not_counted_in_n_and_cannot_be_rejected() -> None:
    X = inputs.gaussian(5)
    X[1] = torch.nan
    with pytest.raises(bz.ByzantiumError, match="needs at least 2f \\+ 1 = 5 vectors, got 4"):
        bz.TrimmedMean(f=2)(X, weights=[1, 0, 2, 1, 1])
    report = bz.TrimmedMean(f=1).explain(X, weights=[1, 0, 1, 1, 1])
    assert report.rejected == ()
    assert torch.equal(report.aggregate, bz.TrimmedMean(f=1)(X[[0, 2, 3, 4]]))


def test_a_row_without_weight_does_not_even_decide_the_form() -> None:
    rows = [{"a": torch.ones(2)}, {"b": torch.ones(3)}, {"b": torch.ones(3)}]
    assert bz.Mean()(rows, weights=[1, 0, 0])["a"].tolist() == [1, 1]


@pytest.mark.parametrize("name", [*RULES])
def test_one_worker_with_all_the_weight_is_the_result(name: str) -> None:
    X = inputs.gaussian(4)
    rule = RULES[name][0](0)
    alone = rule(X[2:3])
    rule.reset()
    assert torch.equal(rule(X, weights=[0, 0, 7, 0]), alone)


# -- rejected rows -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [[7], [3], [4, 7], [1, 3]])
def test_rejected_rows_take_their_weight_out_of_n_and_of_f(name: str, bad: list[int]) -> None:
    make, slow = RULES[name]
    X = inputs.gaussian(N)
    X[bad] = torch.nan
    good = [i for i in range(N) if i not in bad]
    sizes, gone = [SIZES[i] for i in good], sum(SIZES[i] for i in bad)
    report = make(F).explain(X, weights=SIZES)
    assert list(report.rejected) == bad
    assert all(report.weights[i] == 0 for i in bad)
    expected, _ = slow(copies(X[good], sizes).numpy(), HELD - gone)
    close(report.aggregate, torch.from_numpy(expected), X[good], 1e-9)


def test_rows_that_hold_half_of_the_weight_are_too_many() -> None:
    X = inputs.gaussian(5)
    X[0] = torch.nan
    with pytest.raises(bz.TooManyRejected, match="half of the weight") as caught:
        bz.Median()(X, weights=[5, 1, 1, 1, 1])
    assert list(caught.value.reasons) == [0]
    assert bz.Median()(X, weights=[3, 1, 1, 1, 1]).isfinite().all()


def test_reasons_name_the_rows_as_they_were_given() -> None:
    X = inputs.gaussian(5)
    X[3:] = torch.nan
    with pytest.raises(bz.TooManyRejected, match="workers 3, 4") as caught:
        bz.TrimmedMean(f=1)(X, weights=[1, 0, 2, 2, 1])
    assert list(caught.value.reasons) == [3, 4]


@pytest.mark.parametrize("size", [1e3, 1e12, 1e17])
def test_no_attacker_moves_a_rule_by_rounding(size: float) -> None:
    """The trimmed weight is exactly that of the attackers, up to rounding."""
    X = inputs.gaussian(N)
    weights = np.array(SIZES) / 10
    X[[4, 7]] = size
    for rule in (bz.TrimmedMean(f=F), bz.MeaMed(f=F), bz.Median(), bz.AgnosticClipping(f=F)):
        result = rule(X, weights=weights)
        assert result.abs().max() <= 3 * X[:4].abs().max(), rule


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        bz.Krum(f=1),
        bz.Bulyan(f=1),
        bz.MinimumDiameter(f=1),
        bz.SpectralFilter(f=1),
        bz.FLTrust(),
        bz.Resampling(s=2) >> bz.Median(),
        bz.AdaptiveClipping(f=1) >> bz.Median(),
    ],
    ids=repr,
)
def test_other_rules_refuse_and_name_those_that_take_weights(rule: bz.Aggregator) -> None:
    X = inputs.gaussian(N)
    with pytest.raises(bz.ByzantiumError, match="takes no weights; AgnosticClipping, Bucketing"):
        rule(X, weights=SIZES, root=X[0])


def test_every_stage_takes_weights_or_refuses() -> None:
    X = inputs.gaussian(members.N)
    weights = np.arange(1, members.N + 1) / 7
    for member in members.RULES:
        if member.rule.takes_weights:
            assert member.fresh()(X, weights=weights).isfinite().all()
        else:
            with pytest.raises(bz.ByzantiumError, match="takes no weights"):
                member.fresh()(X, weights=weights)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 2], "one number for each of 4 vectors, got the shape \\(2,\\)"),
        ([1, 2, 3, -1], "finite and at least 0, got -1 for vector 3"),
        ([1, float("nan"), 3, 1], "got nan for vector 1"),
        ([1, 2, float("inf"), 1], "got inf for vector 2"),
        ([0, 0, 0, 0], "must not all be zero"),
        (["a", 1, 2, 3], "must be a number for each vector"),
        ([True, True, False, True], "must be a number for each vector"),
        ("equal", "must be a number for each vector"),
        ([[1], [2], [3], [4]], "got the shape \\(4, 1\\)"),
    ],
)
def test_weights_are_checked(weights: object, message: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=message):
        bz.Mean()(inputs.gaussian(4), weights=weights)


def test_too_heavy_sites_are_an_error_that_says_the_number() -> None:
    X, weights = inputs.gaussian(9), [8, 4, 1, 1, 1, 1, 1, 1, 1]
    with pytest.raises(bz.ByzantiumError) as caught:
        bz.TrimmedMean(f=2)(X, weights=weights)
    assert str(caught.value) == (
        "the 2 largest of 9 sites hold 63.2 % of the weight; TrimmedMean tolerates less than 50 %: "
        "truncated_weights(weights, 2, 0.5) limits the largest"
    )
    rule = bz.TrimmedMean(f=2)
    assert rule(X, weights=truncated_weights(weights, 2, 0.5)).isfinite().all()
    assert bz.RootMatching(f=2)(X, weights=weights, root=X[0]).isfinite().all()


def test_exactly_half_is_too_much() -> None:
    X = inputs.gaussian(5)
    for unit in (1, 0.1, 1 / 3):
        with pytest.raises(bz.ByzantiumError, match="hold 50 % of the weight"):
            bz.TrimmedMean(f=2)(X, weights=[3 * unit, 2 * unit, 2 * unit, 2 * unit, unit])


def test_buckets_are_checked_for_the_permutation_that_is_worst() -> None:
    """Otherwise chance would decide whether a call is possible."""
    X, weights = inputs.gaussian(10), [5, 4, 3, 1, 1, 1, 1, 1, 1, 1]
    with pytest.raises(bz.ByzantiumError, match=r"the 2 largest of 5 sites hold .* left 5 of 10"):
        (bz.Bucketing(s=2) >> bz.TrimmedMean(f=2))(X, weights=weights)
    assert (bz.Bucketing(s=2) >> bz.TrimmedMean(f=1))(X, weights=weights).isfinite().all()


def test_auto_chooses_s_by_weight() -> None:
    X = inputs.gaussian(12)
    rule = bz.Bucketing(s="auto", f=1) >> bz.GeometricMedian()
    unweighted = rule.explain(X).mixing.shape[0]
    weighted = rule.explain(X, weights=[9, 9, 9, 9, 9, 9, 1, 1, 1, 1, 1, 1]).mixing.shape[0]
    assert unweighted < weighted  # four of the largest in one bucket would hold more than half


# -- truncation --------------------------------------------------------------------------------


def held_share(weights: list[Fraction], bound: Fraction, f: int) -> Fraction:
    cut = sorted((min(weight, bound) for weight in weights), reverse=True)
    return sum(cut[:f], Fraction(0)) / sum(cut)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=9),
    st.integers(1, 4),
    st.sampled_from([0.25, 1 / 3, 0.5, 0.75]),
)
def test_truncation_is_the_mildest_that_suffices(sizes: list[int], f: int, share: float) -> None:
    """Against bisection in exact numbers."""
    exact = [Fraction(size) for size in sizes]
    limit = Fraction(share)
    if Fraction(f, len(sizes)) >= limit:
        with pytest.raises(bz.ByzantiumError, match="needs f / n < share"):
            truncated_weights(sizes, f, share)
        return
    result = truncated_weights(sizes, f, share)
    if held_share(exact, max(exact), f) < limit - Fraction(1, 10**8):
        assert result.tolist() == sizes
        return
    low, high = Fraction(0), max(exact)
    for _ in range(80):
        middle = (low + high) / 2
        if middle and held_share(exact, middle, f) >= limit:
            high = middle
        else:
            low = middle
    bound = Fraction(float(result.max()))
    assert held_share([Fraction(float(w)) for w in result], bound, f) < limit
    assert np.array_equal(result, np.minimum(sizes, float(bound)))
    # Not much below the largest possible: the held share is nearly the limit.
    assert held_share(exact, bound, f) > min(limit, (limit + Fraction(f, len(sizes))) / 2) - (
        Fraction(1, 10**7)
    )
    assert float(bound) <= float(high) * (1 + 1e-9)
    rule = bz.TrimmedMean(f=f)
    if share <= 0.5 and len(sizes) > 2 * f:
        assert rule(inputs.gaussian(len(sizes)), weights=result).isfinite().all()


def test_truncation_leaves_small_weights_alone() -> None:
    weights = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    assert truncated_weights(weights, 1, 0.5).tolist() == weights.tolist()
    assert truncated_weights([0, 5, 1, 1, 1], 1, 0.5).tolist()[0] == 0
    with pytest.raises(bz.ByzantiumError, match="got 2 / 4"):  # the site of weight 0 is no site
        truncated_weights([0, 5, 1, 1, 1], 2, 0.5)
