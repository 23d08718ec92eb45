"""Robust merging: checkpoints in, one checkpoint out that tells whom it came from."""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byzantium import __version__
from byzantium.aggregation import Aggregator, column_blocks
from byzantium.core import files, spread
from byzantium.engines.checkpoints import Checkpoint
from byzantium.engines.files import Files, check_output
from byzantium.guarantees import announce
from byzantium.runs import plugins

# Of each array, for a first look at which checkpoints could be equal.
GLANCE = 4096
CHUNK = 1 << 20


def merge(
    rule: Aggregator,
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    force: bool = False,
    seed: int | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Aggregate checkpoints into a new one; returns what it tells of itself.

    See `Files` for base and force. Who counted how much, who was rejected and why, and the digests
    of what was read also stand among the metadata of the output, under "byzantium".

    seed:  of the random mixings; without it they are drawn from the operating system.
    watch: is called with the number of columns that a pass has read, and of all.
    """
    source = Files(paths, base, force)
    check_output(source, Path(output))
    if watch is not None:
        source.watch = lambda done: watch(done, source.d)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    announce(rule, source.n)
    report = rule.explain(source, generator)
    alike = equals(source)
    readable = {row: source.checkpoint(row) for row in source.readable.tolist()}
    found = digests(readable if source.base is None else {-1: source.base, **readable})
    contributors = [
        {
            "name": source.called(i),
            "weight": weight if math.isfinite(weight) else None,
            "rejected": report.reasons.get(i),
            "equal_to": [source.called(k) for k in alike.get(i, ()) if k != i],
            "sha256": found.get(i, {}),
        }
        for i, weight in enumerate(report.weights.tolist())
    ]
    said = {
        "version": __version__,
        "rule": repr(rule),
        "seed": seed,
        "base": found.get(-1),
        "contributors": contributors,
        "remainder": report.remainder if math.isfinite(report.remainder) else None,
        "notes": list(report.notes),
    }
    if used := plugins.used({"rule": repr(rule)}):
        said["plugin"] = list(used)
    report.aggregate.save(output, said)
    return said


def digests(checkpoints: Mapping[int, Checkpoint]) -> dict[int, dict[str, str]]:
    """Of each file of each checkpoint, by name, the SHA-256."""
    owners = [(i, path) for i, checkpoint in checkpoints.items() for path in checkpoint.stats]

    def digest(k: int, _: int) -> str:
        with files.reading(owners[k][1]) as file:
            total = hashlib.sha256()
            while chunk := file.read(CHUNK):
                total.update(chunk)
        return total.hexdigest()

    pieces = [(k, k + 1) for k in range(len(owners))]
    found: dict[int, dict[str, str]] = defaultdict(dict)
    values = spread(digest, pieces, torch.get_num_threads())
    for (i, path), value in zip(owners, values, strict=True):
        found[i][path.name] = value
    return found


def equals(source: Files) -> dict[int, list[int]]:
    """Of each readable row that is equal to others, all that are, itself among them."""
    glances = defaultdict(list)
    for row in source.readable.tolist():
        glance = hashlib.sha256()
        for name in source.floats:
            entry = source.checkpoint(row).entries[name]
            glance.update(entry.raw(0, min(GLANCE, entry.size)).data)
        glances[glance.digest()].append(row)
    alike: dict[int, list[int]] = {}
    for rows in glances.values():
        while rows:
            first, *others = rows
            same = [first, *(row for row in others if _equal(source, first, row))]
            rows = [row for row in rows if row not in same]
            alike |= dict.fromkeys(same, same) if len(same) > 1 else {}
    return alike


def _equal(source: Files, row: int, other: int) -> bool:
    """Whether two rows hold the same floating-point numbers, to the bit."""
    return all(
        np.array_equal(one, two)
        for one, two in zip(_bytes(source, row), _bytes(source, other), strict=True)
    )


def _bytes(source: Files, row: int) -> Iterator[Any]:
    for name in source.floats:
        entry = source.checkpoint(row).entries[name]
        for part in column_blocks(1, entry.size, torch.float32):
            yield entry.raw(part.start, part.stop)
