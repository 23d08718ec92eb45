"""The largest heterogeneity: nobody promises more, the trimmed mean attains it, bounds hold."""

from __future__ import annotations

import math

import members
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import byzantium as bz
from byzantium.cli import main
from byzantium.guarantees import (
    describe_limit,
    guarantee,
    largest_heterogeneity,
    lower_bound,
    most_attackers,
    recommend,
)

# How often rows are shuffled, where what a rule does depends on their order or on random groups.
SHUFFLES = 60


def worlds(n: int, f: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the proof, and the honest ones of each of the two worlds."""
    b = torch.tensor([[3.0, -1.0, 2.0]], dtype=torch.float64)
    rest = torch.zeros(n - 2 * f, 3, dtype=torch.float64)
    plus, minus = b.repeat(f, 1), -b.repeat(f, 1)
    return torch.cat([rest, plus, minus]), torch.cat([rest, plus]), torch.cat([rest, minus])


def b2_of(honest: Tensor) -> float:
    mean = honest.mean(dim=0)
    return float((honest - mean).square().sum(dim=1).mean() / mean.square().sum())


@pytest.mark.parametrize(("n", "f"), [(25, 1), (25, 3), (25, 5), (25, 12), (3, 1), (23, 2)])
def test_both_worlds_have_exactly_the_limit(n: int, f: int) -> None:
    rows, plus, minus = worlds(n, f)
    assert len(rows) == n
    assert len(plus) == len(minus) == n - f
    assert torch.equal(plus.mean(dim=0), -minus.mean(dim=0))
    for honest in (plus, minus):
        assert b2_of(honest) == pytest.approx(largest_heterogeneity(None, n, f))


@pytest.mark.parametrize("member", members.EVERYTHING, ids=members.name)
def test_no_rule_descends_in_both_worlds(member: members.Rule) -> None:
    """The mean result over shuffled rows does not point along both honest means."""
    rows, plus, minus = worlds(members.N, members.F)
    generator = torch.Generator().manual_seed(0)
    progress = {"plus": [], "minus": []}  # type: dict[str, list[Tensor]]
    for _ in range(SHUFFLES):
        for name, honest in (("plus", plus), ("minus", minus)):  # draws of its own in each world
            order = torch.randperm(members.N, generator=generator)
            result = member.fresh()(rows[order], generator)
            progress[name].append(result @ honest.mean(dim=0))
    least = min((torch.stack(values) for values in progress.values()), key=torch.mean)
    error = float(least.std()) / math.sqrt(SHUFFLES)
    assert float(least.mean()) <= 4 * error + 1e-12


def test_memory_does_not_help() -> None:
    """Linear losses send the same rows in all rounds: the worlds stay the same for ever."""
    rows, plus, _ = worlds(25, 5)
    rule = bz.CenteredClipping(radius=1.0, steps=1)
    for _ in range(50):
        assert float(rule(rows) @ plus.mean(dim=0)) == pytest.approx(0, abs=1e-9)


def attempts(honest: Tensor, f: int) -> list[Tensor]:
    """What f attackers could send against the mean of the honest."""
    mean = honest.mean(dim=0)
    against = [-mean * size for size in (0.1, 0.5, 1, 2, 10, 100)]
    farthest = honest[(honest @ mean).argmin()]
    return [row.expand(f, -1) for row in [*against, farthest, torch.zeros_like(mean)]]


@pytest.mark.parametrize("member", members.EVERYTHING, ids=members.name)
def test_below_its_own_limit_a_pipeline_descends(member: members.Rule) -> None:
    n, f = members.N, members.F
    limit = largest_heterogeneity(member.rule, n, f)
    assert limit <= largest_heterogeneity(None, n, f)
    assert (limit == 0) == (not guarantee(member.rule, n, f).covered)
    generator = torch.Generator().manual_seed(1)
    mixed_at_random = isinstance(member.rule.stages[0], bz.Bucketing | bz.Resampling)
    draws = 30 if mixed_at_random else 1
    for shape in range(3 if limit else 0):
        honest = torch.randn(n - f, 4, generator=generator, dtype=torch.float64) ** (1 + 2 * shape)
        honest = honest - honest.mean(dim=0)
        mean = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
        spread = float(honest.square().sum(dim=1).mean())
        honest = mean + honest * math.sqrt(0.999 * limit / spread)
        for bad in attempts(honest, f):
            rows = torch.cat([honest, bad])
            results = [member.fresh()(rows, generator) for _ in range(draws)]
            assert float(torch.stack(results).mean(dim=0) @ mean) > 0


@pytest.mark.parametrize("f", range(1, 13))
def test_the_trimmed_mean_attains_the_limit(f: int) -> None:
    n, rule = 25, bz.TrimmedMean(f=f)
    limit = largest_heterogeneity(None, n, f)
    assert largest_heterogeneity(rule, n, f) == pytest.approx(limit)
    assert limit == pytest.approx(1 / lower_bound(n, f))
    rows, plus, _ = worlds(n, f)
    mean = plus.mean(dim=0)
    assert float(rule(rows) @ mean) == 0
    nearer = rows.clone()
    nearer[: n - f] += 0.01 * mean  # the same spread around a longer mean
    assert b2_of(nearer[: n - f]) < largest_heterogeneity(None, n, f)
    assert float(rule(nearer) @ mean) > 0


def test_buckets_promise_less_and_more_attackers_need_more() -> None:
    for f in (1, 2, 3):
        alone = largest_heterogeneity(bz.TrimmedMean(f=f), 25, f)
        behind = largest_heterogeneity(bz.Bucketing(s=2) >> bz.TrimmedMean(f=f), 25, f)
        assert 0 < behind < alone
    limits = [largest_heterogeneity(None, 25, f) for f in range(13)]
    assert limits[0] == math.inf
    assert limits == sorted(limits, reverse=True)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 25, 49, 1000])
def test_most_attackers_is_the_largest_f_below_the_limit(n: int) -> None:
    limits = [largest_heterogeneity(None, n, f) for f in range((n + 1) // 2)]
    for b2 in (0.0, 1e-300, 0.1, 1.0, 3.0, 28.0, 1e300, *limits[1:]):
        assert most_attackers(n, b2) == max(f for f, limit in enumerate(limits) if b2 < limit)
    assert most_attackers(n, math.inf) == 0
    for f, limit in enumerate(limits[1:], 1):  # at the limit itself nothing is promised
        assert most_attackers(n, limit) == f - 1


def test_bad_numbers_are_errors() -> None:
    with pytest.raises(bz.ByzantiumError, match="less than half"):
        largest_heterogeneity(None, 10, 5)
    with pytest.raises(bz.ByzantiumError, match="less than half"):
        largest_heterogeneity(bz.Median(), 10, 5)
    for n, b2 in ((0, 1.0), (25, -1.0), (25, math.nan)):
        with pytest.raises(bz.ByzantiumError, match="at least"):
            most_attackers(n, b2)


# -- the command --------------------------------------------------------------------------------


def check(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["check", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_check_says_what_b2_must_be_below() -> None:
    assert "descent is promised if B² < 3; no rule promises it unless B² < 3" in check(
        "TrimmedMean()", "--n", "25", "--f", "5"
    )
    assert "promised if B² < 3.06; no rule promises it unless B² < 6.33" in check(
        "Bucketing(2) >> TrimmedMean()", "--n", "25", "--f", "3"
    )
    assert "descent is not promised; no rule promises it unless B² < 6.33" in check(
        "Mean()", "--n", "25", "--f", "3", code=1
    )
    assert "however different" in check("Mean()", "--n", "25", "--f", "0")


def test_check_measures_b2_on_data() -> None:
    digits = ("--n", "25", "--f", "5", "--data", "digits", "--momentum", "0.9")
    hard = check("TrimmedMean()", *digits, "--partition", "by_label")
    assert "digits, by_label(), mlp, momentum 0.9, seed 0" in hard
    assert "5 of 25 need B² < 3; yours is " in hard
    assert "no rule that sees vectors alone promises descent here" in hard
    assert "the largest f for which any rule promises descent at this B² is 0" in hard
    easy = check("TrimmedMean()", *digits, "--partition", "iid")
    assert "TrimmedMean(f=5) promises descent here" in easy
    assert "some rule promises descent here, Krum(f=5) does not" in check(
        "Krum()", *digits, "--partition", "iid"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--momentum", "0.9"], "--momentum is for --data"),
        (["--data", "digets"], "did you mean 'digits'"),
        (["--data", "digits", "--model", "cnn"], "the model cnn is for images of 1 x 28 x 28"),
    ],
)
def test_check_needs_data_that_fit(arguments: list[str], sentence: str) -> None:
    assert sentence in check("Krum()", "--n", "25", "--f", "5", *arguments, code=2)


def test_the_limit_in_words() -> None:
    assert describe_limit(25, 5, {"": [28.0]}) == "5 of 25 need B² < 3; yours is 28"
    several = describe_limit(25, 1, {"a": [3.0, 28.0, 5.0], "b": [2.0]})
    assert several == "1 of 25 need B² < 23; yours is 3 to 28 (a), 2 (b)"


def test_a_recommendation_uses_b2_and_the_presence_of_root_data() -> None:
    """Below the limit what is promised counts; above it root data, if there are any."""
    limit = largest_heterogeneity(None, 25, 5)
    below, above = recommend(25, 5, b2=limit - 0.1), recommend(25, 5, b2=28)
    assert repr(below.pipeline) == "TrimmedMean(f=5)"
    assert "promises descent at B^2 = 2.9" in str(below)
    assert above.pipeline == recommend(25, 5).pipeline
    assert "no rule on the vectors alone promises descent at B^2 = 28" in str(above)
    for b2 in (28.0, limit, None):
        rooted = recommend(25, 5, b2=b2, root=True)
        assert repr(rooted.pipeline) == "RootMatching(f=5)"
    assert repr(recommend(25, 20, root=True).pipeline) == "RootMatching(f=20)"
    assert repr(recommend(25, 5, b2=1, root=True).pipeline) == "TrimmedMean(f=5)"
