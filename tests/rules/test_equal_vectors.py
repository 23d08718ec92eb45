"""Where all vectors are equal, that is the result, to the bit."""

from __future__ import annotations

import inputs
import members
import pytest
import torch
from members import EVERYTHING, F, N

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def no_point_beside(member: members.Rule) -> bool:
    """A centre or the origin has a weight of its own: not all that is averaged is equal."""
    return not any(step.needs_origin for stage in member.rule.stages for step in stage.expansion)


MEMBERS = [
    member
    for member in EVERYTHING
    if no_point_beside(member) and "unanimity" not in member.fails  # votes have a length of theirs
]


def test_many_members_have_no_point_beside_the_vectors() -> None:
    assert len(EVERYTHING) / 3 < len(MEMBERS) < len(EVERYTHING)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e4])
@pytest.mark.parametrize("member", MEMBERS, ids=members.name)
def test_what_all_say_is_the_result_to_the_bit(
    member: members.Rule, scale: float, dtype: torch.dtype
) -> None:
    row = (scale * inputs.gaussian(1, 300)).to(dtype)
    for n in (N, 4 * F + 17, 40):
        result = member.fresh()(row.expand(n, -1), torch.Generator().manual_seed(n))
        assert torch.equal(result, row[0]), n
