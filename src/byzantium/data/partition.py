"""Partitions: how the training samples are dealt to the honest workers."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Concatenate, ParamSpec

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import (
    ArgumentTypeError,
    ByzantiumError,
    Imbalance,
    Positive,
    PositiveMeasure,
    Registry,
    checked,
    notation,
    register,
    type_name,
    validated,
    validated_arguments,
)
from byzantium.data.dataset import Dataset
from byzantium.data.datasets import ranks

P = ParamSpec("P")
Indices = NDArray[np.int64]
Deal = Callable[[Indices, int, np.random.Generator], list[Indices]]
# What a function that deals samples may ask for, one whole number a sample, by the name of its
# first parameter: the number of the sample, its class, or whose it is.
LOOKED_AT = ("samples", "labels", "users")


@dataclass(frozen=True, repr=False)
class Partition:
    """A way to deal the training samples to workers, such as `iid()` or `dirichlet(0.1)`.

    Functions such as `iid` make one, and the decorator `partition` makes such functions. Two
    partitions with the same notation are equal.

    - `notation`: how it is written, such as "dirichlet(alpha=0.1)".
    - `deal`: the function that deals: from one whole number for each sample, the number of workers
      and a random generator of NumPy, the indices of each worker's samples.
    - `looks_at`: what these whole numbers are: "samples" (0, 1, 2, ...), "labels" or "users".

    >>> labels = torch.tensor([0, 1, 0, 1])
    >>> parts = by_label()(labels, workers=2, generator=torch.Generator())
    >>> [labels[part].tolist() for part in parts]
    [[0, 0], [1, 1]]
    """

    notation: str
    deal: Deal = field(compare=False)
    looks_at: str = field(default="labels", compare=False)

    def __repr__(self) -> str:
        return self.notation

    def __call__(
        self,
        labels: Tensor,
        workers: int,
        generator: torch.Generator,
        users: Tensor | None = None,
    ) -> list[Tensor]:
        """Deal samples: for each worker the indices of its samples, shuffled.

        - `labels`: the class of each sample, (N,).
        - `generator`: where it draws from; the same seed deals the same.
        - `users`: to whom each sample belongs, (N,), where that is known.
        """
        values = self._values(labels, users)
        workers = validated(str(self), "workers", workers, Positive)
        if workers > len(labels):
            raise ByzantiumError(
                f"{self} needs from 1 to {len(labels)} workers for {len(labels)} samples, "
                f"got workers={workers}"
            )
        if not isinstance(generator, torch.Generator):
            raise ArgumentTypeError(
                f"{self} needs a torch.Generator as generator, got {type_name(generator)}"
            )
        # The numbers are NumPy's, whose Dirichlet is right for tiny alpha, where Gamma variates
        # vanish in float64. One draw seeds them, on whatever device the generator is.
        seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
        rng = np.random.default_rng(int(seed))
        parts = self._checked(self.deal(values, workers, rng), workers, len(labels))
        return [torch.from_numpy(rng.permutation(part)) for part in parts]

    def _values(self, labels: Tensor, users: Tensor | None) -> Indices:
        if self.looks_at == "samples":
            return np.arange(len(labels))
        if self.looks_at == "users":
            if users is None:
                raise ByzantiumError(f"{self} needs data that say to whom each sample belongs")
            labels = users
        if labels.ndim != 1 or labels.is_floating_point():
            raise ByzantiumError(
                f"{self} needs a whole number for each sample as {self.looks_at}, "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        return labels.cpu().numpy().astype(np.int64)

    def _checked(self, parts: Any, workers: int, samples: int) -> list[Indices]:
        """The parts that were dealt, checked: the function may be a user's."""
        arrays = [np.asarray(part) for part in parts]
        if len(arrays) != workers or not all(part.ndim == 1 and part.size for part in arrays):
            raise ByzantiumError(
                f"{self} must give each of {workers} workers the indices of at least one sample, "
                f"got sizes {[part.size for part in arrays][:20]}"
            )
        whole = [part for part in arrays if np.issubdtype(part.dtype, np.integer)]
        if len(whole) < workers or not all(0 <= p.min() <= p.max() < samples for p in whole):
            raise ByzantiumError(f"{self} must give indices from 0 to {samples - 1}")
        return [part.astype(np.int64) for part in whole]


