"""Who holds what: how the training set is dealt to the honest workers."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import (
    Bounds,
    ByzantiumError,
    Imbalance,
    KindError,
    Positive,
    PositiveMeasure,
    checked,
    fitted,
    notation,
)
from byzantium.learning.data import Dataset, ranks

Indices = NDArray[np.int64]
Deal = Callable[[Indices, int, np.random.Generator], list[Indices]]


@dataclass(frozen=True, repr=False)
class Partition:
    """A way to deal samples; partitions with the same notation are equal."""

    notation: str
    deal: Deal = field(compare=False)

    def __repr__(self) -> str:
        return self.notation

    def __call__(self, labels: Tensor, workers: int, generator: torch.Generator) -> list[Tensor]:
        """For each worker the indices of its samples, shuffled; the same ones for the same seed."""
        if labels.ndim != 1 or labels.is_floating_point():
            raise ByzantiumError(
                f"{self} needs one whole number a sample as labels, "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        workers = fitted(str(self), "workers", workers, Positive)
        if workers > len(labels):
            raise ByzantiumError(
                f"{self} needs from 1 to {len(labels)} workers for {len(labels)} samples, "
                f"got workers={workers}"
            )
        if not isinstance(generator, torch.Generator):
            raise KindError(
                f"{self} needs a torch.Generator as generator, got a {type(generator).__name__}"
            )
        # The numbers are NumPy's, whose Dirichlet is right for tiny alpha, where Gamma variates
        # vanish in float64. One draw seeds them, on whatever device the generator is.
        seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
        rng = np.random.default_rng(int(seed))
        parts = self.deal(labels.cpu().numpy().astype(np.int64), workers, rng)
        return [torch.from_numpy(rng.permutation(part)) for part in parts]


def iid() -> Partition:
    """Samples are shuffled; worker r takes every workers-th, beginning with the r-th.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> [len(part) for part in iid()(labels, 3, torch.Generator().manual_seed(1))]
    [2, 1, 1]
    """
    return Partition("iid()", _iid)


def by_label() -> Partition:
    """Samples are sorted by label and cut: few labels a worker, the paper's non-iid setting.

    Each worker gets ceil(N/workers) consecutive ones; the last repeats some of its own until it has
    as many. (Where the last workers would get none at all, the cut is as even as can be instead,
    and those that have one too few repeat one.)

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, 2022.

    >>> labels = torch.tensor([1, 0, 1, 0])
    >>> parts = by_label()(labels, 2, torch.Generator().manual_seed(1))
    >>> [sorted(part.tolist()) for part in parts]
    [[1, 3], [0, 2]]
    """
    return Partition("by_label()", _by_label)


@checked
def dirichlet(alpha: PositiveMeasure) -> Partition:
    """Each class is shared among the workers in proportions drawn from Dirichlet(alpha).

    The smaller alpha, the fewer workers have most of a class. Whoever would have no sample at all
    takes one from the worker who has most.

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019 (theirs draws for each worker; this, as is usual since, for each class).

    >>> dirichlet(0.1)
    dirichlet(alpha=0.1)
    """
    return Partition(
        f"dirichlet(alpha={_written(alpha)})", functools.partial(_dirichlet, alpha=alpha)
    )


@checked
def mixed(fraction: Annotated[float, Bounds(least=0, most=1)]) -> Partition:
    """A random `fraction` of the samples is dealt as in `iid`, the rest as in `by_label`.

    >>> mixed(fraction=0.5)
    mixed(fraction=0.5)
    """
    return Partition(
        f"mixed(fraction={_written(fraction)})", functools.partial(_mixed, fraction=fraction)
    )


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "by_label": by_label,
    "dirichlet": dirichlet,
    "mixed": mixed,
}


def read(text: str) -> Partition:
    """A partition from its notation, with or without the name of its argument.

    >>> read("by_label"), read("dirichlet(0.1)")
    (by_label(), dirichlet(alpha=0.1))
    >>> read("idd")
    Traceback (most recent call last):
    byzantium.ByzantiumError: 'idd()' names 'idd', which does not exist; did you mean 'iid'?
    """
    if isinstance(text, str) and text.strip().isidentifier():
        text = f"{text.strip()}()"
    result = notation.read(text, PARTITIONS)
    assert isinstance(result, Partition)
    return result


@checked
def long_tail(data: Dataset, gamma: Imbalance) -> Dataset:
    """An unbalanced selection, to learn from and to test with: see `tail`.

    >>> from byzantium.learning import load
    >>> long_tail(load("digits"), gamma=512).test_y.bincount().tolist()
    [35, 18, 8, 4, 2, 1, 1, 1, 1, 1]
    """
    train, test = tail(data.train_y, gamma), tail(data.test_y, gamma)
    return replace(
        data,
        name=f"{data.name}, long_tail(gamma={_written(gamma)})",
        train_x=data.train_x[train],
        train_y=data.train_y[train],
        test_x=data.test_x[test],
        test_y=data.test_y[test],
    )


@checked
def tail(labels: Tensor, gamma: Imbalance) -> Tensor:
    """Indices of an unbalanced selection: class i keeps the share gamma^(-i / (classes - 1)).

    The first class keeps all, the last one gamma times less, each at least one. The paper's is
    gamma = 512 for ten classes: half of the class before. The first samples of each class stay.

    >>> labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    >>> tail(labels, gamma=4)
    tensor([0, 1, 2, 4, 6])
    """
    y = labels.cpu().numpy()
    count = np.bincount(y)
    share = float(gamma) ** (-np.arange(len(count)) / max(1, len(count) - 1))
    # 512^(-1/9) is not quite a half in float64: a whole number just missed is that number.
    keep = np.maximum(1, np.floor(count * share + 1e-6))
    return torch.from_numpy(np.flatnonzero(ranks(y) < keep[y]))


def counts(parts: Sequence[Tensor], labels: Tensor, classes: int) -> Tensor:
    """(workers, classes): how many samples of each class each worker holds.

    >>> counts([torch.tensor([0, 1]), torch.tensor([2])], torch.tensor([0, 0, 1]), classes=2)
    tensor([[2, 0],
            [0, 1]])
    """
    return torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])


def picture(parts: Sequence[Tensor], labels: Tensor, path: str | os.PathLike[str]) -> None:
    """A heat map of who holds what, one row a worker, in the format that the path ends with."""
    from matplotlib.figure import Figure

    table = counts(parts, labels, int(labels.max()) + 1).numpy()
    workers, classes = table.shape
    width, height = max(5, 2.5 + 0.55 * min(classes, 40)), 1.5 + 0.3 * min(workers, 60)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(table, cmap="Blues", aspect="auto", vmin=0, interpolation="nearest")
    axes.set_title(f"Who holds what: {table.sum()} samples, {workers} workers")
    axes.set_xlabel("class")
    axes.set_ylabel("worker")
    axes.set_xticks(range(0, classes, -(-classes // 40)))
    axes.set_yticks(range(0, workers, -(-workers // 60)))
    if workers <= 60 and classes <= 40:  # room for numbers
        for worker, label in zip(*table.nonzero(), strict=True):
            held = table[worker, label]
            shade = "white" if 2 * held > table.max() else "black"
            axes.text(label, worker, str(held), ha="center", va="center", color=shade, fontsize=7)
    figure.colorbar(image, label="samples")
    figure.savefig(path, dpi=150)


def _written(value: float) -> str:
    """One text for equal numbers, the shortest that says all: 1, not 1.0."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _iid(labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
    return _dealt(rng.permutation(len(labels)), workers)


