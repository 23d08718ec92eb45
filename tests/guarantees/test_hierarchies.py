"""What hierarchies promise: bounds that are attained, that no search breaks, and chances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import byzantium as bz
from byzantium.guarantees import attack, breakdown, c_of, chance_of_more_bad_groups, guarantee
from byzantium.guarantees.search import Trial

Array = NDArray[np.float64]


def kappa_of(rule: bz.Aggregator, rows: Array, bad: list[int]) -> float:
    """|out - mu|^2 / sigma^2 on a line, where some rows are bad."""
    honest = np.delete(rows, bad)
    out = float(rule(torch.from_numpy(rows)[:, None])[0])
    return float((out - honest.mean()) ** 2 / honest.var())


@pytest.mark.parametrize(("m", "s", "f"), [(7, 3, 2), (5, 4, 1), (9, 2, 4), (7, 1, 3)])
def test_means_within_groups_and_a_trimmed_mean_attain_the_bound(m: int, s: int, f: int) -> None:
    rule, n = bz.Hierarchy(m, bz.Mean()) >> bz.TrimmedMean(f=f), m * s
    rows = np.zeros(n)
    rows[: 2 * f * s] = 1
    bad = [g * s for g in range(f)]
    rows[bad] = -s
    promised = guarantee(rule, n, f)
    assert promised.kappa == pytest.approx(f * (2 * s - 1) / (n - 2 * f * s))
    assert promised.propositions == (3, 16)
    assert kappa_of(rule, rows, bad) == pytest.approx(promised.kappa)


def test_medians_in_both_levels_attain_the_bound() -> None:
    rule = bz.Hierarchy(5, bz.GeometricMedian()) >> bz.GeometricMedian()
    rows, bad = np.ones(15), [0, 1, 3, 4, 6]
    rows[[*bad, 7]] = 0
    assert guarantee(rule, 15, 5).kappa == pytest.approx(9)
    assert kappa_of(rule, rows, bad) == pytest.approx(9)
    assert breakdown(rule, 15) == 6  # two in three groups


def test_a_group_of_all_and_groups_of_one_promise_what_one_rule_does() -> None:
    for rule in (bz.GeometricMedian(), bz.AgnosticClipping(f=3), bz.Krum(f=3)):
        alone = guarantee(rule, 25, 3).kappa
        single = guarantee(bz.Hierarchy(25, bz.Mean()) >> rule, 25, 3)
        assert single.kappa == pytest.approx(alone)
        whole = guarantee(bz.Hierarchy(1, rule) >> bz.Mean(), 25, 3)
        # With fewer than f bad vectors the bound is another one; `b` is any number up to f here.
        assert whole.kappa is not None
        assert alone is not None
        assert whole.kappa >= alone * (1 - 1e-12)
    median = bz.Hierarchy(1, bz.GeometricMedian()) >> bz.Mean()
    assert guarantee(median, 25, 3).kappa == pytest.approx(
        guarantee(bz.GeometricMedian(), 25, 3).kappa
    )


def test_random_groups_of_means_promise_what_buckets_do() -> None:
    for n, m, f in ((100, 10, 3), (25, 7, 2), (23, 8, 2)):
        groups = bz.Hierarchy(m, bz.Mean(), deal="random") >> bz.TrimmedMean(f=f)
        buckets = bz.Bucketing(s=-(-n // m), balanced=True) >> bz.TrimmedMean(f=f)
        assert buckets.stages[0].rows(n) == m
        assert guarantee(groups, n, f).kappa == pytest.approx(guarantee(buckets, n, f).kappa)


# -- searches --------------------------------------------------------------------------------------

Rule = Callable[[Array], Array]  # of the last axis


def trimmed(values: Array) -> Array:
    return np.sort(values, axis=-1)[..., 1:-1].mean(axis=-1)


# On a line, the geometric median of an odd number of values is their median.
LEVELS: list[tuple[bz.Aggregator, Rule, bz.Aggregator, Rule]] = [
    (bz.Mean(), lambda v: v.mean(axis=-1), bz.TrimmedMean(f=1), trimmed),
    (bz.Mean(), lambda v: v.mean(axis=-1), bz.Median(), lambda v: np.median(v, axis=-1)),
    (
        bz.GeometricMedian(),
        lambda v: np.median(v, axis=-1),
        bz.TrimmedMean(f=1),
        trimmed,
    ),
    (
        bz.GeometricMedian(),
        lambda v: np.median(v, axis=-1),
        bz.GeometricMedian(),
        lambda v: np.median(v, axis=-1),
    ),
]


@pytest.mark.parametrize(("inner", "own", "outer", "over"), LEVELS, ids=lambda one: "")
@pytest.mark.parametrize("f", [1, 2, 3])
def test_no_input_on_a_grid_breaks_the_bound(
    inner: bz.Aggregator, own: Rule, outer: bz.Aggregator, over: Rule, f: int
) -> None:
    """Honest vectors in {0, 1, 3}, bad ones on a grid, at all places of three groups."""
    rule, n = bz.Hierarchy(3, inner) >> outer, 9
    promise = guarantee(rule, n, f)
    if promise.kappa is None:
        assert f > (1 if isinstance(inner, bz.Mean) else 3)
        return
    honest = np.array(list(itertools.product((0.0, 1.0, 3.0), repeat=n - f)))
    honest = honest[(honest[:, 0] == 0) & (honest.var(axis=1) > 0)]  # up to a shift or a mirror
    honest = honest[:: (2, 1, 2)[f - 1]]
    sent = list(itertools.product((-50.0, 0.0, 3.0, 50.0), repeat=f))
    variance, mean = honest.var(axis=1), honest.mean(axis=1)
    worst: tuple[float, np.ndarray, list[int]] = (0.0, honest[0], [])
    for places in itertools.combinations(range(n), f):
        rows = np.empty((len(honest), n))
        rows[:, np.delete(np.arange(n), places)] = honest
        for bad in sent:
            rows[:, list(places)] = bad
            kappas = (over(own(rows.reshape(-1, 3, 3))) - mean) ** 2 / variance
            k = int(kappas.argmax())
            if kappas[k] > worst[0]:
                worst = float(kappas[k]), rows[k].copy(), list(places)
    assert worst[0] > 0
    assert worst[0] <= promise.kappa * (1 + 1e-9)
    assert kappa_of(rule, worst[1], worst[2]) == pytest.approx(worst[0])


def dealings(rows: tuple[int, ...]) -> Iterator[list[int]]:
    """All ways to deal rows to groups of three, whose order does not matter."""
    if not rows:
        yield []
    for others in itertools.combinations(rows[1:], 2):
        group = [rows[0], *others]
        for rest in dealings(tuple(row for row in rows if row not in group)):
            yield group + rest


@pytest.mark.parametrize(("inner", "own", "outer", "over"), LEVELS, ids=lambda one: "")
@pytest.mark.parametrize("f", [1, 2, 3])
def test_no_input_on_a_grid_breaks_the_bound_of_random_groups(
    inner: bz.Aggregator, own: Rule, outer: bz.Aggregator, over: Rule, f: int
) -> None:
    """The same grid, and the exact mean over all ways to deal nine vectors to three groups."""
    promise = guarantee(bz.Hierarchy(3, inner, deal="random") >> outer, 9, f)
    if promise.kappa is None:
        assert f > 1
        assert isinstance(inner, bz.Mean)
        return
    assert 17 in promise.propositions
    deals, worst = np.array(list(dealings(tuple(range(9))))), 0.0
    assert len(deals) == math.factorial(9) // 6**3 // 6
    for honest in itertools.combinations_with_replacement((0.0, 1.0, 3.0), 9 - f):
        if np.ptp(honest) == 0:
            continue
        for sent in itertools.combinations_with_replacement((-50.0, 0.0, 1.0, 3.0, 50.0), f):
            outs = over(own(np.array([*sent, *honest])[deals].reshape(-1, 3, 3)))
            worst = max(worst, float(((outs - np.mean(honest)) ** 2).mean() / np.var(honest)))
    assert 0.3 * promise.kappa < worst <= promise.kappa * (1 + 1e-9)


def test_a_search_by_attack_comes_near_the_bound_with_the_bad_vectors_placed() -> None:
    """With the first f rows bad, only one group would be."""
    rule = bz.Hierarchy(7, bz.Mean()) >> bz.TrimmedMean(f=2)
    finding = attack(rule, 21, 2, budget=600)
    assert finding is not None
    promised = guarantee(rule, 21, 2)
    assert promised.c is not None
    assert 0.8 * promised.c < finding.c <= promised.c * (1 + 1e-9)
    assert finding.how.endswith("; bad are rows 0, 3")
    assert kappa_of(rule, finding.rows[:, 0], [0, 3]) == pytest.approx(finding.c / c_of(1, 21, 2))


def test_bad_vectors_are_placed_in_most_groups() -> None:
    trial = Trial(bz.Hierarchy(5, bz.Krum(f=1)) >> bz.Median(), 25, 9)
    bad = trial.arranged(np.arange(25.0)) < 9
    assert bad.reshape(5, 5).sum(axis=1).tolist() == [3, 3, 3, 0, 0]
    trial.f = 3
    assert (trial.arranged(np.arange(25.0)) < 3).reshape(5, 5).sum(axis=1).tolist() == [
        2, 1, 0, 0, 0
    ]  # fmt: skip
    random = Trial(bz.Hierarchy(5, bz.Krum(f=1), deal="random") >> bz.Median(), 25, 9)
    assert random.arranged(np.arange(25.0)).tolist() == list(range(25))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "n", "f"),
    [
        ("Hierarchy(groups=5, inner=GeometricMedian()) >> GeometricMedian()", 15, 5),
        ("Hierarchy(groups=5, inner=Krum(f=1)) >> Median()", 25, 4),
        ("Hierarchy(groups=5, inner=AgnosticClipping(f=1)) >> TrimmedMean(f=1)", 25, 3),
        ("Hierarchy(groups=(3, 5, 8, 9), inner=MinimumDiameter(f=1)) >> Median()", 25, 2),
        ("Hierarchy(groups=5, inner=AgnosticClipping(f=1), deal='random') >> Median()", 25, 3),
        ("Hierarchy(groups=5, inner=GeometricMedian(), deal='random') >> Median()", 25, 2),
    ],
)
def test_no_search_breaks_a_bound(text: str, n: int, f: int) -> None:
    rule = bz.parse_rule(text)
    promised = guarantee(rule, n, f).c
    finding = attack(rule, n, f, budget=1200)
    assert finding is not None
    assert promised is not None
    assert 0.01 * promised < finding.c <= promised * (1 + 1e-9)


# -- what is not promised --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "f", "gap"),
    [
        ("Hierarchy(groups=5, inner=SpectralFilter(f=1)) >> Median()", 3, "no bound is known for"),
        ("Hierarchy(groups=5, inner=Krum(f=1)) >> SpectralFilter(f=2)", 3, "no bound is known for"),
        ("Hierarchy(groups=5, inner=Mean()) >> TrimmedMean(f=1)", 2, "but may meet 2"),
        ("Hierarchy(groups=5, inner=Krum(f=1)) >> TrimmedMean(f=1)", 4, "but may meet 2"),
        ("Hierarchy(groups=5, inner=Mean()) >> Mean()", 1, "Mean() tolerates no Byzantine vectors"),
    ],
)
def test_where_nothing_is_proved_nothing_is_promised(text: str, f: int, gap: str) -> None:
    promise = guarantee(bz.parse_rule(text), 25, f)
    assert promise.kappa is None
    assert gap in promise.gap


def test_no_quarter_of_all_is_tolerated() -> None:
    rule = bz.Hierarchy(5, bz.GeometricMedian()) >> bz.GeometricMedian()
    assert guarantee(rule, 25, 8).covered  # three in two groups, two in another one
    assert not guarantee(rule, 25, 9).covered


# -- the chance of more bad groups -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "f"), [((3, 3, 3), 4), ((2, 3, 4), 3), ((4, 4), 5), ((1, 2, 3, 2), 4), ((5,), 2)]
)
def test_the_chance_is_what_counting_all_cases_gives(sizes: tuple[int, ...], f: int) -> None:
    n, group = sum(sizes), [g for g, size in enumerate(sizes) for _ in range(size)]
    cases = list(itertools.combinations(range(n), f))
    for threshold in range(3):
        for most in range(len(sizes)):
            over = sum(
                sum(sum(group[i] == g for i in case) > threshold for g in range(len(sizes))) > most
                for case in cases
            )
            chance = chance_of_more_bad_groups(sizes, f, threshold, most)
            assert chance == pytest.approx(float(Fraction(over, len(cases))), abs=1e-15)


def test_of_one_group_the_chance_is_hypergeometric() -> None:
    n, s, f, t = 1000, 40, 100, 12
    tail = sum(math.comb(s, b) * math.comb(n - s, f - b) for b in range(t + 1, s + 1))
    exact = float(Fraction(tail, math.comb(n, f)))
    # The union over 25 groups is at most their sum, and nearly so where it is small.
    chance = chance_of_more_bad_groups([s] * 25, f, t, 0)
    assert 0.99 * 25 * exact < chance < 25 * exact
    assert chance_of_more_bad_groups([n], f, f, 0) == 0


def test_simulated_draws_have_about_this_chance() -> None:
    stage, f, most = bz.Hierarchy(6, bz.GeometricMedian(), deal="random"), 8, 1
    generator, over, draws = torch.Generator().manual_seed(0), 0, 3000
    for _ in range(draws):  # the dealing of the rule itself
        order = torch.randperm(30, generator=generator)
        bad = (order.view(6, 5) < f).sum(dim=1)
        over += int((bad > 2).sum() > most)
    chance = chance_of_more_bad_groups([5] * 6, f, stage.resolved(30, ()).group_f, most)  # type: ignore[attr-defined]
    assert over / draws == pytest.approx(chance, abs=4 * math.sqrt(chance / draws))


def test_a_rare_draw_is_said_where_nothing_is_promised() -> None:
    groups = bz.Hierarchy(10, bz.AgnosticClipping(f=2), deal="random")
    gap = guarantee(groups >> bz.TrimmedMean(f=1), 100, 10).gap
    chance = chance_of_more_bad_groups([10] * 10, 10, 2, 1)
    assert f"more than 1 are bad with the chance {chance:.2g} in each call" in gap
    inside = guarantee(bz.Hierarchy(10, bz.AgnosticClipping(f=2)) >> bz.TrimmedMean(f=1), 100, 5)
    assert inside.covered
    fixed = bz.Hierarchy(10, bz.AgnosticClipping(f=2)) >> bz.TrimmedMean(f=1)
    assert "chance" not in guarantee(fixed, 100, 10).gap
