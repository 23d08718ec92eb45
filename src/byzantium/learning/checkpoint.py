"""Checkpoints: written atomically, checked when read, never executed."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger("byzantium")

MAGIC = b"byzantium checkpoint 1\n"
KEPT = 2


class CheckpointError(ValueError):
    """A file that is no checkpoint, a damaged one, or one of another run."""


def save(folder: Path, number: int, state: dict[str, Any]) -> Path:
    """Write checkpoint `number`, and keep the last two."""
    path = folder / f"checkpoint-{number:09d}.pt"
    write(path, state)
    for old in checkpoints(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def write(path: Path, state: dict[str, Any]) -> None:
    """Write state, of tensors and plain values.

    Whatever happens meanwhile, a file of this name is whole: it is written beside, brought to the
    disk and renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    payload = io.BytesIO()
    torch.save(state, payload)
    content = payload.getvalue()
    beside = path.with_suffix(".writing")
    with beside.open("wb") as file:
        file.write(MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if re.fullmatch(r"checkpoint-\d+\.pt", path.name)]
    return sorted(named, reverse=True)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint; nothing in it is executed."""
    content = path.read_bytes()
    head = len(MAGIC) + 65
    if not content.startswith(MAGIC):
        raise CheckpointError(f"{path} is not a checkpoint of this version")
    if hashlib.sha256(content[head:]).hexdigest().encode() != content[len(MAGIC) : head - 1]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    state: dict[str, Any] = torch.load(io.BytesIO(content[head:]), weights_only=True)
    return state


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; damaged ones are named in the log and passed over."""
    for path in checkpoints(folder):
        try:
            return load(path)
        except CheckpointError as error:
            logger.warning("%s; trying the one before", error)
    return None


def remove(folder: Path) -> None:
    """Remove the checkpoints of a finished run, and what was being written."""
    for path in [*checkpoints(folder), *folder.glob("checkpoint-*.writing")]:
        path.unlink(missing_ok=True)
