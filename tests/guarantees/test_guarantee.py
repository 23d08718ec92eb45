"""What pipelines promise: constants that are attained, bounds that attacks do not break."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator

import inputs
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from paths import ROOT
from torch import Tensor

import byzantium as bz
from byzantium.cli import main
from byzantium.guarantees import Bound, announce, bound, c_of, guarantee, lower_bound, recommend
from byzantium.guarantees.bounds import agnostic
from byzantium.guarantees.recommendation import ACCURACIES, CERTIFICATES
from byzantium.papers import recorded_ranking
from byzantium.reports.promises import promises
from byzantium.runs import Metrics, Run

N, F = 25, 5


def kappa_of(rule: bz.Aggregator, X: Tensor, f: int, times: int = 1) -> float:
    """|out - mu|^2 / sigma^2, where the last f are bad; the mean over so many calls."""
    honest = X[: len(X) - f]
    mean = honest.mean(dim=0)
    variance = float((honest - mean).square().sum(dim=1).mean())
    generator = torch.Generator().manual_seed(0)
    errors = [float((rule(X, generator) - mean).square().sum()) for _ in range(times)]
    return sum(errors) / times / variance


def camps(n: int, f: int, far: int) -> Tensor:
    """`far` honest vectors at 1, the others and all f bad ones at 0."""
    X = torch.zeros(n, 1, dtype=torch.float64)
    X[:far] = 1
    return X


@pytest.mark.parametrize("f", [1, 3, 5, 8, 10, 12])
def test_exact_constants_are_attained(f: int) -> None:
    for rule in (bz.Median(), bz.GeometricMedian()):
        promised = guarantee(rule, N, f).kappa
        assert kappa_of(rule, camps(N, f, N // 2), f) == pytest.approx(promised)
    trimmed = bz.TrimmedMean(f=f)
    assert kappa_of(trimmed, camps(N, f, f), f) == pytest.approx(guarantee(trimmed, N, f).kappa)


def attacked(n: int, f: int) -> Iterator[Tensor]:
    """Honest families and places for the f bad ones, from near the mean to far away."""
    random = np.random.default_rng(0)
    h = n - f
    for family in range(5):
        for d in (1, 3):
            honest = random.standard_normal((h, d))
            if family == 1:
                honest = np.sign(honest)
            elif family == 2:
                honest = honest**3
            elif family == 3:
                honest = 0.05 * honest
                honest[: random.integers(1, f + 1)] += 1
            elif family == 4:
                honest[: h // 2] += 5
            mean, direction = honest.mean(axis=0), random.standard_normal(d)
            direction /= np.linalg.norm(direction)
            spread = np.sqrt(((honest - mean) ** 2).sum(axis=1).mean())
            for size in (0.0, 0.5, 1, 1.5, 2, 3, 6, 1e4):
                bad = mean + size * spread * direction + 1e-3 * random.standard_normal((f, d))
                yield torch.from_numpy(np.concatenate([honest, bad]))


def rules(f: int) -> list[bz.Aggregator]:
    alone: list[bz.Aggregator] = [
        bz.TrimmedMean(f=f),
        bz.Median(),
        bz.GeometricMedian(),
        bz.Krum(f=f),
        bz.Krum(f=f, m=4),
        bz.Krum(f=f, m=N - f),
        bz.MeaMed(f=f),
        bz.MinimumDiameter(f=f),
        bz.Bulyan(f=f),
        bz.AgnosticClipping(f=f),
        bz.AgnosticClipping(f=f, b=1),
        bz.AgnosticClipping(f=f, b=2),
    ]
    overstated: list[bz.Aggregator] = [bz.TrimmedMean(f=f + 2), bz.AgnosticClipping(f=f + 2)]
    mixed = [bz.NearestNeighborMixing(f=f) >> rule for rule in (alone[0], alone[2], alone[-3])]
    return alone + overstated + mixed


@pytest.mark.parametrize("f", [1, 5, 8])
def test_no_attack_breaks_a_promise(f: int) -> None:
    for rule in rules(f):
        if rule.stages[-1].min_vectors()[0] > N:
            continue
        promise = guarantee(rule, N, f)
        assert promise.kappa is not None
        assert promise.kappa >= lower_bound(N, f) * (1 - 1e-12)
        for X in attacked(N, f):
            assert kappa_of(rule, X, f) <= promise.kappa + 1e-9, rule


@pytest.mark.parametrize(
    "pipeline",
    [
        bz.Bucketing(s=12) >> bz.Median(),
        bz.Bucketing(s=12, balanced=True) >> bz.Median(),
        bz.Bucketing(s=4) >> bz.AgnosticClipping(f=1),
        bz.Resampling(s=3) >> bz.GeometricMedian(),
    ],
    ids=repr,
)
def test_no_attack_breaks_what_random_mixings_promise_on_average(pipeline: bz.Aggregator) -> None:
    promise = guarantee(pipeline, N, 1)
    assert promise.kappa is not None
    worst = 0.0
    for X in list(attacked(N, 1))[::5]:
        worst = max(worst, kappa_of(pipeline, X, 1, times=40))
    assert 0 < worst < 1.1 * promise.kappa  # 40 draws are not all


def test_balanced_buckets_promise_far_more_than_a_last_group_of_one() -> None:
    ragged = guarantee(bz.Bucketing(s=12) >> bz.Median(), N, 1)
    balanced = guarantee(bz.Bucketing(s=12, balanced=True) >> bz.Median(), N, 1)
    assert ragged.c is not None
    assert balanced.c is not None
    assert ragged.c > 9
    assert 1.75 <= balanced.c < 2  # an attack reaches 1.75


def test_what_buckets_do_is_what_proposition_10_says() -> None:
    """Variance and mean of the good groups, over many permutations, one bad vector aside."""
    X, s, f = inputs.heterogeneous(N), 4, 1
    honest = X[: N - f]
    variance = float((honest - honest.mean(0)).square().sum(1).mean())
    generator = torch.Generator().manual_seed(0)
    spreads, shifts = [], []
    for _ in range(600):
        mixing = (bz.Bucketing(s=s, balanced=True) >> bz.Mean()).explain(X, generator).mixing
        good = (mixing[:, N - 1] == 0).nonzero()[:, 0]
        sizes = 1 / mixing[good].max(dim=1).values
        groups = mixing[good[sizes.argsort()][: len(mixing) - f]] @ X
        spreads.append(float((groups - groups.mean(0)).square().sum(1).mean()))
        shifts.append(float((groups.mean(0) - honest.mean(0)).square().sum()))
    # 7 groups, of 4, 4, 4, 4, 3, 3, 3; the six smallest that are good
    share = (3 / 3 + 3 / 4) / 6
    S2 = 24 / 23 * variance
    assert np.mean(spreads) <= 1.07 * S2 * share * 5 / 6
    assert np.mean(shifts) <= 1.15 * S2 * (share / 6 - 1 / 24)


@pytest.mark.parametrize("b", [0.97, 1, 1.25, 2, 4])
def test_the_bound_of_agnostic_clipping_is_the_largest_over_a_grid(b: float) -> None:
    """Written again, over a grid of s / sigma and of the clipped share."""
    for n, f in ((25, 1), (25, 5), (25, 12), (11, 4), (100, 30)):
        h, K = n - f, f / (n - 2 * f)
        tau = b * h / (2 * math.sqrt(f * (n - 2 * f)))
        e_s = 2 * tau * (1 - math.sqrt((n - 2 * f) / h * (1 - f / (b * b * h))))
        worst = 0.0
        for r in np.linspace(1e-3, math.sqrt(2), 1500):
            t = tau * r
            room = (n - 2 * f) / h - 1 / (4 * t * t)
            first = 2 * t * (1 - math.sqrt(room)) if room >= 0 else math.inf
            second = e_s * r + math.sqrt(K) * (1 + r)
            j = np.arange(f + 1)
            p, q = (f - j) / h * t + (1 + e_s**2) * r / (4 * tau), np.sqrt(j / h)
            third = ((p + q * np.sqrt(p**2 + 1 - q**2)) / (1 - q**2)).max()
            worst = max(worst, min(first, second, third) ** 2)
        assert worst <= agnostic(n, f, b) <= 1.02 * worst


def test_agnostic_clipping_promises_what_the_documentation_says() -> None:
    shown = {1: 0.74, 3: 0.93, 5: 1.27, 8: 2.84, 10: 9.88, 12: 79.5}
    for f, c in shown.items():
        assert guarantee(bz.AgnosticClipping(f=f), 25, f).c == pytest.approx(c, rel=0.01)
    assert not guarantee(bz.AgnosticClipping(f=5, b=0.1), 25, 5).covered


@pytest.mark.parametrize(
    ("text", "f", "gap"),
    [
        ("Mean()", 1, "Mean() tolerates no Byzantine vectors, but may meet 1 of 25"),
        ("Krum(f=4)", 5, "Krum(f=4) is built for 4 Byzantine vectors, but may meet 5"),
        ("Resampling(s=2) >> Krum(f=5)", 5, "is built for 5 Byzantine vectors, but may meet 10"),
        (
            "Bucketing(s=3) >> Median()",
            5,
            "tolerates less than 1/2 of its vectors Byzantine, but may meet 5 of 9",
        ),
        ("CenteredClipping(radius=1)", 1, "no bound is known for CenteredClipping(radius=1)"),
        ("CenteredClipping(radius=1)", 5, "tolerates less than 1/10 of its vectors Byzantine"),
        ("GeometricMedian(steps=8)", 5, "no bound is known for GeometricMedian(steps=8)"),
        ("AdaptiveClipping(f=5) >> Median()", 5, "AdaptiveClipping(f=5) and what follows it"),
    ],
)
def test_what_is_not_covered_says_why(text: str, f: int, gap: str) -> None:
    promise = guarantee(bz.parse_rule(text), 25, f)
    assert not promise.covered
    assert promise.kappa is None
    assert promise.c is None
    assert gap in str(promise)
    assert len(str(promise).splitlines()) == 3


def test_overstating_f_is_mild() -> None:
    exact = guarantee(bz.TrimmedMean(f=5), 25, 5).c
    more = guarantee(bz.TrimmedMean(f=6), 25, 5).c
    assert exact is not None
    assert more is not None
    assert exact < more < 2 * exact


def test_understating_f_is_fatal() -> None:
    X = inputs.gaussian(25, 3)
    X[20:] = 1e6
    for rule in (bz.TrimmedMean(f=4), bz.AgnosticClipping(f=4), bz.MinimumDiameter(f=4)):
        assert kappa_of(rule, X, 5) > 1e8
    for rule in (bz.TrimmedMean(f=6), bz.AgnosticClipping(f=6), bz.MinimumDiameter(f=6)):
        assert kappa_of(rule, X, 5) < 1


def test_with_nobody_bad_the_mean_is_promised() -> None:
    promise = guarantee(bz.Mean(), 25, 0)
    assert promise.covered
    assert promise.kappa == 0
    assert promise.c is None


@pytest.mark.parametrize(("n", "f"), [(25, 13), (24, 12), (25, -1)])
def test_half_of_the_vectors_cannot_be_bad(n: int, f: int) -> None:
    with pytest.raises(bz.ByzantiumError, match="f must be at least 0 and less than half of n"):
        guarantee(bz.Median(), n, f)


def test_a_rule_of_ones_own_may_be_registered() -> None:
    class Own(bz.MatrixRule):
        def aggregate(self, updates: Tensor) -> Tensor:
            return updates.median(dim=0).values

    assert not guarantee(Own(), 25, 5).covered
    bound.register(Own, lambda rule, n, f: Bound(2.0, ()))
    assert guarantee(Own(), 25, 5).c == c_of(2.0, 25, 5)


# -- buckets that choose their size --------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "f", "rule", "s"),
    [
        (25, 5, "Median()", 2),
        (20, 5, "Median()", 1),  # delta_max / delta = 2 would make ten, five of them bad
        (25, 1, "Median()", 12),
        (25, 1, "Krum(f=1)", 6),
        (25, 0, "Median()", 25),
        (25, 2, "Bulyan(f=2)", 2),
        (25, 2, "CenteredClipping(radius=1)", 1),
        (25, 5, "NearestNeighborMixing(f=5) >> TrimmedMean(f=5)", 2),
        (1000, 100, "GeometricMedian()", 4),
        (24, 8, "TrimmedMean(f=8)", 1),
    ],
)
def test_auto_takes_the_largest_s_that_the_rule_stands(n: int, f: int, rule: str, s: int) -> None:
    pipeline = bz.parse_rule(f"Bucketing(s='auto', f={f}) >> {rule}")
    report = pipeline.explain(inputs.gaussian(n, 3))
    sizes = (report.mixing > 0).sum(dim=1) if "Nearest" not in rule else torch.tensor([0])
    assert guarantee(pipeline, n, f).stages[0] == bz.Bucketing(s=s, balanced=True, f=f)
    assert int(sizes.max() - sizes.min()) <= 1


def test_auto_is_written_as_it_was_asked_for_and_has_the_f_of_the_run() -> None:
    pipeline = bz.parse("Bucketing(s='auto') >> GeometricMedian()", f=5)
    assert repr(pipeline) == "Bucketing(s='auto', f=5) >> GeometricMedian()"
    assert bz.parse(repr(pipeline)) == pipeline
    assert repr(bz.parse("Bucketing(s=2) >> Krum()", f=5)) == "Bucketing(s=2) >> Krum(f=5)"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: bz.Bucketing(s="auto"), "needs f"),
        (lambda: bz.Bucketing(s="automatic"), "needs a whole number or 'auto' for s"),  # type: ignore[arg-type]
        (lambda: bz.parse("Bucketing(s='auto') >> Median()"), "lacks the argument 'f'"),
        (
            lambda: bz.Bucketing(s="auto", f=1)(torch.ones(5, 2)),
            "rule that follows, but none",
        ),
        (lambda: bz.Bucketing(s="auto", f=1).rows(5), "has no s until"),
        (
            lambda: (bz.Bucketing(s="auto", f=1) >> bz.Mean())(torch.ones(5, 2)),
            r"finds no s with which Mean\(\) tolerates f = 1 Byzantine vectors of 5",
        ),
        (
            lambda: (bz.Bucketing(s="auto", f=2) >> bz.Krum(f=1))(torch.ones(9, 2)),
            "finds no s with which",
        ),
    ],
)
def test_auto_without_what_it_needs_is_one_sentence(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(bz.ByzantiumError, match=sentence):
        make()


def test_auto_chooses_before_anything_is_rejected() -> None:
    X = inputs.gaussian(25, 3)
    X[[3, 8]] = torch.nan
    report = (bz.Bucketing(s="auto", f=5) >> bz.Median()).explain(X)
    assert report.rejected == (3, 8)
    assert len(report.mixing) == 12  # s = 2, as for all 25
    assert report.aggregate.isfinite().all()


# -- saying it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["Bucketing(s=2) >> Krum()", "--n", "25", "--f", "5"], 0, "covered: squared error <= "),
        (["AgnosticClipping()", "--n", "25", "--f", "5"], 0, "1.27 delta rho^2"),
        (["Bucketing(s=2) >> GeometricMedian()", "--n", "25", "--f", "5"], 0, "appendix prints"),
        (["Resampling(s=2) >> Krum(f=5)", "--n", "25", "--f", "5"], 1, "not covered: "),
        (["Krum()", "--n", "10", "--f", "5"], 2, "less than half of n"),
        (["Krum()", "--n", "11", "--f", "5"], 2, "needs at least 2f + 3 = 13 vectors, got 11"),
        (["Krun()", "--n", "11", "--f", "5"], 2, "did you mean 'Krum'?"),
        (["Krum()", "--n", "1" * 400, "--f", "5"], 2, "at most 1000000 vectors"),
    ],
)
def test_check_says_it_in_four_lines_and_its_exit_code(
    arguments: list[str], code: int, said: str
) -> None:
    result = CliRunner().invoke(main, ["check", *arguments])
    assert result.exit_code == code, result.output
    assert said in result.output
    if code < 2:
        assert len(result.output.splitlines()) == 4


def test_a_promise_is_logged_once_and_what_is_not_covered_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="byzantium"):
        for _ in range(3):
            announce(bz.Krum(f=3), 31, 3)
            announce(bz.Krum(f=3), 31, 4)
            announce(bz.Krum(f=3), 31, 16)
            announce(bz.Median(), 31)  # nobody said how many may be bad
            announce(bz.TrimmedMean(f=3), 31)
    levels = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in levels] == ["INFO", "WARNING", "WARNING", "INFO"]
    assert "built for 3 Byzantine vectors, but may meet 4" in levels[1][1]
    assert "16 of 31 may be Byzantine; if half or more are" in levels[2][1]


# -- theorems as numbers ---------------------------------------------------------------------------


def test_theorems_2_and_4_stand_beside_what_a_run_measured() -> None:
    run = Run(rule="AgnosticClipping()", attack="BitFlip()", n=25, f=5)
    lines = [{"round": k, "zeta2": 2.0, "b2": b2} for k, b2 in enumerate((9.0, 1.0, 0.5, 0.5, 1))]
    said = promises(run, lines)
    c = guarantee(bz.AgnosticClipping(f=5), 25, 5).c
    assert c is not None
    gradient = (2 / 9 + 2 + 4 + 4 + 2) / 5
    assert f"c δ ζ² = {c * 0.2 * 2:.3g} (ζ² = 2); measured {gradient:.3g}" in said["Theorem 2"]
    assert f"1/(60 c δ) = {1 / (60 * c * 0.2):.3g}" in said["Theorem 4"]
    assert f"B² = {2 / gradient:.3g}, so it says nothing here" in said["Theorem 4"]
    assert promises(run, [{**lines[0], "b2": 0.01}])["Theorem 4"].endswith("so it does")


@pytest.mark.parametrize("lines", [[], [{"round": 1}], [{"round": 1, "zeta2": math.inf, "b2": 1}]])
def test_without_heterogeneity_there_is_only_the_promise(lines: list[Metrics]) -> None:
    assert list(promises(Run(rule="Krum()"), lines)) == ["promise"]
    assert "not covered" in promises(Run(rule="Mean()", attack="BitFlip()"), lines)["promise"]


# -- which one to take ----------------------------------------------------------------------------


def recorded() -> dict[str, dict[int, float]]:
    """By rule and number of attackers, the worst recorded accuracy on data sorted by label."""
    ranking, found = recorded_ranking(), {}
    for row in ranking.rows:
        worst = {f: row.worst("noniid", f, ranking.attacks) for f in (1, 3, 5)}
        if not row.root:
            found[row.rule] = {f: round(one.mean, 1) for f, one in worst.items() if one}
    return found


def test_what_is_recommended_rests_on_the_recorded_ranking() -> None:
    assert {"Mean()": recorded()["Mean()"]} | ACCURACIES == recorded()


def test_what_is_said_of_buckets_in_training_rests_on_the_recorded_ranking() -> None:
    text = (ROOT / "docs" / "understand" / "delta.md").read_text("utf-8")
    rows = re.findall(r"^\| `(.+)` \| (.+ → .+) \| (.+ → .+) \| (.+ → .+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for rule, *cells in rows:
        for f, cell in zip((1, 3, 5), cells, strict=True):
            alone, behind = recorded()[rule][f], recorded()[f"Bucketing(s=2) >> {rule}"][f]
            assert cell == f"{alone} → {behind}", rule


def test_the_accuracies_of_the_page_on_rules_are_recorded() -> None:
    text = (ROOT / "docs" / "understand" / "which-rule.md").read_text("utf-8")
    rows = re.findall(r"^\| `(.+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
    assert len(rows) > 4
    for rule, *cells in rows:
        assert list(map(float, cells)) == [recorded()[rule][f] for f in (1, 3, 5)], rule


@pytest.mark.parametrize(
    ("n", "f", "covered"),
    [(25, 1, True), (25, 3, True), (100, 10, True), (25, 5, False), (25, 12, False), (3, 1, False)],
)
def test_a_recommendation_says_why_and_whether_something_is_proved(
    n: int, f: int, covered: bool
) -> None:
    for heterogeneous in (False, True):
        found = recommend(n, f, heterogeneous)
        assert guarantee(found.pipeline, n, f).covered == (covered or not heterogeneous)
        assert found.why in str(found)
        assert ("this one has none" in str(found)) == (not found.promise.covered)
        assert found.pipeline(inputs.gaussian(n, 2)).isfinite().all()


def test_where_data_differ_what_bit_flips_destroy_is_not_recommended() -> None:
    """The trimmed mean promises most of all."""
    assert recommend(25, 5, heterogeneous=False).pipeline == bz.TrimmedMean(f=5)
    assert recommend(25, 5).pipeline != bz.TrimmedMean(f=5)


def test_what_is_said_of_attacks_is_in_the_committed_certification() -> None:
    path = ROOT / "docs" / "certification.json"
    found = {(one["rule"], one["f"]): one["c"] for one in json.loads(path.read_text())}
    for text, by_f in CERTIFICATES.items():
        for f, c in by_f.items():
            assert float(f"{found[repr(bz.parse_rule(text, f=f)), f]:.3g}") == c
    assert "3 of 25 Byzantine, attacks found c = 0.978" in str(recommend(50, 6))


def test_more_attackers_than_were_measured_are_mentioned() -> None:
    assert "Nothing was measured with as many" not in str(recommend(25, 5))
    assert "Nothing was measured with as many" in str(recommend(25, 6))
