"""A simulation that saves itself in a folder, and goes on from there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byzantium.learning import checkpoint

if TYPE_CHECKING:
    from byzantium.learning.simulation import Simulation

logger = logging.getLogger("byzantium")

# The file that stays in the folder of a simulation that is done: the model and the history.
FINISHED = "model.pt"


def checkpointed(
    training: Simulation,
    folder: Path,
    seconds: float = 60,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """The rounds of a simulation that saves itself in a folder, for `resume` to read.

    It saves at evaluations, every so many seconds, and between two rounds when `stop` says so,
    which ends it. When it is done, `model.pt` stays.
    """
    saved, evaluated = time.monotonic(), len(training.history.evaluations)
    for record in training:
        if training.history.status == "running":
            stopped = stop()
            due = len(training.history.evaluations) > evaluated
            if stopped or due or time.monotonic() - saved >= seconds:
                checkpoint.save(folder, record["round"], training.state_dict())
                saved, evaluated = time.monotonic(), len(training.history.evaluations)
            if stopped:
                return
        else:
            checkpoint.write(folder / FINISHED, training.result())
            checkpoint.remove(folder)
        yield record


def resume(training: Simulation, folder: Path) -> None:
    """Bring a simulation to where the one that saved itself in the folder was.

    What is damaged is named in the log, and it goes on from what is whole.
    """
    if not finished(training, folder):
        with _ours(folder):
            checkpoint.newest(folder, training.load_state_dict)


def finished(training: Simulation, folder: Path) -> bool:
    """Whether a simulation in this folder is done; if so, this one takes over its result."""
    path = folder / FINISHED
    if not path.exists():
        return False
    try:
        with _ours(folder):
            training.load_result(checkpoint.load(path))
    except checkpoint.OtherSimulationError:
        raise
    except checkpoint.CheckpointError as error:
        logger.warning("%s is passed over: %s", path, error)
        return False
    return True


@contextmanager
def _ours(folder: Path) -> Iterator[None]:
    """The folder may hold another simulation, which is somebody's: name the folder and refuse."""
    try:
        yield
    except checkpoint.OtherSimulationError as error:
        raise checkpoint.OtherSimulationError(f"cannot go on from {folder}: {error}") from error