def partition(
    deal: Callable[Concatenate[Indices, int, np.random.Generator, P], list[Indices]],
) -> Callable[P, Partition]:
    """Decorate a function that deals samples: calling it then makes a `Partition`.

    The function takes one whole number for each sample (the name of its first parameter says which:
    `samples`, `labels` or `users`), the number of workers and a random generator of NumPy, and
    returns the indices of each worker's samples. Further parameters are those of the notation.

    >>> @partition
    ... def halves(labels, workers, rng, first: float = 0.5):
    ...     rest = np.arange(len(labels))
    ...     return np.split(rest, [int(first * len(rest))])
    >>> halves(first=0.25), [len(part) for part in halves(0.25)(torch.zeros(8).long(), 2,
    ...     torch.Generator())]
    (halves(first=0.25), [2, 6])
    """
    signature = inspect.signature(deal)
    looks_at, *others = signature.parameters
    if looks_at not in LOOKED_AT or len(others) < 2:
        raise ByzantiumError(
            f"{deal.__name__} needs the parameters labels, workers, rng to be a partition (or "
            f"samples, or users, instead of labels), got {', '.join(signature.parameters)}"
        )
    own = signature.replace(
        parameters=list(signature.parameters.values())[3:], return_annotation=Partition
    )

    @functools.wraps(deal)
    def make(*args: P.args, **kwargs: P.kwargs) -> Partition:
        arguments = validated_arguments(deal, own.bind(*args, **kwargs).arguments)
        written = ", ".join(
            f"{name}={_written(value)}"
            for name, value in arguments.items()
            if value != own.parameters[name].default
        )
        # Not the function itself: what is found by its name, in another process, is this one.
        dealing = functools.partial(_deal, make, arguments)
        return Partition(f"{deal.__name__}({written})", dealing, looks_at)

    make.__signature__ = own  # type: ignore[attr-defined]
    return register(make, "partition")


def _deal(
    make: Any, arguments: Mapping[str, Any], values: Indices, workers: int, rng: np.random.Generator
) -> list[Indices]:
    return make.__wrapped__(values, workers, rng, **arguments)


