"""The work of a merge on a Ray cluster: each task reads, computes and writes some columns.

`replay` says how a rule is called by many machines. Tasks write to one file, each its own bytes;
the driver gives it its name when all is written.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.core import ByzantiumError, files
from byzantium.engines.cluster.connection import Probe, answer_probe, connected
from byzantium.engines.cluster.replay import Follower, Leader, PartialSum, Step
from byzantium.engines.cluster.tasks import Tasks, describe
from byzantium.engines.files.merging import (
    Call,
    Merging,
    checkpoints_of,
    digests_of,
    equal_rows,
)
from byzantium.engines.files.safetensors import encode_header
from byzantium.engines.files.source import Files, Merged, check_output
from byzantium.rules import Report
from byzantium.vectors import Source
from byzantium.vectors.team import Team

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

# How many columns a task has. It does not depend on the cluster, and so sums do not, either.
COLUMNS = 1 << 24
# What all nodes share.
OUTPUT_FOLDER = "the folder of the output"


class Columns(Source):
    """Some columns of checkpoints, on a machine of a team.

    - `files`: the checkpoints.
    - `columns`: which columns.
    - `team`: the team.
    """

    def __init__(self, files: Files, columns: slice, team: Team) -> None:
        self.files, self.columns, self.team = files, columns, team
        self.n, self.d = files.n, columns.stop - columns.start
        self.dtype, self.device = files.dtype, files.device
        self.unreadable, self.names = files.unreadable, files.names

    def block(self, columns: slice, rows: Rows) -> Tensor:
        start = self.columns.start
        return self.files.block(slice(start + columns.start, start + columns.stop), rows)

    def trusted(self, name: str, vector: Any) -> Tensor:
        return self.files.root_columns(name, self.columns)

    def result(self, vector: Tensor, rows: Rows) -> Merged:
        return Merged(self.files, vector, rows, self.columns.start)


class ClusterMerging(Merging):
    """The work of a merge, done by tasks on a cluster.

    - `source`: the checkpoints, which all nodes can read.
    - `tasks`: the tasks.
    """

    def __init__(self, source: Files, tasks: Tasks) -> None:
        super().__init__(source)
        self.tasks, starts = tasks, range(0, max(source.d, 1), COLUMNS)
        self.parts = [slice(start, min(start + COLUMNS, source.d)) for start in starts]
        self.shared = tasks.share(_without_watch(source))

    def explain(self, call: Call) -> Report:
        if call.rule.center is not None:
            raise ByzantiumError(
                f"{call.rule!r} holds the center of an earlier call, which a cluster cannot use; "
                "reset() forgets it"
            )
        self.tasks.carry(call.rule)
        self.call, self.leader = call, Leader(self.source.d, self._sum_parts)
        return explain(call, Columns(self.source, slice(0, 0), self.leader))

    def equal_rows(self) -> dict[int, list[int]]:
        (equals,) = self.tasks.run(_equal_rows, [(self.shared,)])
        found: dict[int, list[int]] = equals
        return found

    def digests(self) -> dict[int, dict[str, str]]:
        rows = list(checkpoints_of(self.source))
        digests = self.tasks.run(_digests, [(self.shared, row) for row in rows])
        return dict(zip(rows, digests, strict=True))

    def save(self, merged: Merged, summary: Mapping[str, Any], output: Path) -> None:
        """Write it as `Merged.save` does: completely or not at all."""
        source, layout, offsets = self.source, merged.layout, dict[str, int]()
        header = encode_header(layout, json.dumps(summary))
        end = len(header)
        for name, (dtype, _) in layout.items():
            offsets[name], end = end, end + source.reference[name].size * dtype.stored.itemsize
        check_output(source.identities, output)
        files.clear_abandoned(output)
        with files.writing_beside(output.absolute()) as (beside, file):
            file.write(header)
            file.truncate(end)
            for name in layout:
                if name not in source.floats:
                    file.seek(offsets[name])
                    for block in merged.blocks(name, slice(0, source.reference[name].size)):
                        file.write(block.view(torch.uint8).numpy().data)
            file.flush()
            self._run_parts(_write, self.leader.steps, self.leader.phase, beside, offsets)
            merged.check_inputs()
            check_output(source.identities, output)

    def _sum_parts(self, steps: Sequence[Step]) -> list[Array]:
        return self._run_parts(_partial_sum, steps, sum(step.summed for step in steps))

    def _run_parts(self, function: Callable[..., Any], steps: Sequence[Step], *rest: Any) -> Any:
        """Call a function for each part of the columns."""
        done, known = 0, self.tasks.share((self.call, list(steps)))

        def watch(place: int) -> None:
            nonlocal done
            done += self.parts[place].stop - self.parts[place].start
            self.source.watch(done)

        calls = [(self.shared, part, known, *rest) for part in self.parts]
        return self.tasks.run(function, calls, watch)


@contextmanager
def merging_on_ray(
    address: str, most: int | None, source: Files, output: Path
) -> Iterator[ClusterMerging]:
    """A context in which the nodes of a cluster do the work; all must see the same files.

    - `address`: see `Ray`.
    - `most`: see `Tasks`.
    - `source`: the checkpoints.
    - `output`: the file to write.
    """
    folder = output.absolute().parent
    with connected(address), Probe(folder, OUTPUT_FOLDER) as probe:
        probe.check_every_node(check_node, _without_watch(source))
        yield ClusterMerging(source, Tasks(most))


def _without_watch(source: Files) -> Files:
    """The same checkpoints without what shows progress, which stays here."""
    same = copy.copy(source)
    same.watch = _ignore
    return same


def _ignore(done: int) -> None:
    pass


# -- on the nodes -------------------------------------------------------------------------------


def explain(call: Call, source: Source) -> Report:
    """What a rule makes of some columns; its state stays as it is, for the next call."""
    return dataclasses.replace(call, rule=copy.deepcopy(call.rule)).explain(source)


def next_sum(call: Call, source: Source) -> Array:
    """What a task adds to the first sum that the driver does not know.

    - `source`: the columns of the task, whose team is a `Follower`.
    """
    try:
        explain(call, source)
    except PartialSum as partial:
        return partial.numbers
    raise AssertionError(f"{call.rule!r} takes another course on this machine")


def check_node(source: Files, probe: Path, reply: Path, version: str) -> str:
    """Why this node cannot take part; "" if it can."""
    if trouble := answer_probe(OUTPUT_FOLDER, probe, reply, version):
        return trouble
    try:
        _reopen(source)
    except (ByzantiumError, OSError) as error:
        return f"it does not see the same files: {describe(error)}"
    return ""


def _reopen(source: Files) -> None:
    """Find all files on this machine."""
    for checkpoint in checkpoints_of(source).values():
        for file in checkpoint.files:
            file.reopen()


def _partial_sum(
    source: Files, part: slice, known: tuple[Call, Sequence[Step]], phase: int
) -> Array:
    """The next sum of a rule over some columns."""
    call, steps = known
    _reopen(source)
    return next_sum(call, Columns(source, part, Follower(source.d, steps, phase)))


def _write(
    source: Files,
    part: slice,
    known: tuple[Call, Sequence[Step]],
    phase: int | None,
    path: Path,
    offsets: Mapping[str, int],
) -> None:
    """Write the aggregate of some columns to its places in a file.

    - `offsets`: where each array begins in the file.
    """
    call, steps = known
    _reopen(source)
    team = Follower(source.d, steps, phase)
    merged: Merged = explain(call, Columns(source, part, team)).aggregate
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        for name, start in source.starts.items():
            entry = source.floats[name]
            first, last = max(part.start - start, 0), min(part.stop - start, entry.size)
            place = offsets[name] + first * entry.dtype.stored.itemsize
            if first < last:
                for block in merged.blocks(name, slice(first, last)):
                    place += _write_at(descriptor, block.view(torch.uint8).numpy().data, place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_at(descriptor: int, rest: memoryview, place: int) -> int:
    """Write all bytes at a place of a file, and return how many they are."""
    size = len(rest)
    while rest:
        count = os.pwrite(descriptor, rest, place)
        rest, place = rest[count:], place + count
    return size


def _equal_rows(source: Files) -> dict[int, list[int]]:
    _reopen(source)
    return equal_rows(source)


def _digests(source: Files, row: int) -> dict[str, str]:
    _reopen(source)
    return digests_of({row: checkpoints_of(source)[row]})[row]
