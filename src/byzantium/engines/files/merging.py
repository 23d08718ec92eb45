"""Robust merging of checkpoints into one, whose metadata name the contributors."""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from byzantium import __version__
from byzantium._kernels.threads import parallel_map
from byzantium._kernels.torch_passes import column_blocks
from byzantium.core import ByzantiumError, validated
from byzantium.engines.files.safetensors import Checkpoint
from byzantium.engines.files.sizes import weights_of
from byzantium.engines.files.source import Files, Merged, check_output
from byzantium.guarantees import announce
from byzantium.rules import Aggregator, Report
from byzantium.runs import plugins
from byzantium.vectors import Source

logger = logging.getLogger("byzantium")

# How many numbers of each array a first comparison of checkpoints reads.
PREFIX = 4096
# How many names a line of the log has at most.
MAX_LISTED = 20
# How many bytes a digest reads at a time.
CHUNK = 1 << 20


def merge(
    rule: Aggregator,
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    force: bool = False,
    seed: int | None = None,
    watch: Callable[[int, int], None] | None = None,
    engine: MergingEngine | None = None,
) -> dict[str, Any]:
    """Merge checkpoints, of which some may be Byzantine, into a new one by a robust rule.

    The files are in the format safetensors. They are read and written block by block, so that they
    need not fit into memory.

    - `rule`: the rule, with mixings before it if wanted.
    - `paths`: the checkpoints, one of each contributor: files, indices of sharded checkpoints, or
      folders that hold one of these.
    - `output`: the file to write; no file that is read is ever overwritten.
    - `base`: the checkpoint that all started from: the rule then aggregates their changes to it,
      and the merged change is added to it again.
    - `root`: a checkpoint that you made like the contributors, from data that you trust, for rules
      that need it, such as `RootMatching`. The base is subtracted from it, too.
    - `weights`: how much each contributor counts: numbers that you vouch for, such as verified
      sizes of data sets, by the names of the files or in their order (docs/do/weights.md). By
      default all count the same.
    - `force`: also merge the two factors of low-rank updates (LoRA), which are refused otherwise:
      the product of merged factors is not the merged product.
    - `seed`: the seed of random mixings; by default they draw from the operating system.
    - `watch`: called with how many columns a pass has read, and how many there are.
    - `engine`: where the files are read and the output is computed, such as `Ray`; by default in
      this process.

    Returns the weight of each contributor, who was rejected and why, which checkpoints are equal,
    and the digests of all files. The same is in the metadata of the output, under "byzantium".

    >>> import tempfile
    >>> from byzantium import Median
    >>> from safetensors.torch import load_file, save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [f"{folder}/{name}.safetensors" for name in ("ada", "bob", "eve")]
    ...     for path, value in zip(paths, (1.0, 2.0, 1e6)):
    ...         save_file({"weight": torch.full((2, 2), value)}, path)
    ...     summary = merge(Median(), paths, f"{folder}/merged.safetensors")
    ...     load_file(f"{folder}/merged.safetensors")
    {'weight': tensor([[2., 2.],
            [2., 2.]])}
    >>> [(one["name"], one["weight"]) for one in summary["contributors"]]
    [('ada.safetensors', 0.0), ('bob.safetensors', 1.0), ('eve.safetensors', 0.0)]
    """
    validated("merge", "rule", rule, Aggregator)
    check_root(rule, root, "a checkpoint")
    source = Files(paths, base, force)
    if root is not None:
        source.open_root(root)
    check_output(source.identities, Path(output))
    if watch is not None:
        source.watch = lambda done: watch(done, source.d)
    call = Call(rule, root, vouched_weights(weights, source), seed)
    announce(rule, source.n, weights=call.weights)
    here = nullcontext(Merging(source))
    with here if engine is None else engine.merging(source, Path(output)) as work:
        report = work.explain(call)
        summary = summarize(call, source, report, work.equal_rows(), work.digests())
        work.save(report.aggregate, summary, Path(output))
    return summary


@dataclass(frozen=True)
class Call:
    """The call of a rule that merges what contributors made.

    - `rule`, `root`, `seed`: see `merge`.
    - `weights`: how much each contributor counts, in their order; None if all count the same.
    """

    rule: Aggregator
    root: str | os.PathLike[str] | None = None
    weights: Sequence[float] | None = None
    seed: int | None = None

    def explain(self, source: Source) -> Report:
        """What the rule makes of the vectors of a source."""
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        return self.rule.explain(source, generator, root=self.root, weights=self.weights)


class Merging:
    """The work of a merge, done in this process.

    - `source`: the checkpoints.
    """

    def __init__(self, source: Files) -> None:
        self.source = source

    def explain(self, call: Call) -> Report:
        """What a rule makes of the checkpoints."""
        return call.explain(self.source)

    def equal_rows(self) -> dict[int, list[int]]:
        """For each readable row that is equal to others, all of these, itself included."""
        return equal_rows(self.source)

    def digests(self) -> dict[int, dict[str, str]]:
        """The digests of the files of each readable row; of the base at -1, of the root at -2."""
        return digests_of(checkpoints_of(self.source))

    def save(self, merged: Merged, summary: Mapping[str, Any], output: Path) -> None:
        """Write the result to a file."""
        merged.save(output, summary)


