"""Algorithm 2 as a researcher writes it in an afternoon: the reference for a whole round.

The rules are those of `straightforward.py`. The code is readable, and not slow on purpose.
"""

from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any

import torch
from straightforward import Vectors
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

Rule = Callable[[Vectors], Tensor]


def bit_flip(honest: Vectors, own: Vectors) -> Vectors:
    return [-vector for vector in own]


def label_flip(honest: Vectors, own: Vectors) -> Vectors:
    return own  # their labels were flipped before


def mimic(honest: Vectors, own: Vectors) -> Vectors:
    return [honest[0] for _ in own]


def inner_product(honest: Vectors, own: Vectors) -> Vectors:
    mean = torch.stack(honest).mean(dim=0)
    return [-0.1 * mean for _ in own]


def a_little_is_enough(honest: Vectors, own: Vectors) -> Vectors:
    x, n = torch.stack(honest), len(honest) + len(own)
    supporters = n // 2 + 1 - len(own)
    z = NormalDist().inv_cdf((len(honest) - supporters) / len(honest))
    return [x.mean(dim=0) - z * x.std(dim=0) for _ in own]


ATTACKS = {
    "BitFlip": bit_flip,
    "LabelFlip": label_flip,
    "Mimic": mimic,
    "InnerProduct": inner_product,
    "ALittleIsEnough": a_little_is_enough,
}


def for_ever(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


class Training:
    """Call it for one round. All n workers compute gradients; the last q are attackers."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        rule: Rule,
        attack: str,
        *,
        n: int,
        q: int,
        batch: int,
        classes: int = 10,
        momentum: float = 0.9,
        rate: float = 0.01,
    ) -> None:
        self.model = model
        self.rule = rule
        self.attack = ATTACKS[attack]
        self.flips_labels = attack == "LabelFlip"
        self.honest = n - q
        self.classes = classes
        self.momentum = momentum
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        self.momenta: Vectors = []
        self.batches = []
        for worker in range(n):
            samples = TensorDataset(x[worker::n], y[worker::n])
            loader = DataLoader(samples, batch_size=batch, shuffle=True, drop_last=True)
            self.batches.append(for_ever(loader))

    def gradient(self, worker: int) -> Tensor:
        x, y = next(self.batches[worker])
        if self.flips_labels and worker >= self.honest:
            y = self.classes - 1 - y
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    def __call__(self) -> None:
        gradients = [self.gradient(worker) for worker in range(len(self.batches))]
        honest, own = gradients[: self.honest], gradients[self.honest :]
        if self.momenta:
            beta = self.momentum
            self.momenta = [
                beta * m + (1 - beta) * g for m, g in zip(self.momenta, honest, strict=True)
            ]
        else:
            self.momenta = honest
        aggregate = self.rule(self.momenta + self.attack(self.momenta, own))
        start = 0
        for p in self.model.parameters():
            p.grad = aggregate[start : start + p.numel()].view(p.shape)
            start += p.numel()
        self.optimizer.step()
