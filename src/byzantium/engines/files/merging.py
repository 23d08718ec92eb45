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
from byzantium._kernels.threads import parallel_map
from byzantium._kernels.torch_passes import column_blocks
from byzantium.core import validated
from byzantium.engines.files.safetensors import Checkpoint
from byzantium.engines.files.source import Files, check_output
from byzantium.guarantees import announce
from byzantium.rules import Aggregator
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
    """Merge checkpoints, of which some may be bad, into a new one by a robust rule.

    The files are in the format safetensors. They are read and written block by block, so that they
    need not fit into memory.

    - `rule`: the rule, with mixings before it if wanted.
    - `paths`: the checkpoints, one of each contributor: files, indices of sharded checkpoints, or
      folders that hold one of these.
    - `output`: the file to write; no file that is read is ever overwritten.
    - `base`: the checkpoint that all started from: the rule then sees their changes to it, and the
      merged change is added to it again.
    - `force`: also merge the two factors of low-rank updates (LoRA), which are refused otherwise:
      the product of merged factors is not the merged product.
    - `seed`: the seed of random mixings; by default they draw from the operating system.
    - `watch`: called with how many columns a pass has read, and how many there are.

    Returns how much each contributor counted, who was rejected and why, who is equal to whom, and
    the digests of what was read. The same is in the metadata of the output, under "byzantium".

    >>> import tempfile
    >>> from byzantium import Median
    >>> from safetensors.torch import load_file, save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{name}.safetensors" for name in ("ada", "bob", "eve")]
    ...     for path, value in zip(paths, (1.0, 2.0, 1e6)):
    ...         save_file({"weight": torch.full((2, 2), value)}, path)
    ...     said = merge(Median(), paths, f"{folder}/merged.safetensors")
    ...     load_file(f"{folder}/merged.safetensors")
    {'weight': tensor([[2., 2.],
            [2., 2.]])}
    >>> [(one["name"], one["weight"]) for one in said["contributors"]]
    [('ada.safetensors', 0.0), ('bob.safetensors', 1.0), ('eve.safetensors', 0.0)]
    """
    validated("merge", "rule", rule, Aggregator)
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
            "name": source.row_name(i),
            "weight": weight if math.isfinite(weight) else None,
            "rejected": report.reasons.get(i),
            "equal_to": [source.row_name(k) for k in alike.get(i, ()) if k != i],
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
    """The SHA-256 of each file of each checkpoint, by name."""
    owners = [(i, file) for i, checkpoint in checkpoints.items() for file in checkpoint.files]

    def digest(k: int, _: int) -> str:
        file, total = owners[k][1], hashlib.sha256()
        for start in range(0, file.size, CHUNK):
            total.update(file.read(start, min(CHUNK, file.size - start)).data)
        return total.hexdigest()

    pieces = [(k, k + 1) for k in range(len(owners))]
    found: dict[int, dict[str, str]] = defaultdict(dict)
    values = parallel_map(digest, pieces, torch.get_num_threads())
    for (i, file), value in zip(owners, values, strict=True):
        found[i][file.path.name] = value
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
