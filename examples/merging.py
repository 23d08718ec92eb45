"""Five honest fine-tunings of one small model on different data, and two poisoned ones, merged.

A model has learned a little of handwritten digits. Five contributors fine-tune it, each on digits
sorted by label, and two others are attackers. Each sends a checkpoint in safetensors. Prints the
accuracy of each, of their mean and of robust merges, and the weight of the attackers in these.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import byzantium as bz
from byzantium.data import load
from byzantium.engines.files import merge

HONEST, POISONED = 5, 2
RULES = (
    "Mean()",
    "Median()",
    "GeometricMedian()",
    "Krum(f=2)",
    "TrimmedMean(f=2)",
)


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """A trained copy of a model."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def contributions(folder: Path) -> tuple[nn.Module, list[Path]]:
    """The model that all start from, and the checkpoints of all contributors."""
    data = load("digits")
    x, y = data.train_x.flatten(1), data.train_y
    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 10))
    few = torch.randperm(len(x))[:100]
    base = train(model, x[few], y[few], 50)
    save_file(base.state_dict(), folder / "base.safetensors")
    paths = []
    for i in range(HONEST):
        # Half of the data of each contributor are the digits 2i and 2i + 1.
        own = torch.cat([(y // 2 == i).nonzero()[:, 0], torch.randperm(len(x))[:250]])
        paths.append(folder / f"honest_{i}.safetensors")
        save_file(train(base, x[own], y[own], 200).state_dict(), paths[-1])
    for i in range(POISONED):
        # Trained to mistake every digit for the next one, with a change five times as large.
        wrong = train(base, x, (y + 1) % 10, 200).state_dict()
        start = base.state_dict()
        state = {name: start[name] + 5 * (wrong[name] - start[name]) for name in start}
        state["0.bias"] += 0.01 * i
        paths.append(folder / f"poisoned_{i}.safetensors")
        save_file(state, paths[-1])
    return base, paths


def accuracy(model: nn.Module, path: Path) -> float:
    data = load("digits")
    model.load_state_dict(load_file(path))
    return 100 * float((model(data.test_x.flatten(1)).argmax(1) == data.test_y).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the checkpoints; by default temporary")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the model is tiny
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model, paths = contributions(folder)
        start = folder / "base.safetensors"
        table = Table("checkpoint", "accuracy (%)", "weight of the poisoned")
        for path in (start, *paths):
            table.add_row(path.stem, f"{accuracy(model, path):.1f}", "")
        table.add_section()
        for text in RULES:
            merged = folder / "merged.safetensors"
            summary = merge(bz.parse_rule(text), paths, merged, base=start)
            weight = sum(one["weight"] for one in summary["contributors"][HONEST:])
            table.add_row(text, f"{accuracy(model, merged):.1f}", f"{weight:.2f}")
        Console().print(table)


if __name__ == "__main__":
    main()