class MergingEngine(Protocol):
    """A place where checkpoints can be merged."""

    def merging(self, source: Files, output: Path) -> AbstractContextManager[Merging]:
        """A context in which the work of a merge can be done there."""


def check_root(rule: Aggregator, root: object, what: str) -> None:
    """Raise an error unless there is a root exactly if a rule needs one.

    - `what`: what a root is, in words.
    """
    if rule.stages[-1].root_form == "loss":
        raise ByzantiumError(
            f"{rule!r} tries steps on the loss of root data, which files do not have; with a root "
            "(--root FILE), take RootMatching"
        )
    if rule.needs_root and root is None:
        raise ByzantiumError(
            f"{rule!r} needs a root (--root FILE): {what} that you made like the contributors, "
            "from data that you trust"
        )
    if root is not None and not rule.needs_root:
        raise ByzantiumError(f"{rule!r} does not use a root; omit it, or take RootMatching")


def vouched_weights(weights: Any, source: Source) -> list[float] | None:
    """The weights of the contributors that the operator vouches for; None if there are none.

    - `weights`: the weights, by name or in the order of the contributors.
    """
    if weights is None:
        return None
    names = [source.row_name(k) for k in range(source.n)]
    vouched, unused = weights_of(weights, names)
    if unused:
        logger.warning("no checkpoint belongs to the weights of %s", ", ".join(unused[:MAX_LISTED]))
    return vouched


def summarize(
    call: Call,
    source: Source,
    report: Report,
    equals: Mapping[int, Sequence[int]],
    digests: Mapping[int, Mapping[str, str]],
) -> dict[str, Any]:
    """The summary of a merge: who counted how much, and who was rejected.

    - `equals`: for each row that is equal to others, all of these, itself included.
    - `digests`: for each row the digests of its files; those of the base at -1, of the root at -2.
    """
    rule, vouched = repr(call.rule), call.weights
    contributors = [
        {
            "name": source.row_name(i),
            "weight": weight if math.isfinite(weight) else None,
            **({} if vouched is None else {"vouched": float(vouched[i])}),
            "rejected": report.reasons.get(i),
            "equal_to": [source.row_name(k) for k in equals.get(i, ()) if k != i],
            "sha256": digests.get(i, {}),
        }
        for i, weight in enumerate(report.weights.tolist())
    ]
    summary = {
        "version": __version__,
        "rule": rule,
        "seed": call.seed,
        "base": digests.get(-1),
        "contributors": contributors,
        "remainder": report.remainder if math.isfinite(report.remainder) else None,
        "notes": list(report.notes),
    }
    if -2 in digests:
        summary["root"] = digests[-2]
    if used := plugins.used({"rule": rule}):
        summary["plugin"] = list(used)
    return summary


def checkpoints_of(source: Files) -> dict[int, Checkpoint]:
    """The checkpoint of each readable row, the base at -1 and the root at -2."""
    readable = {row: source.checkpoint(row) for row in source.readable.tolist()}
    others = {-1: source.base, -2: source.root}
    return {row: one for row, one in {**others, **readable}.items() if one is not None}


def digests_of(checkpoints: Mapping[int, Checkpoint]) -> dict[int, dict[str, str]]:
    """The SHA-256 of each file of some checkpoints, by name."""
    pairs = [(i, file) for i, checkpoint in checkpoints.items() for file in checkpoint.files]

    def digest(k: int, _: int) -> str:
        file, total = pairs[k][1], hashlib.sha256()
        for start in range(0, file.size, CHUNK):
            total.update(file.read(start, min(CHUNK, file.size - start)).data)
        return total.hexdigest()

    parts = [(k, k + 1) for k in range(len(pairs))]
    digests: dict[int, dict[str, str]] = defaultdict(dict)
    values = parallel_map(digest, parts, torch.get_num_threads())
    for (i, file), value in zip(pairs, values, strict=True):
        digests[i][file.path.name] = value
    return digests


def equal_rows(source: Files) -> dict[int, list[int]]:
    """For each readable row that is equal to others, to the bit, all of these, itself included."""
    groups = _groups(source, source.readable.tolist(), PREFIX)
    equal = [group for rows in groups for group in _groups(source, rows, source.d)]
    return {row: group for group in equal for row in group}


def _groups(source: Files, rows: Sequence[int], most: int) -> list[list[int]]:
    """The groups of rows whose arrays are equal in their first numbers, at most so many."""
    groups = defaultdict(list)
    for row in rows:
        digest = hashlib.sha256()
        for name in source.floats:
            entry = source.checkpoint(row).entries[name]
            for part in column_blocks(1, min(most, entry.size), torch.float32):
                digest.update(entry.raw(part.start, part.stop).data)
        groups[digest.digest()].append(row)
    return [group for group in groups.values() if len(group) > 1]
