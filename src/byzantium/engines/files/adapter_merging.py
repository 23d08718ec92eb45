"""Robust merging of LoRA adapters: into an adapter again, or into the weights of the model."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from byzantium.core import ByzantiumError, Positive, files, validated
from byzantium.engines.files.adapted_model import DTYPE_OF, AdaptedModel, as_bytes
from byzantium.engines.files.adapter_config import CONFIG, PREFIX, AdapterConfig
from byzantium.engines.files.adapters import WEIGHTS, Adapters
from byzantium.engines.files.merging import Call, check_root, digests_of, summarize, vouched_weights
from byzantium.engines.files.safetensors import aligned, encode_header
from byzantium.engines.files.source import check_output
from byzantium.guarantees import announce
from byzantium.rules import Aggregator, Report
from byzantium.vectors import LowRankUpdate

Rank = int | Literal["full"] | None


def merge_adapters(
    rule: Aggregator,
    paths: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    rank: Rank = None,
    base: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    trust_scales: bool = False,
    root: str | os.PathLike[str] | None = None,
    weights: Mapping[str, float] | Sequence[float] | None = None,
    seed: int | None = None,
    engine: AdapterEngine | None = None,
) -> dict[str, Any]:
    """Merge LoRA adapters, of which some may be Byzantine, into one by a robust rule.

    An adapter is a folder in PEFT's format. What is aggregated are the products of its factors, see
    `Adapters`; the result is an adapter again, cut to a rank.

    - `rule`: the rule, with mixings before it if wanted. A rule by coordinate needs a base.
    - `paths`: the folders, one of each contributor.
    - `output`: the folder to write; with a base, the file. No file that is read is overwritten.
    - `rank`: the rank of the result: a number; "full" for what loses nothing; None for the largest
      that came in or, with a base, for what loses nothing.
    - `base`: the weights of the model; the merged update is added to them.
    - `config`, `trust_scales`: see `Adapters`.
    - `root`: the folder of an adapter that you made like the contributors, from data that you
      trust, for rules that need it.
    - `weights`: how much each contributor counts, see `merge`.
    - `seed`: the seed of random mixings; by default they draw from the operating system.
    - `engine`: where inner products and cuts are computed, such as `Ray`; by default in this
      process.

    Returns what `merge` does and, under "adapters", which share of the squared norm the cut to the
    rank has lost, in total and for each module. The same is in the metadata of the output.

    >>> import json, tempfile
    >>> from byzantium import Krum
    >>> from safetensors.torch import load_file, save_file
    >>> config = {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["q"]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [Path(folder) / name for name in ("ada", "bob", "cyd", "dan", "eve")]
    ...     for path, size in zip(paths, (1.0, 1.1, 0.9, 1.0, 50.0)):
    ...         path.mkdir()
    ...         _ = (path / "adapter_config.json").write_text(json.dumps(config))
    ...         factors = {"A": torch.ones(1, 3), "B": size * torch.ones(2, 1)}
    ...         arrays = {f"base_model.model.q.lora_{k}.weight": v for k, v in factors.items()}
    ...         save_file(arrays, path / "adapter_model.safetensors")
    ...     summary = merge_adapters(Krum(f=1), paths, f"{folder}/merged")
    ...     merged = load_file(f"{folder}/merged/adapter_model.safetensors")
    >>> [one["name"] for one in summary["contributors"] if one["weight"]]
    ['ada']
    >>> b, a = (merged[f"base_model.model.q.lora_{k}.weight"] for k in "BA")
    >>> 2 * (b @ a).round(decimals=4)  # 2 is alpha / r
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """
    validated("merge_adapters", "rule", rule, Aggregator)
    if rank is not None and rank != "full":
        validated("merge_adapters", "rank", rank, Positive)
    check_root(rule, root, "the folder of an adapter")
    by_weights = rule.knows_weights == "always"
    if not by_weights and base is None:
        raise ByzantiumError(
            f"{rule!r} needs the coordinates of whole matrices, and its result is no low-rank "
            "update: give a base (--base FILE), to which it is added, or take a rule by weights, "
            "such as GeometricMedian()"
        )
    if not by_weights and rank is not None:
        raise ByzantiumError(f"the result of {rule!r} has no rank to cut to; omit the rank")
    options: dict[str, Any] = {"config": config, "trust_scales": trust_scales, "base": base}
    source, output = Adapters(paths, full=not by_weights, **options), Path(output)
    targets = [output] if base is not None else [output / CONFIG, output / WEIGHTS]
    for path in targets:
        check_output(source.identities, path)
    call = Call(rule, root, vouched_weights(weights, source), seed)
    announce(rule, source.n, weights=call.weights)
    here = nullcontext(AdapterMerging(source))
    with here if engine is None else engine.merging_adapters(source) as work:
        report = work.explain(call)
        summary = summarize(call, source, report, _equal_rows(source), _digests(source))
        update, cuts = report.aggregate, dict[str, ModuleCut]()
        if isinstance(update, LowRankUpdate) and (base is None or isinstance(rank, int)):
            cuts = work.cuts(update, rank)
    if cuts:
        summary["adapters"] = _losses({name: one.stats for name, one in cuts.items()})
    if base is None:
        _save_adapter(update, source, output, cuts, summary)
    else:
        _save_model(update, source, output, cuts, summary)
    return summary


class ModuleCut(NamedTuple):
    """The update of a module, cut to a rank.

    - `b`, `a`: its factors.
    - `stats`: its rank, its squared norm, and the share of that which the cut has lost.
    """

    b: Tensor
    a: Tensor
    stats: dict[str, float]


class AdapterMerging:
    """The work of merging adapters, done in this process.

    - `source`: the adapters.
    """

    def __init__(self, source: Adapters) -> None:
        self.source = source

    def explain(self, call: Call) -> Report:
        """What a rule makes of the adapters."""
        return call.explain(self.source)

    def cuts(self, update: LowRankUpdate, rank: Rank) -> dict[str, ModuleCut]:
        """The modules of an update, cut to a rank; by default to the largest that came in."""
        usual = self.source.largest_ranks
        return {name: cut_module(update, name, rank, usual[name]) for name in update.products}


class AdapterEngine(Protocol):
    """A place where adapters can be merged."""

    def merging_adapters(self, source: Adapters) -> AbstractContextManager[AdapterMerging]:
        """A context in which the work of merging adapters can be done there."""


def _equal_rows(source: Adapters) -> dict[int, list[int]]:
    """For each readable row that is equal to others, all of these, itself included."""
    groups = defaultdict(list)
    for row in source.readable.tolist():
        groups[int(source.member_of[row])].append(row)
    return {row: rows for rows in groups.values() if len(rows) > 1 for row in rows}


def _digests(source: Adapters) -> dict[int, dict[str, str]]:
    """The digests of all files; of one that was changed since it was read there are none."""
    digests: dict[int, dict[str, str]] = {}
    opened = {i: source.checkpoints[i] for i in source.readable.tolist()}
    if source.model is not None:
        opened[-1] = source.model.checkpoint
    if source.root_checkpoint is not None:
        opened[-2] = source.root_checkpoint
    for i, checkpoint in opened.items():
        with suppress(ByzantiumError):
            assert checkpoint is not None
            digests[i] = digests_of({i: checkpoint})[i]
    return digests


# -- an adapter again ------------------------------------------------------------------------------


def _save_adapter(
    update: LowRankUpdate,
    source: Adapters,
    folder: Path,
    cuts: Mapping[str, ModuleCut],
    summary: dict[str, Any],
) -> None:
    """Write an adapter: its configuration, then its numbers; each completely or not at all."""
    factors = {name: (one.b, one.a) for name, one in cuts.items()}
    config = source.config.with_ranks({name: len(a) for name, (_, a) in factors.items()})
    tensors: dict[str, Tensor] = {}
    for name, (b, a) in factors.items():
        # PEFT multiplies by the scale of the output.
        root, dtype = config.scale(name) ** 0.5, source.pattern[name].dtype
        (b_name, b_shape), (a_name, a_shape) = source.factors[name]
        # Those of convolutions have further dimensions.
        tensors[b_name] = (b / root).reshape(len(b), -1, *b_shape[2:]).to(dtype)
        tensors[a_name] = (a / root).reshape(-1, *a_shape[1:]).to(dtype)
    for name in update:
        if name not in factors:
            tensors[name] = update[name]
    layout = aligned({name: (DTYPE_OF[t.dtype], tuple(t.shape)) for name, t in tensors.items()})
    for path in (folder / CONFIG, folder / WEIGHTS):
        check_output(source.identities, path)
        files.clear_abandoned(path)
    # The old numbers must not be read with the new configuration.
    (folder / WEIGHTS).unlink(missing_ok=True)
    files.write(folder / CONFIG, json.dumps(_output_settings(config), indent=2))
    with files.writing(folder / WEIGHTS) as file:
        file.write(encode_header(layout, json.dumps(summary)))
        for name in layout:
            file.write(as_bytes(tensors[name]))


def cut_module(update: LowRankUpdate, name: str, rank: Rank, usual: int) -> ModuleCut:
    """One module of an update, cut to a rank.

    - `usual`: the rank if none is given.
    """
    cut = update.cut(name, usual if rank is None else None if rank == "full" else rank)
    b, a = cut.b, cut.a
    if rank == "full":  # but for what is below the rounding of the factors; in order of size
        sizes = torch.linalg.vector_norm(b, dim=0) ** 2
        rounding = torch.finfo(update.source.pattern[name].dtype).eps
        clear = max(1, int((sizes > rounding * sizes.max()).sum())) if len(sizes) else 0
        b, a = b[:, :clear], a[:clear]
    share = cut.lost / cut.square if cut.square else 0.0
    return ModuleCut(b, a, {"rank": len(a), "lost": share, "square": cut.square})


def _losses(modules: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The share of the squared norm that the cut has lost, in total and for each module."""
    square = sum(one["square"] for one in modules.values())
    lost = sum(one["lost"] * one["square"] for one in modules.values())
    listed = {
        name.removeprefix(PREFIX): {"rank": one["rank"], "lost": one["lost"]}
        for name, one in modules.items()
    }
    return {"lost": lost / square if square else 0.0, "modules": listed}


def _output_settings(config: AdapterConfig) -> dict[str, Any]:
    """The settings of the output. Nothing is initialized: the factors are there."""
    return {**config.settings, "init_lora_weights": True, "inference_mode": True}


def _save_model(
    update: LowRankUpdate | Mapping[str, Tensor],
    source: Adapters,
    path: Path,
    cuts: Mapping[str, ModuleCut],
    summary: dict[str, Any],
) -> None:
    """Write the weights of the model with the update: completely or not at all."""
    model = AdaptedModel(update, source, {name: (one.b, one.a) for name, one in cuts.items()})
    files.clear_abandoned(path)
    with files.writing(path) as file:
        layout = aligned(model.layout)
        file.write(encode_header(layout, json.dumps(summary)))
        for place in layout:
            for block in model.blocks(place):
                file.write(as_bytes(block))
        model.check_unchanged()
        check_output(source.identities, path)
