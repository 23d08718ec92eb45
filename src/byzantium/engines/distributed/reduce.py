"""Robust all-reduce: each rank contributes a vector, and all get the same aggregate."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from byzantium.core import ArgumentTypeError, ByzantiumError, PositiveMeasure, type_name, validated
from byzantium.engines.distributed.ranks import TIMEOUT, Ranks
from byzantium.engines.distributed.shard import Shard
from byzantium.engines.distributed.team import UnusableVectors
from byzantium.guarantees import announce
from byzantium.rules import Aggregator, Report
from byzantium.rules.admission import check_sizes
from byzantium.vectors import Matrix, Source
from byzantium.vectors.points import row_norms
from byzantium.vectors.weights import with_weight

# How many weights a message lists.
MAX_LISTED = 16


def robust_all_reduce(
    vector: Tensor,
    rule: Aggregator,
    group: dist.ProcessGroup | None = None,
    generator: torch.Generator | None = None,
    *,
    out: Tensor | None = None,
    root: Tensor | None = None,
    weights: Sequence[float] | Tensor | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> Tensor:
    """Aggregate one vector from each rank by a robust rule; all ranks get the same result.

    All ranks of the group call it together, as the workers 0 to n - 1, each with a vector of the
    same length and dtype and with the same rule. It works like a fast all-reduce: each rank gets
    some columns of all vectors, the n x n sums over columns are added up, the rule decides, each
    rank combines its columns, and these are brought together. To aggregate models, give the
    difference to a model that all ranks have.

    It is for Byzantine vectors and correct ranks: bad data, broken memory, a worker that diverges.
    By default each rank trusts the others for the columns that they measure and combine, and the
    first rank for the decision. With `replicated` it trusts only the first rank, and only for
    random numbers. Neither protects against a rank that sends different messages to different
    ranks, or that does not answer.

    - `vector`: the vector of this rank, (d,), dense and of floats; it is not changed unless it
      is also `out`.
    - `rule`: the rule, with or without mixings before it; the same on all ranks.
    - `group`: the process group; by default all processes.
    - `generator`: the source of randomness of random mixings; that of the first rank counts.
    - `out`: a tensor for the result, of the shape and dtype of the vector. With the vector itself,
      no new memory is needed, as in `torch.distributed.all_reduce`.
    - `root`: the root gradient, (d,), for rules that need it, such as `RootMatching`; the same on
      all ranks, to the bit. Where one rank computes it, `torch.distributed.broadcast` brings it to
      the others.
    - `weights`: how much each rank counts: a number for each that you vouch for, such as the
      number of samples that it was given; the same on all ranks. By default all count the same.
    - `replicated`: whether every rank gets all vectors and aggregates them by itself, which takes
      n times the memory and almost n times the work.
    - `timeout`: how many seconds a rank waits for the others; then it raises `LostRankError`.

    Returns the aggregate, (d,), the same on all ranks to the bit.

    In a program that `torchrun` starts::

        import torch.distributed as dist
        from byzantium import Krum
        from byzantium.engines.distributed import robust_all_reduce

        dist.init_process_group("gloo")
        update = robust_all_reduce(gradient, Krum(f=1))
    """
    trusted = Trusted(root, weights)
    with _agreed_source(
        vector, rule, group, generator, trusted, replicated, timeout, out
    ) as shared:
        aggregate = _with_retry(rule, *shared, trusted)
    return aggregate if out is None or aggregate is out else out.copy_(aggregate)


def explain_all_reduce(
    vector: Tensor,
    rule: Aggregator,
    group: dist.ProcessGroup | None = None,
    generator: torch.Generator | None = None,
    *,
    root: Tensor | None = None,
    weights: Sequence[float] | Tensor | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> Report:
    """Aggregate like `robust_all_reduce`, and report how much each rank counted.

    The parameters are those of `robust_all_reduce`. Returns a `byzantium.Report`, the same on all
    ranks.
    """
    trusted = Trusted(root, weights)
    with _agreed_source(vector, rule, group, generator, trusted, replicated, timeout) as shared:
        return _with_retry(rule.explain, *shared, trusted)


class Trusted(NamedTuple):
    """What all ranks know and trust.

    - `root`: the root gradient, (d,).
    - `weights`: how much each rank counts.
    """

    root: Any
    weights: Any


def _with_retry(
    rule: Callable[..., Any],
    source: Source,
    generator: torch.Generator | None,
    trusted: Trusted,
) -> Any:
    """The result of a rule; it starts again where vectors turn out to be unusable on the way."""
    state = None if generator is None else generator.get_state()
    try:
        return rule(source, generator, root=trusted.root, weights=trusted.weights)
    except UnusableVectors:
        source.norms = row_norms(source)
        if generator is not None and state is not None:
            generator.set_state(state)
        return rule(source, generator, root=trusted.root, weights=trusted.weights)


@contextmanager
def _agreed_source(
    vector: Any,
    rule: Any,
    group: dist.ProcessGroup | None,
    generator: Any,
    trusted: Trusted,
    replicated: bool,
    timeout: float,
    out: Tensor | None = None,
) -> Iterator[tuple[Source, torch.Generator | None]]:
    """The vectors of all ranks, once all have agreed on what they are about to do.

    An error on one rank is raised on all: none is left waiting for it.
    """
    device = vector.device if isinstance(vector, Tensor) else torch.device("cpu")
    timeout = validated("robust_all_reduce", "timeout", timeout, PositiveMeasure)
    with Ranks(group, device, timeout) as ranks:
        usable = _is_vector(vector)
        root, weights = trusted
        view = _view(vector, rule, generator, trusted, replicated)
        if usable and out is not None and _describe(out) != _describe(vector):
            view["out"] = _describe(out)
        ranks.agree(view)
        if not isinstance(rule, Aggregator):
            raise ArgumentTypeError(f"rule must be an Aggregator, got {_describe(rule)}")
        if not usable:
            raise ByzantiumError(
                f"each rank brings one dense vector (d,) of floats, got {_describe(vector)}"
            )
        if not _fits(generator, replicated):
            raise ArgumentTypeError(
                "generator must be None or a torch.Generator, and with replicated=True one on the "
                f"CPU, got {_describe(generator)}"
            )
        if root is not None and (not _is_vector(root) or root.shape != vector.shape):
            raise ByzantiumError(
                f"the root gradient must be a dense vector of floats of the shape of each rank's, "
                f"{_describe(vector)}, got {_describe(root)}"
            )
        if "out" in view:
            raise ByzantiumError(
                f"out must be like the vector, {_describe(vector)}, got {view['out']}"
            )
        if weights is None:
            check_sizes(rule.stages, ranks.n)
        else:
            rows, vouched = with_weight(weights, ranks.n)
            check_sizes(rule.stages, len(rows), vouched)
        if ranks.rank == 0:
            announce(rule, ranks.n, weights=weights)
        if not replicated:
            yield Shard(vector.detach(), ranks, out), generator
            return
        replica = _leader_generator(ranks, generator)
        yield Matrix(ranks.all_gather(vector.detach().contiguous())), replica
        if generator is not None and ranks.rank == 0:
            generator.set_state(replica.get_state())


def _is_vector(vector: Any) -> bool:
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    dense = isinstance(vector, Tensor) and vector.layout == torch.strided
    return dense and vector.ndim == 1 and vector.dtype in floats


def _fits(generator: Any, replicated: bool) -> bool:
    if not isinstance(generator, torch.Generator):
        return generator is None
    return not replicated or generator.device.type == "cpu"


def _view(
    vector: Any, rule: Any, generator: Any, trusted: Trusted, replicated: bool
) -> dict[str, str]:
    """What all ranks must have in common, as texts."""
    root = trusted.root
    state = rule.state_dict() if isinstance(rule, Aggregator) else {}
    checksums = [f"{name} {_checksum(tensor)}" for name, tensor in state.items()]
    return {
        "rule": repr(rule) if isinstance(rule, Aggregator) else _describe(rule),
        "vector": _describe(vector),
        "generator": "fits" if _fits(generator, replicated) else _describe(generator),
        "replicated": str(replicated),
        "root": f"{_describe(root)} {_checksum(root)}" if _is_vector(root) else _describe(root),
        "weights": _describe_weights(trusted.weights),
        "state": ", ".join(checksums) or "none",
    }


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type_name(value)
    if value.layout != torch.strided:
        return f"{value.layout} of {value.dtype}"
    return f"{tuple(value.shape)} of {value.dtype}"


def _describe_weights(weights: Any) -> str:
    """A text that is the same for the same weights; of many, a digest."""
    try:
        numbers = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        return type_name(weights)
    if weights is None or numbers.ndim != 1:
        return _describe(weights)
    if len(numbers) > MAX_LISTED:
        return f"{len(numbers)} numbers {hashlib.sha256(numbers.tobytes()).hexdigest()[:16]}"
    return ", ".join(f"{number:.17g}" for number in numbers)


def _checksum(tensor: Tensor) -> str:
    """A text that almost surely differs for tensors that are not equal to the bit; read once."""
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return f"{tuple(tensor.shape)} {int(tensor.contiguous().view(whole).sum()):x}"


def _leader_generator(ranks: Ranks, generator: torch.Generator | None) -> torch.Generator:
    """A generator in the state of that of the first rank."""
    if generator is None:
        generator = torch.Generator().manual_seed(secrets.randbits(63))
    state = ranks.broadcast(generator.get_state().cpu().numpy())
    return torch.Generator().set_state(torch.from_numpy(state))
