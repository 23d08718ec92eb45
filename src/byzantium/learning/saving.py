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
    from byzantium.learning.loop import Loop

logger = logging.getLogger("byzantium")

# The largest share of the time that savings after evaluations take.
SHARE = 0.02
# The file that stays in the folder of a simulation that is done: the model and the history.
FINISHED = "model.pt"


def checkpointed(
    training: Loop,
    folder: Path,
    seconds: float = 60,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Iterate over the rounds of a simulation that saves itself in a folder.

    `resume` goes on from what it saves. When all rounds are done, `model.pt` stays, with the model
    and the history.

    - `seconds`: the longest time between two savings; it also saves after an evaluation, unless
      that would take more than a fiftieth of the time.
    - `stop`: asked after each round; once it answers True, the simulation is saved, and the
      iteration ends.

    `resume` has an example.
    """
    saved, evaluated = time.monotonic(), len(training.history.evaluations)
    stopped, due = False, 0.0
    for record in training:
        if training.history.status == "running":
            stopped, since = stop(), time.monotonic() - saved
            after_evaluation = len(training.history.evaluations) > evaluated and since >= due
            if stopped or after_evaluation or since >= seconds:
                start = time.monotonic()
                checkpoint.save(folder, record["round"], training.state_dict())
                saved, evaluated = time.monotonic(), len(training.history.evaluations)
                due = (saved - start) / SHARE
        else:
            checkpoint.write(folder / FINISHED, training.result())
            checkpoint.remove(folder)
        yield record
        if stopped:
            return


def resume(training: Loop, folder: Path) -> None:
    """Let a new simulation go on where an equal one saved itself with `checkpointed`.

    Damaged checkpoints are named in the log, and the newest undamaged one is used; where there is
    none, the simulation stays at its beginning. A folder of a simulation with other settings is
    refused with an error.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from byzantium import Mean
    >>> from byzantium.data import load
    >>> from byzantium.learning import Settings, Simulation, linear
    >>> def new():
    ...     return Simulation(Settings(n=4, rounds=6), load("digits"), linear((1, 8, 8)), Mean())
    >>> with tempfile.TemporaryDirectory() as name:
    ...     killed, again = new(), new()
    ...     for record in checkpointed(killed, Path(name), seconds=0):
    ...         if record["round"] == 3:
    ...             break
    ...     resume(again, Path(name))
    >>> [record["round"] for record in again]
    [4, 5, 6]
    """
    if not finished(training, folder):
        with _with_folder_named(folder):
            checkpoint.newest(folder, training.load_state_dict)


def finished(training: Loop, folder: Path) -> bool:
    """Whether a simulation in this folder is done; if so, this one takes over its result."""
    path = folder / FINISHED
    if not path.exists():
        return False
    try:
        with _with_folder_named(folder):
            training.load_result(checkpoint.load(path))
    except checkpoint.OtherSimulationError:
        raise
    except checkpoint.CheckpointError as error:
        logger.warning("%s is skipped: %s", path, error)
        return False
    return True


@contextmanager
def _with_folder_named(folder: Path) -> Iterator[None]:
    """Name the folder in the error where it holds another simulation."""
    try:
        yield
    except checkpoint.OtherSimulationError as error:
        raise checkpoint.OtherSimulationError(f"cannot continue from {folder}: {error}") from error
