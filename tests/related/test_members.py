"""The laws of rules, for every system of related work: which hold, and which do not."""

from __future__ import annotations

import members
import pytest
import torch

import byzantium as bz
from byzantium import guarantees, related
from byzantium.rules import notation
from byzantium.runs import builders
from byzantium.testing import check_mixing, check_rule

EVERY = [*members.RELATED, members.BLOCKS, members.TRIALS]


@pytest.mark.parametrize("member", EVERY, ids=members.name)
def test_laws(member: members.Rule) -> None:
    breaks = {*member.fails, *([] if member.robust else ["robustness"])}
    check_rule(member.fresh(), breaks=breaks)


BROKEN = [
    pytest.param(member, law, id=f"{members.name(member)} {law}")
    for member in EVERY
    for law in sorted(member.fails)
    if not isinstance(member.rule, related.LargestCluster)  # translation: in test_subsets.py
]


@pytest.mark.parametrize(("member", "law"), BROKEN)
def test_an_exception_is_one(member: members.Rule, law: str) -> None:
    with pytest.raises(AssertionError, match=f"breaks '{law}'"):
        check_rule(member.fresh(), breaks={*member.fails, "robustness"} - {law})


def test_the_mixing_obeys_the_laws() -> None:
    check_mixing(members.VOTE.mixing, n=24)


@pytest.mark.parametrize("member", EVERY, ids=members.name)
def test_nothing_is_promised(member: members.Rule) -> None:
    promise = guarantees.guarantee(member.rule, n=members.N, f=members.F)
    assert not promise.covered
    assert promise.kappa is None


@pytest.mark.parametrize("name", [name for name in related.__all__ if name[0].isupper()])
def test_the_notation_knows_the_name(name: str) -> None:
    known = notation.members() | builders.worker_methods()
    assert known[name] is getattr(related, name)


@pytest.mark.parametrize("member", EVERY, ids=members.name)
def test_a_rule_by_its_text_is_the_same_rule(member: members.Rule) -> None:
    assert bz.parse_rule(repr(member.rule)) == member.rule


def test_a_vote_has_the_sign_of_the_median_of_an_odd_number() -> None:
    X = torch.randn(23, 400, generator=torch.Generator().manual_seed(1))
    assert torch.equal(related.SignVote()(X), bz.Median()(X).sign())


def test_a_vote_does_not_depend_on_lengths() -> None:
    generator = torch.Generator().manual_seed(1)
    X, lengths = torch.randn(24, 60, generator=generator), torch.rand(24, 1, generator=generator)
    assert torch.equal(related.SignVote()(1e6 * lengths * X), related.SignVote()(X))


def test_votes_descend_while_a_minority_flips_its_signs() -> None:
    """On a quadratic, with noise that is symmetric and unimodal: Theorem 2 of the paper."""
    generator = torch.Generator().manual_seed(2)
    x, rule = 3 * torch.ones(40), related.SignVote(size=0.01)
    for _ in range(400):
        gradients = x + torch.randn(25, 40, generator=generator)
        gradients[-10:] *= -1
        x = x - rule(gradients)
    assert float(x.norm()) < 0.1 * float((3 * torch.ones(40)).norm())


def test_the_report_says_how_often_a_worker_was_in_the_majority() -> None:
    X = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    report = related.SignVote().explain(X)
    assert report.aggregate.tolist() == [1.0, 0.0]
    assert report.weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
