"""A simulation from its first round to its last: in a folder if wanted, with a progress bar."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from byzantium.aggregation import Aggregator
from byzantium.core import held
from byzantium.learning.dataset import Dataset
from byzantium.learning.history import History
from byzantium.learning.losses import Loss
from byzantium.learning.partition import Partition
from byzantium.learning.saving import checkpointed, finished, resume
from byzantium.learning.server import MakeOptimiser
from byzantium.learning.settings import Settings
from byzantium.learning.simulation import Simulation
from byzantium.threats import Attack


def simulate(
    settings: Settings,
    data: Dataset,
    model: nn.Module,
    rule: Aggregator,
    attack: Attack | None = None,
    partition: Partition | None = None,
    optimiser: MakeOptimiser | None = None,
    *,
    loss: Loss | None = None,
    folder: Path | None = None,
    seconds: float = 60,
    progress: bool | None = None,
) -> History:
    """Train `model` in place and return the history.

    With a folder, the run saves itself there at evaluations and every so many seconds, and goes on
    from where it was killed. When it is done, `model.pt` stays, with the history; started again, it
    is read from there. Two never work in one folder. A progress bar is shown on a terminal.
    """
    training = Simulation(settings, data, model, rule, attack, partition, optimiser, loss)
    shown = sys.stderr.isatty() if progress is None else progress
    if folder is None:
        _finish(training, iter(training), shown)
    elif not finished(training, folder):
        with held(folder):
            resume(training, folder)
            _finish(training, checkpointed(training, folder, seconds), shown)
    return training.history


def _finish(training: Simulation, rounds: Iterator[dict[str, Any]], progress: bool) -> None:
    for _ in _watched(training, rounds, progress):
        pass


def _watched(
    training: Simulation, rounds: Iterator[dict[str, Any]], progress: bool
) -> Iterator[dict[str, Any]]:
    """The rounds, with a progress bar that shows accuracy and the time left."""
    if not progress:
        yield from rounds
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=training.settings.rounds)
        for record in rounds:
            accuracy = training.history.accuracy
            shown = "" if math.isnan(accuracy) else f", accuracy {accuracy:.1f} %"
            text = f"loss {record['loss']:.3f}{shown}"
            bar.update(task, completed=record["round"], description=text)
            yield record
