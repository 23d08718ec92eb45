"""Repeat a released run from an initial model that differs by a relative 1e-7.

    BYZANTIUM_DATA=... python scripts/perturbed_run.py "rfa alie 0.0 1" FOLDER [NUMBER]

If it ends elsewhere than the run itself, rounding alone can explain the difference between the run
and the released one. It takes between 7 and 30 minutes on one core.
"""

import sys
from dataclasses import fields
from pathlib import Path

import torch
from torch import nn

from byzantium.data import Dataset
from byzantium.papers import artifact
from byzantium.runs import Run
from byzantium.tables import Version

SIZE = 1e-7
# Of the noise; NUMBER is added to it.
SEED, NUMBER = 1000, int(sys.argv[3]) if len(sys.argv) > 3 else 0


class Perturbed(Run):
    """A run whose initial model is multiplied by 1 + SIZE times normal numbers."""

    def build_model(self, data: Dataset) -> nn.Module:
        model, generator = super().build_model(data), torch.Generator().manual_seed(SEED + NUMBER)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(1 + SIZE * noise)
        return model


def main(words: str, folder: str) -> None:
    """Train the run of the one cell of the main figure that has all words."""
    (cell,) = artifact("figure-main", Version(seeds=1, released=True, only=words)).cells
    (run,) = cell.jobs
    Path(folder).mkdir(parents=True, exist_ok=True)
    run = Perturbed(**{field.name: getattr(run, field.name) for field in fields(run)})
    print(run.work(Path(folder), lambda done, total, text: None, lambda: False))


if __name__ == "__main__":
    main(*sys.argv[1:3])
