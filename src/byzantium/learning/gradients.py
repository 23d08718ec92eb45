"""The gradients of many workers, written straight into the rows of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from byzantium.core import ByzantiumError
from byzantium.learning.losses import Loss, cross_entropy
from byzantium.learning.models import trainable

# Layers that treat each sample by itself. Of these, Linear alone has parameters.
DENSE = {
    *(nn.Flatten, nn.Identity, nn.Linear, nn.LogSoftmax),
    *(nn.GELU, nn.LeakyReLU, nn.ReLU, nn.Sigmoid, nn.Tanh),
}
# Beyond this many parameters one worker fills the machine, and batching only costs memory.
LARGE = 1 << 20
# A round with so few parameters times samples takes a millisecond or two: threads would mostly wait
# for each other.
SMALL = 1 << 24


class WorkerGradients:
    """Computes matrix[i] <- keep * matrix[i] + share * (gradient of worker i) for some workers.

    With keep = beta and share = 1 - beta the matrix holds momenta, at no extra cost: `worker.py`.
    With several batches for each worker, it takes a step of plain SGD on each, and (start - end) /
    rate stands for the gradient: federated averaging.

    Small dense models (`nn.Sequential` of DENSE layers) are batched: one pass for all workers, and
    then each worker's gradient from what went into a layer and what came back to it. All others go
    worker by worker, and gradients accumulate in place. Which it is depends on the model alone.

    By default all workers compute their gradients at the parameters of the model. Where there is no
    server, each has parameters of its own: `models`, (n, d), in the order of the rows.
    """

    def __init__(self, model: nn.Module, loss: Loss = cross_entropy) -> None:
        self.model = model
        self.loss = loss
        self.parameters = trainable(model)
        self.d = sum(p.numel() for p in self.parameters.values())
        self.like = next(iter(self.parameters.values()))
        self.columns = columns_of(self.parameters)
        self.layers = list(_layers(model))
        self.batched = self.d <= LARGE and all(type(layer) in DENSE for layer in self.layers)

    def is_small(self, samples: int) -> bool:
        """Whether the gradients of so many samples are so little work that one thread is best."""
        return self.batched and samples * self.d <= SMALL

    def rows(self, n: int) -> Tensor:
        """(n, d), zeros, where the model is and of its dtype."""
        return torch.zeros(n, self.d, dtype=self.like.dtype, device=self.like.device)

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
        models: Tensor | None = None,
    ) -> Tensor:
        """(n,), the workers' losses on the first of their batches x (n, steps, b, ...), y likewise.

        Dropout of worker i draws from seeds[i]; without seeds, from torch's global generator.
        """
        for name, rows in (("matrix", matrix), ("models", models)):
            if rows is not None and rows.shape != (len(x), self.d):
                raise ByzantiumError(
                    f"the {name} must have shape {(len(x), self.d)}, a row for each worker and a "
                    f"column for each parameter, got {tuple(rows.shape)}"
                )
        # Not 0 * matrix: a row may hold anything, NaN included, before its first gradient.
        matrix.mul_(keep) if keep else matrix.zero_()
        if x.shape[1] == 1 and self.batched:
            return self._all_at_once(matrix, x[:, 0], y[:, 0], share, models)
        return self._one_by_one(matrix, x, y, rate, share, seeds, models)

    @torch.no_grad()
    def losses(self, x: Tensor, y: Tensor, seeds: Sequence[int]) -> Tensor:
        """(n,), the same losses as those of a call, without the gradients."""
        losses = torch.empty(len(x), dtype=self.like.dtype, device=x.device)
        with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
            for i, seed in enumerate(seeds):
                _seed(seed, x.device)
                losses[i] = self.loss(self.model(x[i, 0]), y[i, 0])
        return losses

    def _all_at_once(
        self, matrix: Tensor, x: Tensor, y: Tensor, share: float, models: Tensor | None
    ) -> Tensor:
        n, b = x.shape[:2]
        passed: list[tuple[nn.Linear, Tensor, Tensor]] = []
        outputs = x.flatten(0, 1)
        for layer in self.layers:
            inputs = outputs.detach()
            if models is not None and isinstance(layer, nn.Linear):
                outputs = self._linear(layer, outputs, models)
            else:
                outputs = layer(outputs)
            if isinstance(layer, nn.Linear) and outputs.requires_grad:
                passed.append((layer, inputs, outputs))
        outputs = outputs.view(n, b, *outputs.shape[1:])
        losses = self._losses(outputs, y)
        deltas = torch.autograd.grad(losses.sum(), [output for *_, output in passed])
        for (layer, inputs, _), delta in zip(passed, deltas, strict=True):
            delta = delta.reshape(n, -1, layer.out_features)
            if layer.weight in self.columns:
                rows = matrix[:, self.columns[layer.weight]].view(n, *layer.weight.shape)
                inputs = inputs.reshape(n, -1, layer.in_features)
                rows.baddbmm_(delta.transpose(1, 2), inputs, alpha=share)
            if layer.bias in self.columns:
                matrix[:, self.columns[layer.bias]].add_(delta.sum(dim=1), alpha=share)
        return losses.detach()

    def _linear(self, layer: nn.Linear, inputs: Tensor, models: Tensor) -> Tensor:
        """The outputs of a layer whose parameters are, for worker i, those in row i of `models`."""
        n = len(models)

        def of_all(parameter: Tensor) -> Tensor:
            """The parameter of each worker, (n, ...); a frozen one is the same for all."""
            if parameter not in self.columns:
                return parameter.expand(n, *parameter.shape)
            rows = models[:, self.columns[parameter]].view(n, *parameter.shape)
            return rows.detach().requires_grad_()  # so that there are deltas of its outputs

        by_worker = inputs.reshape(n, -1, layer.in_features)
        outputs = by_worker @ of_all(layer.weight).transpose(1, 2)
        if layer.bias is not None:
            outputs = outputs + of_all(layer.bias)[:, None]
        return outputs.view(*inputs.shape[:-1], layer.out_features)

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The mean loss of each worker, (n,), from outputs (n, b, ...) and labels (n, b)."""
        if self.loss is cross_entropy:
            each = nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="none")
            return each.view(y.shape).mean(dim=1)
        return torch.stack([self.loss(out, label) for out, label in zip(outputs, y, strict=True)])

    def _one_by_one(
        self,
        matrix: Tensor,
        x: Tensor,
        y: Tensor,
        rate: float,
        share: float,
        seeds: Sequence[int] | None,
        models: Tensor | None,
    ) -> Tensor:
        losses = torch.empty(len(x), dtype=self.like.dtype, device=x.device)
        before = [p.grad for p in self.parameters.values()]
        shared = None if models is None else vector_of(self.columns)
        work = self._backward if x.shape[1] == 1 else self._local_steps
        try:
            devices = [x.device] if x.is_cuda else []
            with torch.random.fork_rng(devices=devices, enabled=seeds is not None):
                for i, row in enumerate(matrix):
                    if seeds is not None:
                        _seed(seeds[i], x.device)
                    if models is not None:
                        set_parameters(self.columns, models[i])
                    losses[i] = work(row, x[i], y[i], rate, share)
        finally:
            if shared is not None:
                set_parameters(self.columns, shared)
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
            gradient = torch.zeros_like(row)
            self._accumulate_into(gradient)
            loss = self.loss(self.model(x[step]), y[step])
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for parameter in self.parameters.values():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=rate)
                row.add_(gradient, alpha=share)
            first = loss.detach() if step == 0 else first
        with torch.no_grad():
            for parameter, value in zip(self.parameters.values(), start, strict=True):
                parameter.copy_(value)
        return first

    def _accumulate_into(self, row: Tensor) -> None:
        """Make each parameter's gradient a view of its piece of the row."""
        for parameter, columns in self.columns.items():
            parameter.grad = shaped(row[columns], parameter)


