"""The random numbers of a simulation: orders of batches, permutations, seeds of dropout."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from byzantium.data.batches import Batches, SharedBatches
from byzantium.data.dataset import Dataset
from byzantium.data.partition import Partition, iid
from byzantium.learning.root_data import draw_root
from byzantium.learning.settings import Settings

STREAMS = (
    *("partition", "batches", "own batches", "server", "attack", "participants", "dropout"),
    *("root", "clock", "common"),  # after the others, whose seeds stay as they were
)


class Randomness:
    """The source of random numbers of a simulation: independent streams that follow from a seed.

    What one part draws never shifts another. To draw from elsewhere, for example to repeat runs of
    another program, derive from this class and replace what a method or `generators` gives.

    - `settings`: those of the simulation; their seed is the seed of everything.

    `name` is what checkpoints call it. `generators` are those that a simulation draws from round by
    round: "server" (random mixings, which take permutations from it), "attack", "participants".

    >>> source = Randomness(Settings(n=4, rounds=9, seed=1))
    >>> source.dropout(t=0, worker=2) == source.dropout(t=1, worker=2)
    False
    """

    name: ClassVar[str] = "fresh"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        #: How many workers are honest, and how many groups there are that compute the same.
        self.honest = settings.n - settings.attackers
        self.groups = settings.n // settings.redundancy
        self._shared = settings.dropout == "shared"  # all dropout is the same
        seeds = np.random.SeedSequence(settings.seed).generate_state(len(STREAMS), np.uint64)
        self.seeds = {name: int(seed) >> 1 for name, seed in zip(STREAMS, seeds, strict=True)}
        self.streams = {name: torch.Generator().manual_seed(s) for name, s in self.seeds.items()}
        self.generators = {name: self.streams[name] for name in STREAMS[3:6]}

    def batches(self, data: Dataset, partition: Partition) -> Batches:
        """The batches of the honest workers; called once, before `own_batches`."""
        stream, alone = self.streams["partition"], self.settings.redundancy == 1
        holders = self.honest if alone else self.groups
        parts = partition(data.train_y, holders, stream, users=data.train_user)
        batches = Batches(parts, self.settings.batch, self.streams["batches"])
        return batches if alone else SharedBatches(batches, self.honest)

    def own_batches(self, data: Dataset) -> Batches:
        """The batches of the attackers.

        They draw from the whole set, dealt out among as many as there are honest workers.
        """
        everybody = iid()(data.train_y, self.honest, self.streams["partition"])
        own = [everybody[j % self.honest] for j in range(self.settings.attackers)]
        return Batches(own, self.settings.batch, self.streams["own batches"])

    def root(self, data: Dataset) -> Tensor:
        """The training samples that the server holds: indices, (groups, size), none twice.

        The samples of a row have one of each class in the order of the classes; without classes a
        row is one sample.
        """
        return draw_root(data, self.settings.root, self.streams["root"])

    def root_dropout(self, t: int) -> int:
        """The seed of the dropout of the root gradient in round t."""
        return self.seeds["dropout"] if self._shared else self.seeds["root"] + t

    def dropout(self, t: int, worker: int) -> int:
        """The seed of a worker's dropout in round t."""
        own = t * self.settings.n + worker % self.groups
        return self.seeds["dropout"] + (0 if self._shared else own)

    def common(self, t: int) -> int:
        """The seed of what all workers draw in common in round t."""
        return self.seeds["common"] + t
