"""A small network that learns handwritten digits, which are part of Byzantium."""

from __future__ import annotations

import torch
from torch import nn

from byzantium.data import Dataset, load


class Network(nn.Module):
    """Two layers. FLARE writes the class of the model into the job, so it has one of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def part(k: int, of: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of client k: every `of`-th one."""
    data = load("digits")
    return data.train_x[k::of], data.train_y[k::of]


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Train for three epochs of SGD; the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(3):
        for batch in torch.split(torch.randperm(len(x)), 32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            torch.autograd.backward(loss)
            optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y)
    return float(loss), float((logits.argmax(dim=1) == y).float().mean())


def digits() -> Dataset:
    return load("digits")
