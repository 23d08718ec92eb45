"""Robust gradients in a training loop: by hand, before each optimizer step, or inside DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from byzantium.core import ByzantiumError
from byzantium.core.options import FORMER_SPELLINGS, renamed
from byzantium.engines.distributed.ranks import TIMEOUT
from byzantium.engines.distributed.reduce import robust_all_reduce
from byzantium.learning import Momentum
from byzantium.rules import Aggregator

Root = Tensor | Callable[[], Tensor]


def aggregate_gradients(
    parameters: Iterable[Tensor],
    rule: Aggregator,
    group: dist.ProcessGroup | None = None,
    generator: torch.Generator | None = None,
    *,
    momentum: Momentum | None = None,
    root: Root | None = None,
    weights: Sequence[float] | Tensor | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Replace the gradients of this rank by the robust aggregate of those of all ranks.

    All ranks call it between `loss.backward()` and `optimizer.step()`. The rule sees the gradient
    of a rank as one vector, the parameters one after the other; a parameter without a gradient
    counts as zero, and parameters that are not trained are omitted.

    - `parameters`: the parameters of the model, such as `model.parameters()`.
    - `momentum`: the momentum of this worker, which it then sends instead of its gradient.
    - `root`: the root gradient, (d,), for rules that need it: that of the trained parameters, one
      after the other, the same on all ranks to the bit. Or a function that returns it, which is
      called before each aggregation: `lambda: root_gradient(model, loader)`.

    The other parameters are those of `robust_all_reduce`.

    A training loop is changed by one line::

        loss.backward()
        aggregate_gradients(model.parameters(), Krum(f=1))
        optimizer.step()
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = {id(p): p.grad for p in trained if p.grad is not None}
    options: dict[str, Any] = {"weights": weights, "replicated": replicated, "timeout": timeout}
    shared = momentum, root, rule, group, generator
    pieces = _aggregated(trained, gradients, *shared, **options)
    for parameter, piece in zip(trained, pieces, strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(piece)


@renamed(**FORMER_SPELLINGS)
def aggregate_before_step(
    optimizer: torch.optim.Optimizer, rule: Aggregator, *args: Any, **kwargs: Any
) -> RemovableHandle:
    """Make an optimizer aggregate the gradients of all ranks before each of its steps.

    - `rule`: the rule, with or without mixings before it; the same on all ranks.
    - `args`, `kwargs`: further arguments of `aggregate_gradients`.

    Returns a handle, whose method `remove` undoes this.

    The training loop stays unchanged; before it, write::

        aggregate_before_step(optimizer, Krum(f=1))
    """

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        aggregate_gradients(parameters, rule, *args, **kwargs)

    return optimizer.register_step_pre_hook(before)


def aggregate_in_ddp(
    model: DistributedDataParallel,
    rule: Aggregator,
    generator: torch.Generator | None = None,
    *,
    momentum: Momentum | None = None,
    root: Root | None = None,
    weights: Sequence[float] | Tensor | None = None,
    replicated: bool = False,
    timeout: float = TIMEOUT,
) -> None:
    """Make DistributedDataParallel (DDP) of torch aggregate gradients by a rule, not by the mean.

    DDP hands over a gradient in pieces. A rule that looks at distances could choose different
    workers for different pieces, so all pieces are collected first, and the rule sees the whole
    gradient, in the order of the model's parameters.

    - `model`: the model in DDP, whose process group is used.

    The other parameters are those of `aggregate_gradients`.

    The training loop stays unchanged; before it, write::

        model = DistributedDataParallel(model)
        aggregate_in_ddp(model, Krum(f=1))
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    waiting: list[tuple[Any, torch.futures.Future[Tensor]]] = []
    options: dict[str, Any] = {"weights": weights, "replicated": replicated, "timeout": timeout}

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
        shared = momentum, root, rule, model.process_group, generator
        pieces = _aggregated(parameters, gradients, *shared, **options)
        for parameter, piece in zip(parameters, pieces, strict=True):
            if id(parameter) in gradients:
                gradients[id(parameter)].copy_(piece)
        for bucket, waiter in buckets:
            # A copy: DDP reads it after the buffer has been used for something else.
            waiter.set_result(bucket.buffer().clone())
        return future

    hook.__annotations__.clear()  # DDP compares them with classes, but here they are strings
    model.register_comm_hook(None, hook)


def _aggregated(
    parameters: Sequence[Tensor],
    gradients: Mapping[int, Tensor],
    momentum: Momentum | None,
    root: Root | None,
    *arguments: Any,
    **options: Any,
) -> list[Tensor]:
    """The aggregate of the gradients of all ranks, in the shapes of the parameters."""
    vector = _joined(parameters, gradients, momentum)
    trusted = root() if callable(root) else root
    robust_all_reduce(vector, *arguments, out=vector, root=trusted, **options)
    return _pieces(vector, parameters)


def _joined(
    parameters: Sequence[Tensor], gradients: Mapping[int, Tensor], momentum: Momentum | None
) -> Tensor:
    """The vector that the worker sends, a copy in the widest dtype of the parameters."""
    if not parameters:
        raise ByzantiumError("there is no parameter to train, so there is no gradient to aggregate")
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
