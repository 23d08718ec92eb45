"""Files of checkpoints in safetensors, whole and cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import inputs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

State = dict[str, Tensor]


def cut(row: Tensor) -> State:
    """A vector as arrays of different shapes, some of them empty or of no dimension."""
    third, d = len(row) // 3, len(row)
    parts = {
        "a.weight": row[: third - third % 2].reshape(-1, 2),
        "b.weight": row[third - third % 2 : d - 1],
        "nothing": row[d:].reshape(0, 4),
        "z": row[d - 1 :].reshape(()),
    }
    return {name: part.clone() for name, part in parts.items()}


def joined(state: Any) -> Tensor:
    names = ("a.weight", "b.weight", "nothing", "z")
    return torch.cat([state[name].reshape(-1) for name in names])


def saved(states: list[State], folder: Path) -> list[Path]:
    paths = [folder / f"client_{i:02}.safetensors" for i in range(len(states))]
    for state, path in zip(states, paths, strict=True):
        save_file(state, path)
    return paths


def some(folder: Path, n: int = 7, d: int = 60) -> tuple[Tensor, list[Path]]:
    X = inputs.heterogeneous(n, d).float()
    return X, saved([cut(row) for row in X], folder)


def sharded(state: State, folder: Path, **index: Any) -> Path:
    folder.mkdir(parents=True)
    places = {}
    for k, (name, tensor) in enumerate(state.items()):
        shard = f"model-{k % 2 + 1:05}-of-00002.safetensors"
        path = folder / shard
        save_file({**(load_file(path) if path.exists() else {}), name: tensor}, path)
        places[name] = shard
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places, **index}))
    return path


LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
