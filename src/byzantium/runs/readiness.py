"""Checks that runs can begin, before any of them does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from byzantium.core import ByzantiumError
from byzantium.runs.job import Job
from byzantium.runs.run import Run

if TYPE_CHECKING:
    from torch import nn

    from byzantium.data import Dataset

#: Models with so many parameters or fewer are tried with real numbers before a run begins. To try
#: one without numbers, torch imports its compiler, which takes longer than importing torch.
SMALL = 1 << 24


def check_ready(jobs: Iterable[Job]) -> None:
    """Raise an error unless jobs can begin: data are found, and models and partitions fit them.

    It takes seconds, and can save hours. Runs with the same data, model and
    partition are checked once.

    >>> check_ready([Run(model="convnet"), Run(model="linear")])
    >>> check_ready([Run(model="cnn")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    byzantium.ByzantiumError: the model cnn is for images of 1 x 28 x 28, those of digits are ...
    """
    from byzantium.runs import builders

    alike: dict[tuple[str, float], dict[tuple[Any, ...], Run]] = {}
    for run in jobs:
        if isinstance(run, Run):
            run._prepare()
            same = alike.setdefault((run.data, run.long_tail), {})
            honest = run.n - run.attacker_count
            by_size: tuple[Any, ...]
            by_size = () if run.weights == "equal" else (run.rule, run.f, run.participants)
            momentum = run.worker == "Momentum()"
            by_size += () if momentum else (run.worker, run.attack, run.dtype)
            same[run.model, run.partition, run.loss, run.device, honest, run.root, by_size] = run
    for (name, gamma), different in alike.items():
        data = builders.load_data(name, gamma)
        for run in different.values():
            _check_parts(run, data)


def _check_parts(run: Run, data: Dataset) -> None:
    """Raise an error unless its model, loss, device and partition fit a data set."""
    import torch

    from byzantium.data import partition
    from byzantium.learning import losses, models, root_data, sizes

    models.check_device(run.device)
    try:
        with torch.device("meta"):  # shapes without numbers, which take no memory
            model = run.build_model(data)
        if sum(parameter.numel() for parameter in model.parameters()) <= SMALL:
            model = run.build_model(data)
    except (RuntimeError, MemoryError) as error:
        raise ByzantiumError(f"the model {run.model} cannot be built: {error}") from error
    loss = losses.read(run.loss)
    models.check_fit(model, data, loss, f"the model {run.model}")
    generator = torch.Generator().manual_seed(0)
    if run.root:
        data = root_data.without(data, root_data.draw_root(data, run.root, generator))
    parts = partition.read(run.partition)(
        data.train_y, run.n - run.attacker_count, generator, users=data.train_user
    )
    _check_memory(run, model, [len(part) for part in parts], len(data.train_y))
    if run.weights == "sizes":
        weights = sizes.site_sizes(parts, run.attacker_count)
        sizes.check_weights(run.aggregator(), weights, run.participants)


def _check_memory(run: Run, model: nn.Module, sizes: list[int], samples: int) -> None:
    """Raise an error where the memory does not hold what its worker method remembers.

    - `sizes`: how many samples each honest worker has.
    - `samples`: how many samples there are, from which attackers draw.
    """
    import torch

    from byzantium import attacks
    from byzantium.learning import method
    from byzantium.runs import builders

    attack = attacks.parse_attack(run.attack)
    if attack.needs_own and attack.own_momentum:
        sizes = sizes + [samples // len(sizes)] * run.attacker_count
    worker = builders.worker(run.worker, run.momentum, run.heavy_ball)
    d = sum(p.numel() for p in model.parameters() if p.requires_grad)
    method.check_size(worker, sizes, d, getattr(torch, run.dtype).itemsize)
