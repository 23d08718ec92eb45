"""State is kept apart: no part of repr, eq and hash; saved, loaded, reset, copied, never shared."""

from __future__ import annotations

import copy
import pickle

import inputs
import members
import pytest
import torch
from members import EVERYTHING, N

import byzantium as bz


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_calls_explanations_copies_and_restored_state_agree(member: members.Rule) -> None:
    first, second = inputs.heterogeneous(N), inputs.gaussian(N)
    rule, fresh = member.fresh(), member.fresh()
    rule(first, seeded())
    assert rule == fresh
    assert hash(rule) == hash(fresh)
    assert repr(rule) == repr(fresh)
    twin, restored, pickled = copy.deepcopy(rule), member.fresh(), pickle.loads(pickle.dumps(rule))
    restored.load_state_dict(rule.state_dict())
    explained = member.fresh()
    explained.explain(first, seeded())

    expected = rule(second, seeded())
    for other in (twin, restored, pickled, explained):
        assert torch.equal(other(second, seeded()), expected)
    rule.reset()
    assert torch.equal(rule(first, seeded()), fresh(first, seeded()))


def test_centred_clipping_goes_on_from_its_last_result() -> None:
    X = inputs.gaussian(7) + 5
    rule, by_hand = bz.CenteredClipping(radius=1.0), torch.zeros(7).double()
    for _ in range(6):
        differences = X - by_hand
        scale = (1.0 / differences.norm(dim=1)).clamp_max(1)
        by_hand = by_hand + (scale[:, None] * differences).mean(dim=0)
        assert torch.allclose(rule(X), by_hand, atol=1e-12)


def test_what_is_handed_out_is_not_the_state() -> None:
    rule = bz.CenteredClipping(radius=1.0)
    X = inputs.gaussian(7)
    rule(X).zero_()
    rule.state_dict()["center"].zero_()
    twin = copy.deepcopy(rule)
    twin(X)
    expected = bz.CenteredClipping(radius=1.0)
    expected(X)
    assert torch.equal(rule(X), expected(X))


def test_foreign_state_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Krum\(f=1\) has no state, got center"):
        bz.Krum(f=1).load_state_dict({"center": torch.ones(3)})
    with pytest.raises(ValueError, match="has only the state 'center', got momentum"):
        bz.CenteredClipping(radius=1.0).load_state_dict({"momentum": torch.ones(3)})


def test_parameters_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        bz.Krum(f=1).f = 2  # type: ignore[misc]


def test_a_state_of_0_2_is_read() -> None:
    rule = bz.CenteredClipping(radius=1.0)
    rule.load_state_dict({"centre": torch.ones(3)})
    assert rule.state_dict()["center"].tolist() == [1, 1, 1]