def _by_label(labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
    return _cut(labels.argsort(kind="stable"), workers)


def _mixed(
    labels: Indices, workers: int, rng: np.random.Generator, *, fraction: float
) -> list[Indices]:
    order = rng.permutation(len(labels))
    free, rest = np.split(order, [round(fraction * len(labels))])
    rest.sort()
    rest = rest[labels[rest].argsort(kind="stable")]
    # What does not come out even goes to the first workers here, to the last there: with as many
    # samples as workers, each has one.
    return [
        np.concatenate(two) for two in zip(_dealt(free, workers), _cut(rest, workers), strict=True)
    ]


def _dirichlet(
    labels: Indices, workers: int, rng: np.random.Generator, *, alpha: float
) -> list[Indices]:
    owner = np.empty(len(labels), dtype=np.int64)
    alpha = min(alpha, 1e300)  # as even as shares get, and their sum is finite
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        ends = rng.dirichlet(np.full(workers, alpha)).cumsum() * len(members)
        ends[-1] = len(members)  # whatever the sum of shares was rounded to
        owner[members] = np.searchsorted(ends, np.arange(len(members)) + 0.5)
    held = np.bincount(owner, minlength=workers)
    for poor in np.flatnonzero(held == 0):
        rich = held.argmax()
        owner[np.flatnonzero(owner == rich)[0]] = poor
        held[[rich, poor]] += (-1, 1)
    return np.split(owner.argsort(kind="stable"), held.cumsum()[:-1])


def _dealt(order: Indices, workers: int) -> list[Indices]:
    return [order[worker::workers] for worker in range(workers)]


def _cut(order: Indices, workers: int) -> list[Indices]:
    """Consecutive chunks of equal size, padded by repetition."""
    size = -(-len(order) // workers)
    ends = np.arange(1, workers) * size
    if len(ends) and ends[-1] >= len(order):
        # The last would be empty: all get the same number, and the last ones one more.
        each, more = divmod(len(order), workers)
        chunk = np.arange(1, workers)
        ends = chunk * each + np.maximum(0, chunk - (workers - more))
    return [np.resize(chunk, size) if len(chunk) else chunk for chunk in np.split(order, ends)]
