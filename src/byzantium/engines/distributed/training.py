"""Robust gradients in a training loop: by hand, before each step, or inside DDP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from byzantium.aggregation import Aggregator
from byzantium.core import ByzantiumError
from byzantium.engines.distributed.ranks import TIMEOUT
from byzantium.engines.distributed.reduce import robust_all_reduce
from byzantium.learning import Momentum


def aggregate_gradients(
    parameters: Iterable[Tensor],
    rule: Aggregator,
    group: dist.ProcessGroup | None = None,
    generator: torch.Generator | None = None,
    *,
    momentum: Momentum | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Replace the gradients of this rank by the aggregate of those of all ranks.

    Between `loss.backward()` and `optimiser.step()`. The rule sees the gradient as one vector, the
    parameters one after the other; one without a gradient counts as zero. Parameters that are not
    trained are left out.

    momentum: of this worker, which sends it in the place of its gradient.

    The others: see `robust_all_reduce`.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    vector = _joined(trained, {id(p): p.grad for p in trained if p.grad is not None}, momentum)
    robust_all_reduce(
        vector, rule, group, generator, out=vector, replicated=replicated, timeout=timeout
    )
    for parameter, piece in zip(trained, _pieces(vector, trained), strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(piece)


def aggregate_before_step(
    optimiser: torch.optim.Optimizer, rule: Aggregator, *args: Any, **kwargs: Any
) -> RemovableHandle:
    """Have an optimiser aggregate gradients before each step: see `aggregate_gradients`.

    Returns a handle whose `remove()` ends it.
    """

    def before(optimiser: torch.optim.Optimizer, *_: Any) -> None:
        groups = optimiser.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        aggregate_gradients(parameters, rule, *args, **kwargs)

    return optimiser.register_step_pre_hook(before)


def aggregate_in_ddp(
    model: DistributedDataParallel,
    rule: Aggregator,
    generator: torch.Generator | None = None,
    *,
    momentum: Momentum | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Have a model in DistributedDataParallel aggregate by a rule instead of the mean.

    DDP hands over the gradient in buckets, and a rule that looks at distances, applied to each,
    would choose different workers for different parts of one gradient. So the buckets wait for
    the last one, and the rule sees the whole, in the order of the model's parameters.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    waiting: list[tuple[Any, torch.futures.Future[Tensor]]] = []

    def hook(_: object, bucket: Any) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        waiting.append((bucket, future))
        if not bucket.is_last():
            return future
        buckets = waiting.copy()
        waiting.clear()  # also where what follows fails
        gradients = {
            id(parameter): gradient
            for bucket, _ in buckets
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
        }
        vector = _joined(parameters, gradients, momentum)
        group = model.process_group
        robust_all_reduce(
            vector, rule, group, generator, out=vector, replicated=replicated, timeout=timeout
        )
        for parameter, piece in zip(parameters, _pieces(vector, parameters), strict=True):
            if id(parameter) in gradients:
                gradients[id(parameter)].copy_(piece)
        for bucket, waiter in buckets:
            # Of its own: DDP reads it after the buffer has been used for something else.
            waiter.set_result(bucket.buffer().clone())
        return future

    hook.__annotations__.clear()  # DDP compares them with classes, and here they are texts
    model.register_comm_hook(None, hook)


def _joined(
    parameters: Sequence[Tensor], gradients: Mapping[int, Tensor], momentum: Momentum | None
) -> Tensor:
    """What the worker sends, in memory of its own; in the widest dtype of the parameters."""
    if not parameters:
        raise ByzantiumError("there is no parameter that is trained, and no gradient to aggregate")
    dtype = parameters[0].dtype
    for parameter in parameters[1:]:
        dtype = torch.promote_types(dtype, parameter.dtype)
    vector = torch.zeros(
        sum(map(Tensor.numel, parameters)), dtype=dtype, device=parameters[0].device
    )
    for parameter, piece in zip(parameters, _pieces(vector, parameters), strict=True):
        gradient = gradients.get(id(parameter))
        if gradient is not None:
            piece.copy_(gradient.to_dense() if gradient.layout != torch.strided else gradient)
    return vector if momentum is None else momentum.update(vector)


def _pieces(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """A vector in the shapes of the parameters."""
    pieces = torch.split(vector, [parameter.numel() for parameter in parameters])
    return [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]
