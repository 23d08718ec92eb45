"""Repeat released runs from initial models that differ by rounding, to see where they end up.

    BYZANTIUM_DATA=... python scripts/perturbed_run.py [--draws 3] [--until 30] [CELL ...]

A cell is, for example, "figure-main rfa alie 0.9 s=1"; its run with the seed 0 is repeated, as it
is and from changed initial models. Without cells it takes those of RESULTS whose first accuracy is
not the published one. Each line has the cell, the change of the initial model, the number of the
draw, by how many of the 9,984 test images each accuracy differs from the published one, and the
mean of the last five accuracies. If the draws differ as much as the run itself does, rounding alone
explains its difference.

A line of a changed run also has, at the first evaluation, by how much the change moves the logits
at most, and how many images are near a tie: their two largest logits differ by no more than that.

30 rounds take about half a minute on one core, and 600 rounds between 7 and 30 minutes.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields
from statistics import fmean

import torch
from torch import Generator, Tensor, nn

from byzantium.data import Dataset
from byzantium.papers import IMAGES, RELEASED, artifact, compare, published, replays
from byzantium.runs import LAST, Run, Store
from byzantium.tables import Cell, Version

RESULTS = "results"
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


def repeat(run: Run, until: int) -> tuple[dict[int, float], Tensor]:
    """The accuracies of a run up to a round, by round, and the logits of the first evaluation."""
    training, outputs = run.simulation(), list[Tensor]()

    def note(model: nn.Module, inputs: object, logits: Tensor) -> None:
        if not model.training and sum(map(len, outputs)) < IMAGES:
            outputs.append(logits.detach().clone())

    training.model.register_forward_hook(note)
    for record in training:
        if record["round"] == until:
            break
    found = {line["round"]: line["accuracy"] for line in training.history.evaluations}
    return found, torch.cat(outputs)[:IMAGES]


def near_ties(logits: Tensor, changed: Tensor) -> str:
    """How far logits move, and how many images that may bring to another prediction."""
    moves = changed - changed.mean(1, keepdim=True) - (logits - logits.mean(1, keepdim=True))
    most = moves.abs().max()
    first, second = logits.topk(2, dim=1).values.T
    near = int((first - second <= most).sum())
    return f"logits move by up to {most:.1e}, {near} images near a tie"


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
    draws = [(change, draw) for draw in range(options.draws) for change in CHANGES]
    for name, cell in chosen:
        (run,) = cell.jobs
        assert isinstance(run, Run)
        run = run.varied(record=())
        (theirs, *_) = published.curves(name, cell.labels)
        ours, logits = repeat(run, options.until)
        print(f"{name} {cell.name}; unchanged; {_differences(ours, theirs)}", flush=True)
        for change, draw in draws:
            ours, changed = repeat(perturbed(run, change, draw), options.until)
            text = f"{_differences(ours, theirs)}; {near_ties(logits, changed)}"
            print(f"{name} {cell.name}; {change}; {draw}; {text}", flush=True)


def _differences(ours: dict[int, float], theirs: list[tuple[int, float, float]]) -> str:
    """By how many images each accuracy differs, and the mean of our last five accuracies."""
    gaps = [ours[at] - accuracy for at, accuracy, _ in theirs if at in ours]
    images = " ".join(f"{round(gap / 100 * IMAGES):+d}" for gap in gaps)
    return f"{images}; {fmean([*ours.values()][-LAST:]):.2f}"


if __name__ == "__main__":
    main()
