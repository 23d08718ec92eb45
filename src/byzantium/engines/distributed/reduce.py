"""Robust all-reduce: each rank brings a vector, and each gets the same aggregate."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byzantium.aggregation import Aggregator, Matrix, Report, Source, check_sizes, row_norms
from byzantium.core import ByzantiumError, KindError, PositiveMeasure, fitted
from byzantium.engines.distributed.ranks import TIMEOUT, Ranks
from byzantium.engines.distributed.shard import Shard
from byzantium.guarantees import announce


def robust_all_reduce(
    vector: Tensor,
    rule: Aggregator,
    group: dist.ProcessGroup | None = None,
    generator: torch.Generator | None = None,
    *,
    out: Tensor | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> Tensor:
    """Aggregate one vector from each rank into one, which all ranks get, to the bit.

    All ranks of the group call it with a vector of the same length and dtype and the same rule,
    and take part as the workers 0 to n - 1. It works like a fast all-reduce: each rank gets some of
    the columns of all vectors, their n x n sums are added up, the rule decides, each rank combines
    its columns, and these are brought together. The vector itself is not changed, unless it is out.
    There is no base: where models are to be aggregated, bring what they differ by from the last.

    out:        where to write the aggregate, of the vector's shape and dtype. In the vector itself
                it takes no new memory, as with `torch.distributed.all_reduce`.
    generator:  random mixings draw from that of the first rank.
    replicated: each rank gets all vectors and aggregates them by itself, which takes n times the
                memory and most of n times the work.
    timeout:    seconds for which a rank waits for the others.

    This is for vectors that may be anything and ranks that do what they are told: bad data, broken
    memory, a diverging worker. Divided, each rank trusts the others for the columns they combine
    and the norms they send, and the first one for the decision. Replicated, it trusts the first one
    to draw at random where the rule draws, and no other for anything. Neither protects
    against a rank that lies in the collective itself, telling some ranks one thing and others
    another, or that stays away.
    """
    with _met(vector, rule, group, generator, replicated, timeout, out) as (source, drawn):
        aggregate = rule(source, drawn)
    return aggregate if out is None or aggregate is out else out.copy_(aggregate)


def explain_all_reduce(
    vector: Tensor,
    rule: Aggregator,
    group: dist.ProcessGroup | None = None,
    generator: torch.Generator | None = None,
    *,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> Report:
    """The same, with a report of how much each rank counted, which all ranks get."""
    with _met(vector, rule, group, generator, replicated, timeout) as (source, drawn):
        return rule.explain(source, drawn)


@contextmanager
def _met(
    vector: Any,
    rule: Any,
    group: dist.ProcessGroup | None,
    generator: Any,
    replicated: bool,
    timeout: float,
    out: Tensor | None = None,
) -> Iterator[tuple[Source, torch.Generator | None]]:
    """The vectors of all ranks, once all have agreed on what they are about to do.

    What is wrong on one rank is told on all: none is left waiting for it.
    """
    device = vector.device if isinstance(vector, Tensor) else torch.device("cpu")
    timeout = fitted("robust_all_reduce", "timeout", timeout, PositiveMeasure)
    ranks = Ranks(group, device, timeout)
    usable = _is_vector(vector)
    norm = float(row_norms(Matrix(vector.detach()[None]))[0]) if usable else 0.0
    view = _view(vector, rule, generator, replicated)
    if usable and out is not None and _kind(out) != _kind(vector):
        view["out"] = _kind(out)
    norms = ranks.agree(view, norm)
    if not isinstance(rule, Aggregator):
        raise KindError(f"rule must be an Aggregator, got {_kind(rule)}")
    if not usable:
        raise ByzantiumError(
            f"each rank brings one dense vector (d,) of floats, got {_kind(vector)}"
        )
    if not _fits(generator, replicated):
        raise KindError(
            "generator must be a torch.Generator or None, and one of the CPU where each rank draws "
            f"by itself, got {_kind(generator)}"
        )
    if "out" in view:
        raise ByzantiumError(f"out must be like the vector, {_kind(vector)}, got {_kind(out)}")
    check_sizes(rule.stages, ranks.n)
    if ranks.rank == 0:
        announce(rule, ranks.n)
    if not replicated:
        yield Shard(vector.detach(), ranks, norms, out), generator
        return
    drawn = _of_first(ranks, generator)
    yield Matrix(ranks.gathered(vector.detach().contiguous())), drawn
    if generator is not None and ranks.rank == 0:
        generator.set_state(drawn.get_state())


def _is_vector(vector: Any) -> bool:
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    dense = isinstance(vector, Tensor) and vector.layout == torch.strided
    return dense and vector.ndim == 1 and vector.dtype in floats


def _fits(generator: Any, replicated: bool) -> bool:
    if not isinstance(generator, torch.Generator):
        return generator is None
    return not replicated or generator.device.type == "cpu"


def _view(vector: Any, rule: Any, generator: Any, replicated: bool) -> dict[str, str]:
    """What all ranks must have in common, in words."""
    state = rule.state_dict() if isinstance(rule, Aggregator) else {}
    return {
        "rule": repr(rule) if isinstance(rule, Aggregator) else _kind(rule),
        "vector": _kind(vector),
        "generator": "fits" if _fits(generator, replicated) else _kind(generator),
        "replicated": str(replicated),
        "state": ", ".join(f"{name} {_mark(tensor)}" for name, tensor in state.items()) or "none",
    }


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if value.layout != torch.strided:
        return f"{value.layout} of {value.dtype}"
    return f"{tuple(value.shape)} of {value.dtype}"


def _mark(tensor: Tensor) -> str:
    """Tells tensors apart that are not equal to the bit, all but surely, in one quick reading."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return f"{tuple(tensor.shape)} {int(tensor.contiguous().view(whole).sum()):x}"


def _of_first(ranks: Ranks, generator: torch.Generator | None) -> torch.Generator:
    """A generator that draws what that of the first rank would draw."""
    if generator is None:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
    return torch.Generator().set_state(ranks.from_first(generator.get_state()).cpu())
