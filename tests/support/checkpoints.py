"""Simulations in states that are saved and damaged."""

from __future__ import annotations

import copy
import hashlib
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import byzantium as bz
from byzantium.data import by_label, load
from byzantium.learning import Settings, Simulation, checkpointed, mlp, resume, simulate
from byzantium.learning.checkpoint import MAGIC

DIGITS = load("digits")


SETTINGS = Settings(
    n=9,
    attackers=2,
    rounds=6,
    batch=8,
    momentum=0.9,
    evaluate_every=2,
    record=("weights", "distance", "rejected", "heterogeneity"),
)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return mlp((1, 8, 8), hidden=(4,))


def simulation(settings: Settings = SETTINGS) -> Simulation:
    """One in which everything has a state: the rule, the attack, the optimizer, the workers."""
    rule = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=1.0)
    return Simulation(
        settings, DIGITS, model(), rule, bz.Mimic(warmup=9), by_label(), torch.optim.Adam
    )


def weights(training: Simulation) -> Tensor:
    return torch.cat([p.detach().flatten() for p in training.model.parameters()])


def assert_goes_on(
    new: Callable[[], Simulation], folder: Path, rounds: Iterable[int]
) -> list[dict[str, Any]]:
    """From each of these rounds a stopped simulation goes on to the same bits; the records."""
    whole = new()
    records = list(whole)
    for last in rounds:
        here = folder / str(last)
        here.mkdir()
        for record in checkpointed(new(), here, seconds=0):
            if record["round"] == last:
                break
        again = new()
        resume(again, here)
        assert [repr(record) for record in again] == [repr(record) for record in records[last:]]
        assert torch.equal(weights(again), weights(whole))
    return records


def trained(folder: Path) -> Simulation:
    """In a folder, with the same arguments."""
    training = simulation()
    training.history = simulate(
        SETTINGS,
        DIGITS,
        training.model,
        training.rule,
        training.attack,
        training.partition,
        torch.optim.Adam,
        folder=folder,
    )
    return training


def same(one: Any, other: Any) -> bool:
    """To the bit."""
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def states(count: int) -> list[dict[str, Any]]:
    """After each of the first so many rounds."""
    training = simulation()
    rounds = iter(training)
    return [copy.deepcopy((next(rounds), training.state_dict())[1]) for _ in range(count)]


STATES = states(4)


def put(path: Path, content: bytes) -> None:
    """A file whose checksum is right, whatever it holds."""
    path.write_bytes(MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
