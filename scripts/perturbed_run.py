"""Repeat released runs from initial models that differ by rounding, to see where they end up.

    BYZANTIUM_DATA=... python scripts/perturbed_run.py [--draws 3] [--until 30] [CELL ...]

A cell is, for example, "figure-main rfa alie 0.9 s=1"; its run with the seed 0 is repeated. Without
cells it takes those of RESULTS whose first accuracy is not the published one. Each line has the
cell, the change of the initial model, the number of the draw, by how many of the 9,984 test images
each accuracy differs from the published one, and the mean of the last five accuracies. If the draws
differ as much as the run itself does, rounding alone explains its difference.

30 rounds take about half a minute on one core, and 600 rounds between 7 and 30 minutes.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields
from statistics import fmean

import torch
from torch import Generator, Tensor, nn

from byzantium.data import Dataset
from byzantium.papers import RELEASED, artifact, compare, published, replays
from byzantium.runs import LAST, Run, Store
from byzantium.tables import Cell, Version

RESULTS = "results"
IMAGES = 9984
# The noise of draw k has the seed SEED + k.
SEED = 1000


def by_noise(p: Tensor, generator: Generator) -> Tensor:
    """Normal numbers, relatively 1e-7."""
    return p * (1 + 1e-7 * torch.randn(p.shape, generator=generator))


def by_rounding(p: Tensor, generator: Generator) -> Tensor:
    """The next number of float32, above or below."""
    ends = torch.tensor([-torch.inf, torch.inf])
    return p.nextafter(ends[torch.randint(2, p.shape, generator=generator)])


CHANGES: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "1e-7": by_noise,
    "next float32": by_rounding,
}


class Perturbed(Run):
    """A run whose initial model is changed."""

    change: Callable[[Tensor], Tensor]

    def build_model(self, data: Dataset) -> nn.Module:
        model = super().build_model(data)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(self.change(parameter))
        return model


def perturbed(run: Run, change: str, draw: int) -> Run:
    """A run from an initial model that differs by a draw of a change."""
    generator = Generator().manual_seed(SEED + draw)
    changed = Perturbed(**{field.name: getattr(run, field.name) for field in fields(run)})
    object.__setattr__(changed, "change", lambda p: CHANGES[change](p, generator))
    return changed


def accuracies(run: Run, until: int) -> dict[int, float]:
    """The accuracies of a run up to a round, by round."""
    training = run.simulation()
    for record in training:
        if record["round"] == until:
            break
    return {line["round"]: line["accuracy"] for line in training.history.evaluations}


def cells_of(words: str) -> Iterator[tuple[str, Cell]]:
    """The artifact and the cells that are meant by words such as "table2 rfa noniid"."""
    name, only = words.split(maxsplit=1)
    for cell in artifact(name, Version(seeds=1, released=True, only=only)).cells:
        yield name, cell


def exceptions() -> Iterator[tuple[str, Cell]]:
    """The cells whose first accuracy is not the published one."""
    for name in RELEASED:
        table = compare(artifact(name, Version(seeds=1, released=True)), Store(RESULTS))
        for replay in replays(table):
            if replay.differences and not replay.equal:
                yield name, replay.cell.cell


def main() -> None:
    """Print a line for each repetition."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cells", nargs="*", metavar="CELL")
    parser.add_argument("--draws", type=int, default=3, help="of each change")
    parser.add_argument("--until", type=int, default=30, help="the last round")
    options = parser.parse_args()
    chosen = [each for words in options.cells for each in cells_of(words)] or [*exceptions()]
    # Two tables have the same run in common.
    chosen = [*{cell.jobs: (name, cell) for name, cell in chosen}.values()]
    for draw in range(options.draws):
        for change in CHANGES:
            for name, cell in chosen:
                (run,) = cell.jobs
                assert isinstance(run, Run)
                ours = accuracies(perturbed(run.varied(record=()), change, draw), options.until)
                (theirs, *_) = published.curves(name, cell.labels)
                images = [
                    round((ours[at] - accuracy) / 100 * IMAGES)
                    for at, accuracy, _ in theirs
                    if at in ours
                ]
                end = fmean([*ours.values()][-LAST:])
                differences = " ".join(f"{count:+d}" for count in images)
                print(f"{name} {cell.name}; {change}; {draw}; {differences}; {end:.2f}", flush=True)


if __name__ == "__main__":
    main()
