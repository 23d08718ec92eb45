"""Groups of workers that compute the same, and vote: exact where most of each group is honest."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import reference_related
import torch
from torch import Tensor, nn

import byzantium as bz
from byzantium import related
from byzantium.data import by_label, load
from byzantium.learning import Settings, Simulation, mlp

GROUPS, R, D = 8, 3, 5000


def sent(dtype: torch.dtype = torch.float32, groups: int = GROUPS, r: int = R) -> Tensor:
    """What honest workers send: worker i what its group i mod `groups` computed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(groups, D, generator=generator, dtype=dtype).repeat(r, 1)


def attacked(X: Tensor, seed: int, groups: int = GROUPS, r: int = R) -> Tensor:
    """The same with as many attackers in each group as it can bear, at places drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    X = X.clone()
    for g in range(groups):
        for k in torch.randperm(r, generator=generator)[: (r - 1) // 2].tolist():
            X[g + k * groups] = 1e3 * torch.randn(D, generator=generator)
    return X


PIPELINES = [
    bz.Mean(),
    bz.Bucketing(s=2) >> bz.Median(),
    bz.Bucketing(s=2) >> bz.Krum(f=0),
    bz.GeometricMedian(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rule", PIPELINES, ids=repr)
def test_a_minority_in_each_group_changes_no_bit(rule: bz.Aggregator, dtype: torch.dtype) -> None:
    for groups, r in ((8, 3), (5, 5), (7, 4)):
        X = sent(dtype, groups, r)
        pipeline = related.MajorityVote(r=r) >> rule
        clean = pipeline(X, torch.Generator().manual_seed(1))
        torch.testing.assert_close(clean, rule(X[:groups], torch.Generator().manual_seed(1)))
        for seed in range(4):
            result = pipeline(attacked(X, seed, groups, r), torch.Generator().manual_seed(1))
            assert torch.equal(result, clean)


def test_the_form_of_the_vectors_does_not_matter() -> None:
    X = attacked(sent(), 1)
    rule = related.MajorityVote(r=R) >> bz.Mean()
    dicts = [{"b": row[:10], "w": row[10:]} for row in X]
    assert torch.equal(torch.cat(list(rule(dicts).values())), rule(X))


@pytest.mark.parametrize("other", ["a bit", "the sign of zero"])
def test_nearly_equal_is_not_equal(other: str) -> None:
    X = sent()
    X[:, 7] = 0
    wrong = X[0].clone()
    if other == "a bit":
        wrong[9] = torch.nextafter(wrong[9], torch.tensor(torch.inf))
    else:
        wrong[7] = -0.0
    X[0] = wrong
    mixed = related.MajorityVote(r=R)(X)
    assert (
        mixed.numpy().tobytes()
        == sent().index_fill(1, torch.tensor(7), 0)[:GROUPS].numpy().tobytes()
    )


@pytest.mark.parametrize("r", [1, 2, 3, 4])
def test_votes_are_those_of_the_definition(r: int) -> None:
    generator = torch.Generator().manual_seed(r)
    for _ in range(30):
        X = torch.randint(2, (12, 2), generator=generator).double()
        expected = reference_related.majority_vote(X.numpy(), r)
        np.testing.assert_array_equal(related.MajorityVote(r=r)(X).numpy(), expected)


def test_unusable_vectors_do_not_shift_the_groups() -> None:
    X = sent()
    X[3] = torch.nan  # of group 3
    X[8 + 5] = torch.inf  # of group 5
    rule = related.MajorityVote(r=R) >> bz.Mean()
    report = rule.explain(X)
    assert report.rejected == (3, 13)
    assert torch.equal(report.aggregate, rule(sent()))
    assert report.mixing.shape == (GROUPS, GROUPS * R)


def test_a_group_of_unusable_vectors_says_nothing() -> None:
    X = sent()
    X[2::GROUPS] = torch.nan
    rest = [g for g in range(GROUPS) if g != 2]
    result = (related.MajorityVote(r=R) >> bz.Mean())(X)
    torch.testing.assert_close(result, X[rest].mean(dim=0))


def test_a_note_says_where_workers_do_not_compute_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    X = torch.randn(24, 10, generator=torch.Generator().manual_seed(1))
    report = (related.MajorityVote(r=3) >> bz.Mean()).explain(X)
    (note,) = report.notes
    assert "no majority in 8 of 8 groups; do its workers compute the same (redundancy=3)?" in note
    assert caplog.records[-1].levelno == logging.WARNING


def test_how_many_votes_can_be_bad() -> None:
    """r/2 Byzantine workers, rounded up, decide a group."""
    for r, f, bad in ((3, 1, 0), (3, 2, 1), (3, 5, 2), (2, 1, 1), (4, 3, 1), (5, 8, 2)):
        assert related.MajorityVote(r=r).bad_outputs(f) == bad


@pytest.mark.parametrize("rule", [bz.Median(), bz.TrimmedMean(f=1), bz.Krum(f=1)], ids=repr)
def test_a_captured_group_is_one_bad_vector_for_the_rule_that_follows(rule: bz.Aggregator) -> None:
    """So the error of DETOX is at most that of the inner rule."""
    X, lie = sent(), torch.full((D,), -7.0)
    X[[0, GROUPS]] = lie  # two of the three of group 0
    result = (related.MajorityVote(r=R) >> rule)(X)
    votes = sent()[:GROUPS]
    votes[0] = lie
    torch.testing.assert_close(result, rule(votes))
    assert not torch.equal(result, rule(sent()[:GROUPS]))


def test_the_number_of_workers_must_be_a_multiple() -> None:
    with pytest.raises(bz.ByzantiumError, match="25 is no multiple"):
        (related.MajorityVote(r=3) >> bz.Mean())(torch.zeros(25, 2))


# -- in trainings ---------------------------------------------------------------------------------


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Dropout(0.3), nn.Linear(20, 10))


def trained(make: str, attackers: int, attack: bz.Attack, **options: object) -> dict[str, Tensor]:
    settings = Settings(
        **{"n": 15, "attackers": attackers, "rounds": 12, "record": (), **options}  # type: ignore[arg-type]
    )
    torch.manual_seed(0)
    network = model() if make == "dropout" else mlp((1, 8, 8))
    rule = related.MajorityVote(r=settings.redundancy) >> bz.Mean()
    training = Simulation(settings, load("digits"), network, rule, attack, by_label())
    for _ in training:
        pass
    assert training.history.status == "completed"
    return network.state_dict()


@pytest.mark.parametrize("make", ["mlp", "dropout"])
@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"local_steps": 2}], ids=str)
def test_a_training_under_attack_is_the_one_without_to_the_bit(
    make: str, options: dict[str, object]
) -> None:
    """One of three in each of five groups attacks."""
    expected = trained(make, 0, bz.NoAttack(), redundancy=3, **options)
    for attack in (bz.BitFlip(), bz.InnerProduct(epsilon=10), bz.NonFinite()):
        result = trained(make, 5, attack, redundancy=3, **options)
        assert all(torch.equal(result[name], value) for name, value in expected.items()), attack


def test_workers_of_a_group_send_the_same_and_groups_do_not() -> None:
    settings = Settings(n=12, attackers=2, rounds=3, momentum=0.9, redundancy=3, record=())
    training = Simulation(settings, load("digits"), model(), bz.Mean())
    for _ in training:
        honest = training.sent[:10]
        for i in range(10):
            for j in range(10):
                assert torch.equal(honest[i], honest[j]) == (i % 4 == j % 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 25}, "multiple of redundancy, .* got n=25, redundancy=3"),
        (
            {"n": 24, "participants": 12},
            "redundancy=3 needs participants=None, got participants=12",
        ),
        ({"n": 24, "weights": "sizes"}, "redundancy=3 needs weights=.equal., got"),
    ],
    ids=str,
)
def test_errors(options: dict[str, object], message: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=message):
        Settings(redundancy=3, **options)  # type: ignore[arg-type]
