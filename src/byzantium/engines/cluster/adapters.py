"""The work of merging LoRA adapters on a Ray cluster: each task has the factors of some modules.

The driver reads the adapters, which are small, and sends each task the factors that it needs. Rules
are called by the driver and all tasks, see `replay`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byzantium import __version__
from byzantium.core import ByzantiumError
from byzantium.engines.cluster.connection import ask_every_node, connected, wrong_version
from byzantium.engines.cluster.merging import explain, next_sum
from byzantium.engines.cluster.replay import Follower, Leader, Step
from byzantium.engines.cluster.tasks import Tasks
from byzantium.engines.files.adapter_merging import AdapterMerging, ModuleCut, Rank, cut_module
from byzantium.engines.files.adapters import Adapters
from byzantium.engines.files.merging import Call
from byzantium.rules import Report
from byzantium.vectors import LowRankUpdate
from byzantium.vectors.low_rank_part import LowRankPart
from byzantium.vectors.team import ALONE

Array = NDArray[np.float64]

# How many numbers the factors of a task have, if those of one module have not more. It does not
# depend on the cluster, and so sums do not, either.
NUMBERS = 1 << 24


class ClusterAdapterMerging(AdapterMerging):
    """The work of merging adapters, done by tasks on a cluster.

    - `source`: the adapters.
    - `tasks`: the tasks.
    """

    def __init__(self, source: Adapters, tasks: Tasks) -> None:
        super().__init__(source)
        self.tasks = tasks

    def explain(self, call: Call) -> Report:
        if self.source.full:
            raise ByzantiumError(
                f"{call.rule!r} needs the coordinates of whole matrices, which one process "
                "computes: omit the engine, or take a rule by weights, such as GeometricMedian()"
            )
        if call.root is not None:
            self.source.set_root("the root", call.root)
        self.tasks.carry(call.rule)
        parts = [LowRankPart(self.source, names, ALONE) for names in _groups(self.source)]
        self.parts = [self.tasks.share(part) for part in parts]
        self.call, leader = call, Leader(self.source.d, self._sum_parts)
        report = explain(call, LowRankPart(self.source, (), leader))
        return dataclasses.replace(report, aggregate=self.source.result(*report.aggregate))

    def cuts(self, update: LowRankUpdate, rank: Rank) -> dict[str, ModuleCut]:
        usual = self.source.largest_ranks
        calls = [(part, update.weights, rank, usual) for part in self.parts]
        found: dict[str, ModuleCut] = {}
        for cuts in self.tasks.run(_cuts, calls):
            found |= cuts
        return {name: found[name] for name in update.products}

    def _sum_parts(self, steps: Sequence[Step]) -> list[Array]:
        known, phase = self.tasks.share((self.call, list(steps))), sum(s.summed for s in steps)
        calls = [(part, self.source.d, known, phase) for part in self.parts]
        return self.tasks.run(_partial_sum, calls)


def _groups(source: Adapters) -> list[list[Any]]:
    """The names of what each task has, in the order of the adapters."""
    groups: list[list[Any]] = []
    left = 0
    for part in source.parts:
        out, columns = part.shape if part.factored else (1, part.size)
        ranks = sum(one[part.name].rank for one in source.everyone)
        size = ranks * (out + columns) if part.factored else len(source.everyone) * columns
        if not groups or size > left:
            groups.append([])
            left = NUMBERS
        groups[-1].append(part.name)
        left -= size
    return groups


@contextmanager
def merging_adapters_on_ray(
    address: str, most: int | None, source: Adapters
) -> Iterator[ClusterAdapterMerging]:
    """A context in which the nodes of a cluster do the work.

    - `address`: see `Ray`.
    - `most`: see `Tasks`.
    - `source`: the adapters, which only the driver reads.
    """
    with connected(address):
        for node, _, trouble in ask_every_node(wrong_version, lambda: (__version__,)):
            if trouble:
                raise ByzantiumError(f"{node} of the cluster cannot take part: {trouble}")
        yield ClusterAdapterMerging(source, Tasks(most))


# -- on the nodes -------------------------------------------------------------------------------


def _partial_sum(
    part: LowRankPart, d: int, known: tuple[Call, Sequence[Step]], phase: int
) -> Array:
    """The next sum of a rule over some modules."""
    call, steps = known
    part.team = Follower(d, steps, phase)
    return next_sum(call, part)


def _cuts(
    part: LowRankPart, weights: Array, rank: Rank, usual: dict[str, int]
) -> dict[str, ModuleCut]:
    """The modules of a part, cut to a rank.

    - `weights`: those of the merged update.
    - `usual`: the rank of each module if none is given.
    """
    update = LowRankUpdate(part, weights, {})
    return {name: cut_module(update, name, rank, usual[name]) for name in update.products}
