"""The gradients of many workers, written straight into the rows of a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional

from byzantium.learning.models import trainable

Loss = Callable[[Tensor, Tensor], Tensor]

# Layers that are a few dense products: many workers fit into one batched product of each.
DENSE = (
    nn.Flatten,
    nn.GELU,
    nn.Identity,
    nn.LayerNorm,
    nn.LeakyReLU,
    nn.Linear,
    nn.LogSoftmax,
    nn.ReLU,
    nn.Sigmoid,
    nn.Tanh,
)
# Beyond this many parameters one worker fills the machine, and batching only costs memory.
LARGE = 1 << 20


class WorkerGradients:
    """Computes matrix[i] <- keep * matrix[i] + share * (gradient of worker i) for some workers.

    With keep = beta and share = 1 - beta the matrix holds the workers' momenta, at no extra cost.
    With several batches for each worker, it takes a step of plain SGD on each, and (start - end) /
    rate stands for the gradient: federated averaging.

    Small dense models are batched over the workers; all others, and those that draw random numbers,
    go worker by worker, and gradients accumulate in place. Which it is depends on the model alone.
    """

    def __init__(self, model: nn.Module, loss: Loss = functional.cross_entropy) -> None:
        self.model = model
        self.loss = loss
        self.parameters = trainable(model)
        self.d = sum(p.numel() for p in self.parameters.values())
        layers = [module for module in model.modules() if not list(module.children())]
        self.batched = all(isinstance(layer, DENSE) for layer in layers) and self.d <= LARGE

    def __call__(
        self,
        matrix: Tensor,
        x: Tensor,
        y: Tensor,
        *,
        rate: float = 1.0,
        keep: float = 0.0,
        share: float = 1.0,
        seeds: Sequence[int] | None = None,
    ) -> Tensor:
        """(n,), the workers' losses on the first of their batches x (n, steps, b, ...), y likewise.

        Dropout of worker i draws from seeds[i]; without seeds, from torch's global generator.
        """
        if matrix.shape != (len(x), self.d):
            raise ValueError(
                f"the matrix must have shape {(len(x), self.d)}, a row for each worker and a "
                f"column for each parameter, got {tuple(matrix.shape)}"
            )
        # Not 0 * matrix: a row may hold anything, NaN included, before its first gradient.
        matrix.mul_(keep) if keep else matrix.zero_()
        if x.shape[1] == 1 and self.batched:
            return self._all_at_once(matrix, x[:, 0], y[:, 0], share)
        return self._one_by_one(matrix, x, y, rate, share, seeds)

    def _all_at_once(self, matrix: Tensor, x: Tensor, y: Tensor, share: float) -> Tensor:
        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self.loss(functional_call(self.model, parameters, (x,)), y)

        parameters = {name: p.detach() for name, p in self.parameters.items()}
        compute: Any = vmap(grad_and_value(loss), in_dims=(None, 0, 0))
        gradients, losses = compute(parameters, x, y)
        start = 0
        for name, parameter in self.parameters.items():
            columns = matrix[:, start : start + parameter.numel()]
            columns.add_(gradients[name].reshape(len(x), -1), alpha=share)
            start += parameter.numel()
        return losses.detach()

    def _one_by_one(
        self,
        matrix: Tensor,
        x: Tensor,
        y: Tensor,
        rate: float,
        share: float,
        seeds: Sequence[int] | None,
    ) -> Tensor:
        losses = torch.empty(len(x), device=x.device)
        before = [p.grad for p in self.parameters.values()]
        work = self._backward if x.shape[1] == 1 else self._local_steps
        try:
            with torch.random.fork_rng(devices=[], enabled=seeds is not None):
                for i, row in enumerate(matrix):
                    if seeds is not None:
                        torch.manual_seed(seeds[i])
                    losses[i] = work(row, x[i], y[i], rate, share)
        finally:
            for parameter, gradient in zip(self.parameters.values(), before, strict=True):
                parameter.grad = gradient
        return losses

    def _backward(self, row: Tensor, x: Tensor, y: Tensor, rate: float, share: float) -> Tensor:
        self._accumulate_into(row)
        loss = self.loss(self.model(x[0]), y[0])
        (share * loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _local_steps(self, row: Tensor, x: Tensor, y: Tensor, rate: float, share: float) -> Tensor:
        """Every gradient of a step counts alike: start - end = rate * their sum."""
        start = [p.detach().clone() for p in self.parameters.values()]
        first = torch.zeros(())
        for step in range(len(x)):
            self._accumulate_into(torch.zeros_like(row))
            loss = self.loss(self.model(x[step]), y[step])
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                pieces = []
                for parameter in self.parameters.values():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=rate)
                    pieces.append(parameter.grad.flatten())
                row.add_(torch.cat(pieces), alpha=share)
            first = loss.detach() if step == 0 else first
        with torch.no_grad():
            for parameter, value in zip(self.parameters.values(), start, strict=True):
                parameter.copy_(value)
        return first

    def _accumulate_into(self, row: Tensor) -> None:
        """Make each parameter's gradient a view of its piece of the row."""
        start = 0
        for parameter in self.parameters.values():
            piece = row[start : start + parameter.numel()]
            parameter.grad = piece.view(parameter.shape)
            start += parameter.numel()