@contextmanager
def one_thread(alone: bool) -> Iterator[None]:
    """If `alone`, let torch compute with one thread meanwhile."""
    before = torch.get_num_threads()
    if not alone or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def columns_of(parameters: Mapping[str, nn.Parameter]) -> dict[Tensor, slice]:
    """Which columns of a vector of dimension d are those of each parameter."""
    columns: dict[Tensor, slice] = {}
    start = 0
    for name, parameter in parameters.items():
        if torch.empty_like(parameter).stride() != parameter.stride():
            raise ByzantiumError(
                f"the parameter {name} has gaps in memory; contiguous() closes them"
            )
        columns[parameter] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return columns


def shaped(piece: Tensor, parameter: Tensor) -> Tensor:
    """A piece of a row in the shape of its parameter; its order is that of the parameter in memory.

    So a gradient lies in memory as its parameter does, which torch asks for.
    """
    return piece.as_strided(parameter.shape, parameter.stride())


@torch.no_grad()
def vector_of(columns: Mapping[Tensor, slice]) -> Tensor:
    """The parameters of a model, (d,), in the order of the vectors.

    - `columns`: which columns of a vector are those of each parameter.
    """
    first = next(iter(columns))
    d = sum(parameter.numel() for parameter in columns)
    vector = torch.empty(d, dtype=first.dtype, device=first.device)
    for parameter, own in columns.items():
        shaped(vector[own], parameter).copy_(parameter)
    return vector


@torch.no_grad()
def set_parameters(columns: Mapping[Tensor, slice], vector: Tensor) -> None:
    """Set the parameters of a model to those of a vector, (d,)."""
    for parameter, own in columns.items():
        parameter.copy_(shaped(vector[own], parameter))


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that a model applies one after the other; a model of another kind is one layer."""
    if type(model) is nn.Sequential:
        for part in model:
            yield from _layers(part)
    else:
        yield model


def _seed(seed: int, device: torch.device) -> None:
    """Seed the generator that dropout on this device draws from.

    Where CUDA is not in use, `torch.manual_seed` stores the formatted stack for it each time, which
    takes hundreds of times longer than to seed the generator.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
