"""Checkpoints on disk: written whole or not at all, checked when read, and never executed."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from byzantium.core import ByzantiumError, files, one_line, type_name

logger = logging.getLogger("byzantium")

MAGIC = b"byzantium checkpoint 1\n"
# How many checkpoints stay in a folder: if the newest is damaged, there is the one before.
NEWEST = 2
# Bytes that are hashed at a time.
CHUNK = 1 << 20

State = dict[str, Any]


class CheckpointError(ByzantiumError):
    """A file is not a checkpoint, is damaged, or belongs to another simulation."""


class OtherSimulationError(CheckpointError):
    """A checkpoint is intact, but belongs to a simulation with other settings."""


def save(folder: Path, number: int, state: State) -> Path:
    """Write a checkpoint of tensors and plain values, and remove all except the last two.

    Returns the file, whose name has the number of the round.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(Path(folder), 7, {"loss": 0.5})
    ...     print(path.name, load(path))
    checkpoint-000000007.pt {'loss': 0.5}
    """
    path = folder / f"checkpoint-{number:09d}.pt"
    write(path, state)
    # A checkpoint of a later round is a damaged one that was passed over. It does not count: if it
    # did, the one that was just written could be removed.
    for old in [one for one in checkpoints(folder) if _number(one) <= number][NEWEST:]:
        old.unlink(missing_ok=True)
    return path


def write(path: Path, state: State) -> None:
    """Write a state of tensors and plain values to a file, with a checksum; whole or not at all."""
    payload = io.BytesIO()
    torch.save(state, payload)
    content = payload.getvalue()
    files.write(path, MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if re.fullmatch(r"checkpoint-[0-9]+\.pt", path.name)]
    return sorted(filter(Path.is_file, named), key=_number, reverse=True)


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("checkpoint-"))


def load(path: Path) -> State:
    """Read a checkpoint. Its checksum is verified, and nothing in it is ever executed.

    Raises `CheckpointError` where it cannot be read, for whatever reason: it is damaged, or takes
    more memory than there is.
    """
    try:
        with files.reading(path, files.quarter_of_memory()) as file:
            _check_sum(file, path)
            state = torch.load(_archive(file), weights_only=True)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # torch has no error type of its own for such files
        why = one_line(str(error)) or type(error).__name__
        raise CheckpointError(f"{path} does not hold a state: {why}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} does not hold a state, but {type_name(state)}")
    return state


def _check_sum(file: BinaryIO, path: Path) -> None:
    """Raise an error unless a file begins as a checkpoint does, with the checksum of the rest."""
    if file.read(len(MAGIC)) != MAGIC:
        raise CheckpointError(f"{path} is not a checkpoint of this version")
    expected, actual = file.read(65), hashlib.sha256()
    while chunk := file.read(CHUNK):
        actual.update(chunk)
    if actual.hexdigest().encode() + b"\n" != expected:
        raise CheckpointError(f"{path} is damaged: its checksum does not match")


def _archive(file: BinaryIO) -> io.BytesIO:
    """The archive in a file, written anew, so that torch reads what was checked here.

    Another reader of archives may find other entries in the same bytes. Entries that are compressed
    or overlap could take a thousand times the size of the file.
    """
    content = io.BytesIO()
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(content, "w") as new:
        entries = old.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it has compressed entries, which are never written")
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its entries are larger than the file")
        for entry in entries:
            new.writestr(entry.filename, old.read(entry))
    content.seek(0)
    return content


def newest(folder: Path, take: Callable[[State], None] = lambda state: None) -> State | None:
    """The state of the newest checkpoint in a folder that is not damaged; None if there is none.

    Damaged ones are named in the log, and the one before is tried. A checkpoint of another
    simulation is no accident but somebody's work: that raises `OtherSimulationError`.

    - `take`: called with the state; it raises `CheckpointError` to refuse it.
    """
    for path in checkpoints(folder):
        try:
            state = load(path)
        except CheckpointError as error:
            logger.warning("%s; trying the one before", error)
            continue
        try:
            take(state)
        except OtherSimulationError:
            raise
        except CheckpointError as error:
            logger.warning("%s is damaged: %s; trying the one before", path, error)
            continue
        return state
    return None


def remove(folder: Path) -> None:
    """Remove the checkpoints of a finished run."""
    for path in checkpoints(folder):
        path.unlink(missing_ok=True)
