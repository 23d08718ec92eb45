"""The root gradient or update of data that a server holds: for training loops and engines."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from byzantium.core import ArgumentTypeError, ByzantiumError, Positive, Seed, type_name, validated
from byzantium.learning import optimizers
from byzantium.learning.losses import Loss, cross_entropy
from byzantium.learning.server import MakeOptimizer
from byzantium.learning.worker import Momentum

# How many missing classes a warning names.
MAX_LISTED = 10


@torch.enable_grad()
def root_gradient(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Loss = cross_entropy,
    *,
    classes: int | None = None,
) -> Tensor:
    """The gradient of root data, for workers that send gradients: `rule(updates, root=...)`.

    It is the gradient of the mean loss over all batches, in training mode. The model itself stays
    as it is: its parameters, gradients, statistics and mode. If workers send their momentum, so
    must the root: give what this returns to the `update` of a `Momentum` of its own.

    - `loader`: the root data: a DataLoader, or batches of pairs (inputs, targets) that can be read
      in every round.
    - `loss`: a function of the outputs and the targets of a batch, whose mean it returns.
    - `classes`: how many classes there are; by default the largest label and one more. A warning
      names the classes that the root data lack.

    Returns a vector (d,): all parameters that are trained, in the order of `model.parameters()`.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> batches = [(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[1.0], [1.0]]))]
    >>> root_gradient(model, batches, nn.functional.mse_loss)
    tensor([-1., -2.])
    """
    trained = copy.deepcopy(model).train()
    parameters = _trainable(trained, "gradient")
    total, count, labels = torch.zeros_like(_joined(parameters)), 0, _Labels(classes)
    for inputs, targets in _batches(loader, parameters[0].device):
        labels.add(targets)
        value = loss(trained(inputs), targets) * len(targets)
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        zeros = map(torch.zeros_like, parameters)
        total += _joined([z if g is None else g for g, z in zip(gradients, zeros, strict=True)])
        count += len(targets)
    labels.warn()
    return total / count


class RootUpdate:
    """The update of root data, for clients that send models: it trains like a client.

    `RobustStrategy("RootMatching()", f=0.2, root=RootUpdate(model, loader))` calls it once in each
    round, with the global model; it returns the model after training on the root data. Train as the
    clients do: as many epochs, the same optimizer, the same momentum. The module itself stays as it
    is: its parameters, gradients, statistics and mode.

    - `model`: a module of the model's architecture.
    - `loader`: the root data: a DataLoader, or batches of pairs (inputs, targets) that can be read
      in every round.
    - `loss`: a function of the outputs and the targets of a batch.
    - `learning_rate`: the learning rate of plain SGD.
    - `epochs`: how often it goes through the root data in a round.
    - `optimizer`: a function that makes another optimizer of the parameters; `learning_rate` is
      then not used.
    - `momentum`: beta of the momentum over rounds, for clients with `worker_momentum(beta)`.
    - `classes`: how many classes there are; by default the largest label and one more. A warning
      names the classes that the root data lack.
    - `seed`: the seed of what torch draws meanwhile: dropout, and the order of a DataLoader.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> root = RootUpdate(model, [(torch.ones(4, 1), torch.ones(4, 1))], nn.functional.mse_loss)
    >>> root({"weight": np.zeros((1, 1), dtype=np.float32)})  # one step along the gradient, -2
    {'weight': array([[0.2]], dtype=float32)}
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Iterable[Any],
        loss: Loss = cross_entropy,
        *,
        learning_rate: float = 0.1,
        epochs: int = 1,
        optimizer: MakeOptimizer | None = None,
        momentum: float = 0.0,
        classes: int | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"RootUpdate needs an nn.Module, got {type_name(model)}")
        self.model, self.loader, self.loss = model, loader, loss
        self.epochs: int = validated("RootUpdate", "epochs", epochs, Positive)
        self.seed: int = validated("RootUpdate", "seed", seed, Seed)
        self.optimizer = optimizer or optimizers.plain(learning_rate)
        self.momentum = Momentum(momentum)
        self.calls = 0
        self._labels = _Labels(classes)

    def __call__(self, state: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The model after training on the root data.

        - `state`: the global model, by the names of the module's state dict: tensors or arrays,
          which are not changed. By default it is that of the module.

        Returns the trained model, with the names, dtypes and forms of the state.
        """
        trained = copy.deepcopy(self.model).train()
        state = self.model.state_dict() if state is None else state
        _load(trained, state)
        before = {name: p.detach().clone() for name, p in trained.named_parameters()}
        device = next((p.device for p in before.values()), torch.device("cpu"))
        sequence = np.random.SeedSequence([self.seed, self.calls])
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(sequence.generate_state(1)[0]))
            self._train(trained, device)
        self._add_momentum(trained, before)
        self.calls += 1
        return {name: _like(state[name], one) for name, one in trained.state_dict().items()}

    @torch.enable_grad()
    def _train(self, model: nn.Module, device: torch.device) -> None:
        optimizer = self.optimizer(_trainable(model, "update"))
        for _ in range(self.epochs):
            for inputs, targets in _batches(self.loader, device):
                self._labels.add(targets)
                optimizer.zero_grad()
                torch.autograd.backward(self.loss(model(inputs), targets))
                optimizer.step()
        self._labels.warn()

    @torch.no_grad()
    def _add_momentum(self, model: nn.Module, before: Mapping[str, Tensor]) -> None:
        """Replace the change of each parameter by its momentum, as `worker_momentum` does."""
        if not self.momentum.beta:
            return
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        changes = {
            name: p.to(torch.promote_types(p.dtype, torch.float32)) - before[name]
            for name, p in parameters.items()
        }
        for name, m in self.momentum.update(changes).items():
            parameters[name].copy_(before[name] + m)

    def state_dict(self) -> dict[str, Any]:
        """What it remembers from round to round, for `load_state_dict`."""
        return {"calls": self.calls, "momentum": self.momentum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, and go on from there."""
        self.calls = state["calls"]
        self.momentum.load_state_dict(state["momentum"])


class _Labels:
    """The labels of root data, and one warning about the classes that are missing."""

    def __init__(self, classes: int | None) -> None:
        self.classes = None if classes is None else validated("root", "classes", classes, Positive)
        self.seen: set[int] = set()
        self.warned = False

    def add(self, targets: Tensor) -> None:
        """Add the targets of a batch, if they are labels: one whole number for each sample."""
        whole = not targets.is_floating_point() and targets.dtype != torch.bool
        if not self.warned and whole and targets.ndim == 1:
            self.seen.update(targets.tolist())

    def warn(self) -> None:
        if self.warned or not self.seen:
            return
        self.warned = True
        missing = sorted(set(range(self.classes or max(self.seen) + 1)) - self.seen)
        if missing:
            more = ", ..." if len(missing) > MAX_LISTED else ""
            listed = ", ".join(map(str, missing[:MAX_LISTED])) + more
            warnings.warn(
                f"the root data lack the classes {listed}: a rule that trusts them will nearly "
                "lose these classes; add samples of each class",
                stacklevel=4,
            )


def _trainable(model: nn.Module, what: str) -> list[nn.Parameter]:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ByzantiumError(f"the model has no parameters to train, so there is no root {what}")
    return parameters


def _batches(loader: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, Tensor]]:
    """The batches of root data on a device, each a pair of inputs and targets."""
    empty = True
    for batch in loader:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ArgumentTypeError(
                "each batch of the root data is a pair (inputs, targets), got "
                f"{type_name(batch)}; the collate_fn of a DataLoader can make pairs"
            )
        inputs, targets = batch
        if not isinstance(targets, Tensor):
            raise ArgumentTypeError(f"targets must be a tensor, got {type_name(targets)}")
        empty = False
        yield inputs.to(device) if isinstance(inputs, Tensor) else inputs, targets.to(device)
    if empty:
        raise ByzantiumError(
            "the root data have no batches; they are read in every round, and a generator can be "
            "read only once: give a DataLoader or a list"
        )


def _load(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a state of tensors or arrays into a module, whose names and shapes it must have."""
    own = model.state_dict()
    for name in own.keys() - state.keys():
        raise ByzantiumError(f"the global model lacks {name!r}, which the module for the root has")
    for name in state.keys() - own.keys():
        raise ByzantiumError(f"the global model has {name!r}, which the module for the root lacks")
    tensors = {
        name: torch.as_tensor(np.array(one) if isinstance(one, np.ndarray) else one)
        for name, one in state.items()
    }
    for name, tensor in tensors.items():
        if tensor.shape != own[name].shape:
            raise ByzantiumError(
                f"{name!r} has the shape {tuple(tensor.shape)} in the global model and "
                f"{tuple(own[name].shape)} in the module for the root"
            )
    model.load_state_dict(tensors)


def _like(example: Any, tensor: Tensor) -> Any:
    """A tensor in the form and dtype of another one, or of an array."""
    if isinstance(example, np.ndarray):
        return tensor.detach().cpu().numpy().astype(example.dtype)
    return tensor.detach().to(example)


def _joined(parts: Iterable[Tensor]) -> Tensor:
    """Tensors one after the other, as a vector."""
    return torch.cat([part.detach().reshape(-1) for part in parts])
