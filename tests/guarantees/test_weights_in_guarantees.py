"""Promises about vectors with weights: those of so many equal vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import byzantium as bz
from byzantium.cli import main
from byzantium.guarantees import announce, gap, guarantee

SIZES = [3, 1, 2, 5, 1, 4, 2, 1, 3]
HELD, WHOLE = 9, 22
RULES: list[Callable[[int], bz.Aggregator]] = [
    (lambda f: bz.TrimmedMean(f=f)),
    (lambda f: bz.Median()),
    (lambda f: bz.GeometricMedian()),
    (lambda f: bz.MeaMed(f=f)),
    (lambda f: bz.AgnosticClipping(f=f)),
    (lambda f: bz.NearestNeighborMixing(f=f) >> bz.TrimmedMean(f=f)),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("times", [1, 4])
def test_the_promise_is_that_of_the_copies(
    rule: Callable[[int], bz.Aggregator], times: int
) -> None:
    promise = guarantee(rule(2), 9, 2, weights=[times * size for size in SIZES])
    copies = guarantee(rule(HELD), WHOLE, HELD)
    assert promise.kappa == pytest.approx(copies.kappa)
    assert promise.delta == pytest.approx(HELD / WHOLE)
    assert promise.propositions == (*copies.propositions, 15)
    assert promise.largest_heterogeneity == pytest.approx(copies.largest_heterogeneity)
    real = guarantee(rule(2), 9, 2, weights=[math.pi * size for size in SIZES])
    assert real.kappa is not None
    assert promise.kappa is not None
    assert promise.kappa <= real.kappa <= promise.kappa * 1.01


@pytest.mark.parametrize("make", RULES)
def test_no_attack_breaks_a_promise_in_weight(make: Callable[[int], bz.Aggregator]) -> None:
    """The heaviest sites attack; the honest mean and variance are those by weight."""
    rule = make(2)
    promise = guarantee(rule, 9, 2, weights=SIZES)
    assert promise.kappa is not None
    rng, order = np.random.default_rng(0), np.argsort(SIZES)[::-1]
    bad, good = order[:2], order[2:]
    own = np.array(SIZES, dtype=float)[good] / np.array(SIZES)[good].sum()
    worst = 0.0
    for _ in range(150):
        X = rng.normal(size=(9, rng.integers(1, 4)))
        if rng.random() < 0.5:  # honest sites in two places
            X[good] = rng.integers(0, 2, size=(len(good), 1)) * X[good[0]]
        mean = own @ X[good]
        variance = float(own @ ((X[good] - mean) ** 2).sum(axis=1))
        for size in (0.5, 1, 2, 4, 30):
            X[bad] = mean + size * rng.normal(size=X.shape[1])
            out = rule(torch.from_numpy(X), weights=SIZES).numpy()
            if variance > 1e-12:
                worst = max(worst, float(((out - mean) ** 2).sum()) / variance)
    assert 0 < worst <= promise.kappa * (1 + 1e-9)


def test_what_cannot_be_promised_says_the_number() -> None:
    weights = [8, 4, 1, 1, 1, 1, 1, 1, 1]
    sentence = (
        "the 2 largest of 9 sites hold 63.2 % of the weight; GeometricMedian tolerates less than "
        "50 %: truncated_weights(weights, 2, 0.5) limits the largest"
    )
    with pytest.raises(bz.ByzantiumError) as caught:
        guarantee(bz.GeometricMedian(), 9, 2, weights=weights)
    assert str(caught.value) == sentence
    assert gap(bz.GeometricMedian(), 9, 2, weights=weights) == sentence
    truncated = bz.rules.truncated_weights(weights, 2, 0.4)
    assert guarantee(bz.GeometricMedian(), 9, 2, weights=truncated).delta == pytest.approx(
        0.4, abs=1e-4
    )
    promise = guarantee(bz.CenteredClipping(radius=1), 9, 2, weights=SIZES)
    assert promise.gap.endswith("40.9 % of the weight; CenteredClipping tolerates less than 10 %")
    assert guarantee(bz.Mean(), 9, 1, weights=SIZES).gap.endswith("Mean tolerates none")
    assert "takes no weights" in gap(bz.Krum(f=2), 9, 2, weights=SIZES)
    buckets = guarantee(bz.Bucketing(s=2) >> bz.Median(), 9, 2, weights=SIZES)
    assert buckets.gap == "no bound is known for buckets of weighted vectors"
    built = guarantee(bz.TrimmedMean(f=1), 9, 2, weights=SIZES)
    assert built.gap == "TrimmedMean(f=1) is built for 1 Byzantine vectors, but may meet 2"


def test_equal_weights_and_weights_of_zero() -> None:
    plain = guarantee(bz.TrimmedMean(f=2), 9, 2)
    assert guarantee(bz.TrimmedMean(f=2), 9, 2, weights=[0.1] * 9) == plain
    assert guarantee(bz.TrimmedMean(f=2), 11, 2, weights=[0, *[7] * 9, 0]) == plain


def test_a_root_gradient_covers_any_share() -> None:
    weights = [30, 1, 1, 1, 1]
    assert guarantee(bz.RootMatching(f=1), 5, 1, weights=weights).covered


def test_a_promise_with_weights_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        announce(bz.TrimmedMean(f=2), 9, weights=SIZES, again=True)
        announce(bz.TrimmedMean(f=2), 9, weights=[90, *[1] * 8], again=True)
    assert "(the 2 largest hold 40.9 % of the weight)" in caplog.text
    assert "hold 92.9 % of the weight" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["GeometricMedian()", "--f", "2"], 0, "delta = 0.409"),
        (["GeometricMedian()", "--f", "2", "--n", "9"], 0, "(the 2 largest hold 40.9 % "),
        (["Bucketing(s=2) >> Median()", "--f", "2"], 1, "not covered: no bound is known for"),
        (["TrimmedMean()", "--f", "3"], 2, "the 3 largest of 9 sites hold 54.5 % of the weight"),
        (["Krum()", "--f", "1"], 2, "takes no weights"),
        (["Median()", "--f", "1", "--n", "5"], 2, "one number for each of 5 vectors"),
        (["Median()", "--f", "1", "--data", "digits"], 2, "omit --weights"),
    ],
)
def test_check_reads_weights(arguments: list[str], code: int, said: str, tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.toml"
    sizes.write_text("\n".join(f"site-{k} = {size}" for k, size in enumerate(SIZES)))
    result = CliRunner().invoke(main, ["check", *arguments, "--weights", str(sizes)])
    assert result.exit_code == code, result.output
    assert said in result.output
