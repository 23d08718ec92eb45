"""The random numbers of the runs that the authors of the bucketing paper released.

S. P. Karimireddy, L. He, M. Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via
Bucketing, ICLR 2022. Read in the code that they released, and confirmed by their logs. A run with
these numbers repeats theirs until the rounding of another device has grown large enough to be seen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from byzantium.core import ByzantiumError
from byzantium.data import Batches, Dataset, GivenBatches, Partition
from byzantium.learning import Randomness, Settings, models
from byzantium.rules import Permutations

if TYPE_CHECKING:
    from byzantium.runs.run import Run

# They evaluated in batches of so many, and dropped the last one where it was incomplete.
EVALUATED = 128
# How they divided the samples among honest workers.
PARTITIONS = ("iid()", "by_label()")
# What they all had, of options that change who draws random numbers and when.
NEEDED = {"redundancy": 1, "topology": None, "clock": "Synchronous()", "worker": "Momentum()"}
# NumPy's older generators take seeds below this.
LARGEST_SEED = 2**32

# Philox4x32-10: multipliers, and what is added to the key after each round.
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
INCREMENTS = 0x9E3779B9, 0xBB67AE85
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(key: int, counter: int, count: int) -> NDArray[np.uint32]:
    """The first words of so many subsequences of CUDA's generator, Philox4x32-10, at a counter.

    Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.

    >>> philox(key=0, counter=0, count=2).tolist()
    [1713891541, 2219120097]
    """
    words = [np.zeros(count, np.uint64) for _ in range(4)]
    words[0] += np.uint64(counter)
    words[2] += np.arange(count, dtype=np.uint64)
    for number in range(10):
        keys = [
            np.uint64((part + number * step) % 2**32)
            for part, step in zip((key % 2**32, key >> 32), INCREMENTS, strict=True)
        ]
        first, third = MULTIPLIERS[0] * words[0], MULTIPLIERS[1] * words[2]
        words = [
            (third >> HALF) ^ words[1] ^ keys[0],
            third & LOW,
            (first >> HALF) ^ words[3] ^ keys[1],
            first & LOW,
        ]
    return words[0].astype(np.uint32)


def uniform(seed: int, layer: int, count: int) -> Tensor:
    """The numbers that decided what the first or second dropout (layer 0 or 1) dropped.

    Their generator was restored around every worker, so these are the same in all rounds.
    """
    word = philox(seed, layer, count).astype(np.float32)
    return torch.from_numpy(word * np.float32(2**-32) + np.float32(2**-33))


def masked(model: nn.Module, seed: int) -> nn.Module:
    """A model whose dropout is that of the released runs with a seed."""
    return models.without_dropout(
        model,
        lambda layer, p, channels: models.FixedDropout(p, partial(uniform, seed, layer), channels),
    )


def whole_batches(data: Dataset) -> Dataset:
    """A data set with the samples that they tested with: by label, in whole batches."""
    order = data.test_y.argsort(stable=True)
    order = order[: max(1, len(order) // EVALUATED) * EVALUATED]
    return replace(data, test_x=data.test_x[order], test_y=data.test_y[order])


class Shuffles(Permutations):
    """The permutations of `numpy.random.shuffle`, after `numpy.random.seed`.

    >>> Shuffles(seed=0).permutation(5).tolist()
    [2, 0, 1, 3, 4]
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.RandomState(seed)

    def permutation(self, n: int) -> NDArray[np.int64]:
        return self.random.permutation(n).astype(np.int64)

    def get_state(self) -> Tensor:
        _, words, position, *_ = self.random.get_state(legacy=True)
        return torch.from_numpy(np.append(words, position).astype(np.int64))

    def set_state(self, new_state: Tensor) -> Shuffles:
        words = new_state.numpy()
        if words.min() < 0 or words[:-1].max() >= 2**32 or words[-1] > 624:
            raise ByzantiumError("this is not the state of such permutations")
        state = words[:-1].astype(np.uint32), int(words[-1])
        self.random.set_state(("MT19937", *state, 0, 0.0))
        return self


class Released(Randomness):
    """What the released runs drew: the order of samples, and the permutations of bucketing.

    The initial model follows from torch's seed, as in every run of ours. The seed of a run plays no
    part in the order of samples.
    """

    name: ClassVar[str] = "released"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.generators = {**self.generators, "server": Shuffles(settings.seed)}

    def batches(self, data: Dataset, partition: Partition) -> Batches:
        """The samples by label are cut, or dealt out one by one, and shuffled in each pass."""
        parts = [torch.from_numpy(part) for part in divided(data, self.honest, repr(partition))]
        return GivenBatches(
            lambda worker, number: parts[worker][_order(worker**3 + number, len(parts[worker]))],
            self.honest,
            self.settings.batch,
            parts,
        )

    def own_batches(self, data: Dataset) -> Batches:
        """In each pass all samples are shuffled and dealt out among as many as are honest."""
        samples, h = len(data.train_y), self.honest
        return GivenBatches(
            lambda worker, number: _order(number, samples)[worker % h :: h],
            self.settings.attackers,
            self.settings.batch,
        )


def divided(data: Dataset, workers: int, partition: str) -> list[NDArray[np.int64]]:
    """The samples of each honest worker; the list is filled up from its own start."""
    if not data.classes or partition not in PARTITIONS:
        raise ByzantiumError(
            f"the released random numbers are for data with classes and the partitions "
            f"{' and '.join(PARTITIONS)}, got {partition} of {data.name}"
        )
    order = data.train_y.argsort(stable=True).cpu().numpy()
    size = -(-len(order) // workers)
    filled = np.resize(order, size * workers)
    if partition == "iid()":
        return [filled[worker::workers] for worker in range(workers)]
    return list(filled.reshape(workers, size))


def _order(seed: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def check(run: Run) -> None:
    """Raise an error unless there are released random numbers for a run."""
    checks = [(name, f"{name}={one!r}", getattr(run, name) == one) for name, one in NEEDED.items()]
    partitions = f"{' or '.join(map(repr, PARTITIONS))} for partition"
    checks.append(("partition", partitions, run.partition in PARTITIONS))
    checks.append(("seed", f"seed < {LARGEST_SEED}", run.seed < LARGEST_SEED))
    for name, condition, holds in checks:
        if not holds:
            raise ByzantiumError(
                f"a run with randomness='released' needs {condition}, got "
                f"{name}={getattr(run, name)!r}"
            )
