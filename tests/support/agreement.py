"""Rules that must give the same result from different sources."""

from __future__ import annotations

import members
import torch
from torch import Tensor

import byzantium as bz
from byzantium.rules.kinds import CoordinateWise


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def agree(member: members.Rule, ours: Tensor, theirs: Tensor, scale: float = 1.0) -> None:
    """Bit by bit where nothing is summed in another order, else to 1e-12 in float64.

    - `scale`: the size of the vectors: a result may be shorter than what it is rounded with.
    """
    last = member.rule.stages[-1].expansion[-1]
    mixes = len(member.rule.stages) > 1
    exact = (isinstance(last, bz.Krum) and last.m == 1) or isinstance(last, CoordinateWise)
    if exact and not mixes:
        assert torch.equal(ours, theirs)
    else:
        tolerance = 1e-12 if theirs.dtype == torch.float64 else 4 * torch.finfo(theirs.dtype).eps
        scale = max(scale, float(theirs.double().abs().max()) if len(theirs) else 0.0)
        difference = (ours.double() - theirs.double()).abs()
        assert float(difference.max() if len(difference) else 0) <= tolerance * scale
