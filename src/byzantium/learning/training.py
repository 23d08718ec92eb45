"""Training from the first round to the last, with a progress bar and saved in a folder."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from byzantium.attacks import Attack
from byzantium.core import folder_lock
from byzantium.core.options import FORMER_SPELLINGS, renamed
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition
from byzantium.learning.asynchronous import AsynchronousSimulation
from byzantium.learning.clocks import SYNCHRONOUS
from byzantium.learning.decentralized import DecentralizedSimulation
from byzantium.learning.history import History
from byzantium.learning.loop import Loop
from byzantium.learning.losses import Loss
from byzantium.learning.method import WorkerMethod
from byzantium.learning.saving import checkpointed, finished, resume
from byzantium.learning.server import MakeOptimizer
from byzantium.learning.settings import Settings
from byzantium.learning.simulation import Simulation
from byzantium.rules import Aggregator, Mixing


def loop_for(settings: Settings) -> Callable[..., Loop]:
    """The class of the trainings with these settings: with a server or without, and its clock.

    All take the parameters of `Simulation`.

    >>> loop_for(Settings(n=25, clock="BASGD(buffers=11)")).__name__
    'AsynchronousSimulation'
    """
    if settings.topology is not None:
        return DecentralizedSimulation
    return Simulation if settings.clock == SYNCHRONOUS else AsynchronousSimulation


@renamed(**FORMER_SPELLINGS)
def simulate(
    settings: Settings,
    data: Dataset,
    model: nn.Module,
    rule: Aggregator | Mixing,
    attack: Attack | None = None,
    partition: Partition | None = None,
    optimizer: MakeOptimizer | None = None,
    *,
    loss: Loss | None = None,
    worker: WorkerMethod | None = None,
    folder: Path | None = None,
    seconds: float = 60,
    progress: bool | None = None,
) -> History:
    """Train a model with Algorithm 2 of the bucketing paper, from the first round to the last.

    With a folder, the training saves itself there. Killed at any moment, the same call goes on
    where it stopped, and ends with the same numbers; once it is done, the same call reads the
    result. A lock keeps two processes from working in one folder.

    The first parameters, and `loss` and `worker`, are those of `Simulation`.

    - `rule`: how the server aggregates what workers send; with `Settings.topology` there is none,
      and it is what each node does, which may also be a mixing such as `ClippedGossip`.
    - `folder`: where to save it; None saves nothing. `model.pt` in it is the result: the model and
      the history.
    - `seconds`: the longest time between two savings; it also saves after evaluations.
    - `progress`: whether to show a progress bar; by default on a terminal.

    Returns what happened: losses, accuracies and what else was recorded.

    >>> from byzantium import Krum
    >>> from byzantium.data import load
    >>> from byzantium.learning import linear
    >>> settings = Settings(n=10, rounds=20, learning_rate=0.1)
    >>> history = simulate(settings, load("digits"), linear((1, 8, 8)), Krum(f=2))
    >>> history.status, history.accuracy > 50
    ('completed', True)
    """
    parts = (settings, data, model, rule, attack, partition, optimizer, loss)
    training = loop_for(settings)(*parts, worker=worker)
    shown = sys.stderr.isatty() if progress is None else progress
    if folder is None:
        _finish(training, iter(training), shown)
    elif not finished(training, folder):
        with folder_lock(folder):
            resume(training, folder)
            _finish(training, checkpointed(training, folder, seconds), shown)
    return training.history


def _finish(training: Loop, rounds: Iterator[dict[str, Any]], progress: bool) -> None:
    """Carry out the rounds; a progress bar shows loss, accuracy and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not progress) as bar:
        task = bar.add_task("", total=training.settings.rounds)
        for record in rounds:
            accuracy = training.history.accuracy
            shown = "" if math.isnan(accuracy) else f", accuracy {accuracy:.1f} %"
            text = f"loss {record['loss']:.3f}{shown}"
            bar.update(task, completed=record["round"], description=text)