@partition
def iid(samples: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
    """Samples are shuffled and dealt out one by one: all workers hold alike data.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> [len(part) for part in iid()(labels, 3, torch.Generator().manual_seed(1))]
    [2, 1, 1]
    """
    return _dealt(rng.permutation(len(samples)), workers)


@partition
def by_label(labels: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
    """Samples are sorted by label and cut: each worker has few labels, the paper's non-iid setting.

    Each worker gets ceil(N/workers) consecutive samples. The last one may get fewer, and repeats
    some of its own until it has as many. Where the last workers would get none at all, the samples
    are cut as evenly as possible instead, and a worker with one sample too few repeats one.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR
    2022.

    >>> labels = torch.tensor([1, 0, 1, 0])
    >>> parts = by_label()(labels, 2, torch.Generator().manual_seed(1))
    >>> [sorted(part.tolist()) for part in parts]
    [[1, 3], [0, 2]]
    """
    return _cut(labels.argsort(kind="stable"), workers)


@partition
def by_user(users: Indices, workers: int, rng: np.random.Generator) -> list[Indices]:
    """Each worker has all samples of one user, or of several where there are more users.

    A user is the person whom a sample comes from, such as the writer of a digit. Users are dealt
    whole, in a random order. The data must say to whom each sample belongs: `Dataset.train_user`.

    Caldas et al.: LEAF: A Benchmark for Federated Settings, 2018 (its FEMNIST is dealt by writers).

    >>> users = torch.tensor([7, 7, 3, 7])
    >>> parts = by_user()(torch.zeros(4), 2, torch.Generator().manual_seed(0), users)
    >>> sorted(sorted(part.tolist()) for part in parts)
    [[0, 1, 3], [2]]
    """
    different, whose = np.unique(users, return_inverse=True)
    if workers > len(different):
        raise ByzantiumError(
            f"by_user() needs at most as many workers as there are users, {len(different)}, "
            f"got workers={workers}"
        )
    worker_of = np.empty(len(different), dtype=np.int64)
    worker_of[rng.permutation(len(different))] = np.arange(len(different)) % workers
    return [np.flatnonzero(worker_of[whose] == worker) for worker in range(workers)]


@partition
def dirichlet(
    labels: Indices, workers: int, rng: np.random.Generator, alpha: PositiveMeasure
) -> list[Indices]:
    r"""Each class is shared among the workers in proportions drawn from Dirichlet(alpha).

    .. math:: (p_1, \dots, p_{\mathrm{workers}}) \sim \mathrm{Dirichlet}(\alpha, \dots, \alpha)

    are drawn for each class; worker i gets the share :math:`p_i` of its samples. The smaller alpha,
    the more the workers differ: at 0.1 a few of them hold most of a class, at 100 all hold about
    the same. A worker that would have no sample takes one from the worker that has most.

    Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification, 2019. (They draw proportions for each worker; drawing them for each class, as
    here, is usual since.)

    - `alpha`: above 0; how even the proportions are.

    >>> labels = torch.arange(10).repeat(100)
    >>> parts = dirichlet(0.1)(labels, 4, torch.Generator())
    >>> len(parts), sum(len(part) for part in parts)
    (4, 1000)
    """
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


@partition
def mixed(
    labels: Indices,
    workers: int,
    rng: np.random.Generator,
    fraction: Annotated[float, Ge(0), Le(1)],
) -> list[Indices]:
    """A random `fraction` of the samples is dealt as in `iid`, the rest as in `by_label`.

    - `fraction`: from 0, which is `by_label`, to 1, which is `iid`.

    >>> labels = torch.tensor([0, 1]).repeat(50)
    >>> first, second = mixed(fraction=0.2)(labels, 2, torch.Generator())
    >>> int((labels[first] == 0).sum()) > 35, int((labels[second] == 1).sum()) > 35
    (True, True)
    """
    order = rng.permutation(len(labels))
    free, rest = np.split(order, [round(fraction * len(labels))])
    rest.sort()
    rest = rest[labels[rest].argsort(kind="stable")]
    # What does not come out even goes to the first workers here, to the last there: with as many
    # samples as workers, each has one.
    return [
        np.concatenate(two) for two in zip(_dealt(free, workers), _cut(rest, workers), strict=True)
    ]


PARTITIONS: Registry[Callable[..., Partition]] = Registry(
    "partition",
    {deal.__name__: deal for deal in (iid, by_label, by_user, dirichlet, mixed)},
    {"noniid": "by_label"},  # the paper's, which tables and figures show
)


def read(text: str) -> Partition:
    """The partition that a text describes, such as "dirichlet(0.1)" or "dirichlet(alpha=0.1)".

    >>> read("by_label"), read("dirichlet(0.1)"), read("noniid")  # as the paper calls by_label
    (by_label(), dirichlet(alpha=0.1), by_label())
    >>> read("idd")
    Traceback (most recent call last):
    byzantium.ByzantiumError: 'idd()' names 'idd', which does not exist; did you mean 'iid'?
    """
    result = notation.read(
        notation.with_parentheses(text) if isinstance(text, str) else text, PARTITIONS
    )
    assert isinstance(result, Partition)
    return result


@checked
def long_tail(data: Dataset, gamma: Imbalance) -> Dataset:
    r"""A data set with unequally frequent classes: a part of another one.

    Class i, counted from 0, keeps the share :math:`\gamma^{-i / (C - 1)}` of its samples, where C
    is the number of classes; at least one sample. The first class keeps all of them, the last one
    gamma times fewer. The paper's is gamma = 512: with ten classes, each has half as many samples
    as the one before. Training and test set are both changed.

    Karimireddy, He, Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR
    2022.

    - `data`: the data set to select from; it must have classes.
    - `gamma`: how many times fewer samples the last class keeps than the first, at least 1.

    >>> from byzantium.data import load
    >>> long_tail(load("digits"), gamma=512).test_y.bincount().tolist()
    [35, 18, 8, 4, 2, 1, 1, 1, 1, 1]
    """
    if not data.classes:
        raise ByzantiumError(f"long_tail needs data with classes, and {data.name} has none")
    train, test = tail(data.train_y, gamma), tail(data.test_y, gamma)
    return replace(
        data,
        name=f"{data.name}, long_tail(gamma={_written(gamma)})",
        train_x=data.train_x[train],
        train_y=data.train_y[train],
        test_x=data.test_x[test],
        test_y=data.test_y[test],
        train_user=None if data.train_user is None else data.train_user[train],
    )


@checked
def tail(labels: Tensor, gamma: Imbalance) -> Tensor:
    """The indices of the samples that `long_tail` keeps: the first ones of each class.

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
    """How many samples of each class each worker holds, as a table (workers, classes).

    >>> counts([torch.tensor([0, 1]), torch.tensor([2])], torch.tensor([0, 0, 1]), classes=2)
    tensor([[2, 0],
            [0, 1]])
    """
    return torch.stack([torch.bincount(labels[part], minlength=classes) for part in parts])


def picture(parts: Sequence[Tensor], labels: Tensor, path: str | os.PathLike[str]) -> None:
    """Draw how many samples of each class each worker holds, as a heat map.

    It needs matplotlib. The ending of the path, such as .png or .pdf, says in which format.
    """
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
    if workers <= 60 and classes <= 40:  # the numbers can be read
        for worker, label in zip(*table.nonzero(), strict=True):
            held = table[worker, label]
            shade = "white" if 2 * held > table.max() else "black"
            axes.text(label, worker, str(held), ha="center", va="center", color=shade, fontsize=7)
    figure.colorbar(image, label="samples")
    figure.savefig(path, dpi=150)


def _written(value: Any) -> str:
    """One text for equal numbers, the shortest that says all: 1, not 1.0."""
    short = isinstance(value, float) and float(f"{value:g}") == value
    return f"{value:g}" if short else repr(value)


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
