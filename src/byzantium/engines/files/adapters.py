"""LoRA adapters in folders, in PEFT's format, as the vectors of a rule: their products."""

from __future__ import annotations

import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from byzantium.core import ArgumentTypeError, ByzantiumError, cached_property
from byzantium.engines.files.adapter_config import CONFIG, PREFIX, AdapterConfig, shared_config
from byzantium.engines.files.input_files import (
    Identity,
    UnreadableError,
    convert_errors,
    identity,
    quote,
)
from byzantium.engines.files.safetensors import MAX_HEADER, Checkpoint, Entry, description_size
from byzantium.engines.files.source import HEADER_FACTOR, HEADER_MARGIN, names_of, open_trusted
from byzantium.vectors import LowRank

WEIGHTS = "adapter_model.safetensors"
FACTOR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(\.weight)?", re.DOTALL)
# The numbers of an adapter may take this many times the bytes of the median one.
SIZE_FACTOR = 4
T = TypeVar("T")
Update = dict[str, Any]
# The name of a factor and its shape.
Factor = tuple[str, tuple[int, ...]]


class Adapters(LowRank):
    """LoRA adapters in folders, in PEFT's format, as the input of a rule: `rule(Adapters(paths))`.

    An adapter is `adapter_config.json` and `adapter_model.safetensors`. Rules see the products
    c B A of its factors, see `LowRank`; what else it holds (biases, modules that were trained as a
    whole) counts as it is. An adapter that cannot be read, that has other names or shapes than
    most, or that contradicts its configuration, is rejected. DoRA, LoHa, LoKr and other variants
    are refused.

    - `paths`: the folders, one of each contributor.
    - `config`: the configuration that counts, an `adapter_config.json`. By default it is the one
      that more than half of the contributors share. A contributor with another one is rejected.
    - `trust_scales`: whether ranks and alphas may differ, and each contributor's own claim decides
      how large its update is.
    - `base`: the weights of the model; its arrays are subtracted from those of the adapters.
    - `full`: see `LowRank`.

    `merge_adapters` has an example.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        *,
        config: str | os.PathLike[str] | None = None,
        trust_scales: bool = False,
        base: str | os.PathLike[str] | None = None,
        full: bool = False,
    ) -> None:
        if isinstance(paths, str | bytes | os.PathLike):
            raise ArgumentTypeError("Adapters needs a list of folders, one for each contributor")
        self.paths, self.trust_scales = [Path(path) for path in paths], trust_scales
        if not self.paths:
            raise ByzantiumError("Adapters needs at least one folder, got n = 0")
        self.identities: set[Identity] = set()
        for path in self.paths:
            for file in (path / WEIGHTS, path / CONFIG):
                with suppress(OSError, ValueError):
                    self.identities.add(identity(file.stat()))
        self.model = None if base is None else ModelWeights(Path(base), self.identities)
        self.reasons: dict[int, str] = {}
        configs = [
            self._attempt(i, lambda path: AdapterConfig.read(path / CONFIG, path, self.identities))
            for i in range(len(self.paths))
        ]
        self.config = shared_config(configs, trust_scales) if config is None else self._own(config)
        for i, one in enumerate(configs):
            if one is not None and (reason := one.difference(self.config, not trust_scales)):
                self.reasons[i] = reason
        self.checkpoints = self._open()
        updates = [self._update(i, configs[i]) for i in range(len(self.paths))]
        self.root_checkpoint: Checkpoint | None = None
        names = names_of([path / WEIGHTS for path in self.paths])
        super().__init__(
            updates,
            base=None if self.model is None else self.model.like(updates),
            full=full,
            names=[os.path.dirname(name) or name for name in names],
            reasons=self.reasons,
        )
        usable = [one for one in self.rows if one is not None]
        #: For each module the largest rank that came in.
        self.largest_ranks = {
            name: max(row[name].rank for row in usable) if usable else 0 for name in self.pattern
        }

    @cached_property
    def factors(self) -> dict[str, tuple[Factor, Factor]]:
        """The names and shapes of the factors B and A of each module, as they are stored."""
        first = self.checkpoints[self.readable[0]]
        assert first is not None
        pairs: dict[str, dict[str, Factor]] = {}
        for name, entry in first.entries.items():
            if match := FACTOR.fullmatch(name):
                pairs.setdefault(match[1], {})[match[3]] = name, entry.shape
        return {module: (pair["B"], pair["A"]) for module, pair in pairs.items()}

    def _attempt(self, row: int, read: Callable[[Path], T]) -> T | None:
        """Read something of an adapter; None, and a reason, if that fails."""
        if row in self.reasons:
            return None
        try:
            if not self.paths[row].is_dir():
                raise UnreadableError(f"is no folder with {CONFIG} and {WEIGHTS}")
            return read(self.paths[row])
        except UnreadableError as error:
            self.reasons[row] = str(error)
            return None

    def _own(self, path: str | os.PathLike[str]) -> AdapterConfig:
        """The operator's configuration; if it cannot be used, that is an error."""
        try:
            return AdapterConfig.read(Path(path), None, self.identities)
        except UnreadableError as error:
            raise ByzantiumError(f"the configuration {path} {error}") from error

    def _open(self) -> list[Checkpoint | None]:
        """The files of numbers, of which headers are read; too large ones are rejected."""
        n = range(len(self.paths))
        sizes = [self._attempt(i, lambda path: description_size(path, WEIGHTS)) for i in n]
        usual = statistics.median_low([size for size in sizes if size is not None] or [0])
        most = min(HEADER_FACTOR * usual + HEADER_MARGIN, MAX_HEADER)
        opened = [
            self._attempt(i, lambda path: Checkpoint(path, most, self.identities, WEIGHTS))
            for i in n
        ]
        totals = [None if one is None else sum(file.size for file in one.files) for one in opened]
        usual = statistics.median_low([size for size in totals if size is not None] or [0])
        for i, size in enumerate(totals):
            if size is not None and size > SIZE_FACTOR * usual:
                self.reasons[i] = f"has {size} bytes, more than {SIZE_FACTOR} times the usual"
                opened[i] = None
        return opened

    def _update(self, row: int, own: AdapterConfig | None) -> Update | None:
        """The products and arrays of a contributor; None, and a reason, if there are none."""
        checkpoint = self.checkpoints[row]
        if checkpoint is None or own is None:
            return None
        config = own if self.trust_scales else self.config
        return self._attempt(row, lambda path: update_of(checkpoint, config))

    def set_root(self, name: str, vector: Any) -> None:
        """Read the root, the folder of an adapter that the user trusts."""
        if not isinstance(vector, str | os.PathLike):
            raise ArgumentTypeError(f"{name} of adapters is a folder, got {vector!r}")
        folder = Path(vector)
        try:
            config = AdapterConfig.read(folder / CONFIG, None, self.identities)
            reason = config.difference(self.config, not self.trust_scales)
            if reason:
                raise UnreadableError(reason)
            self.root_checkpoint = Checkpoint(folder, MAX_HEADER, self.identities, WEIGHTS)
            root = update_of(self.root_checkpoint, config if self.trust_scales else self.config)
        except UnreadableError as error:
            raise ByzantiumError(f"{name} {folder} {error}") from error
        super().set_root(name, root)


def update_of(checkpoint: Checkpoint, config: AdapterConfig) -> Update:
    """The products and arrays of an adapter.

    - `checkpoint`: its numbers.
    - `config`: the configuration that gives the scales, and with which its ranks must agree.
    """
    update: Update = {}
    factors: dict[str, dict[str, Entry]] = {}
    for name, entry in checkpoint.entries.items():
        match = FACTOR.fullmatch(name)
        if match is not None:
            module, side = match[1], match[3]
            if side in factors.setdefault(module, {}):
                raise UnreadableError(f"has two factors {side} at {quote(module)}")
            factors[module][side] = entry
        elif ".lora_" in name:
            what = "is a DoRA adapter" if "magnitude" in name else "is no plain LoRA adapter"
            raise UnreadableError(f"{what}: it has an entry {quote(name)}")
    with convert_errors():
        for module, pair in factors.items():
            update[module] = _product(module, pair, config)
        for name, entry in checkpoint.entries.items():
            if FACTOR.fullmatch(name) is None:
                if name in update:
                    raise UnreadableError(f"has an entry and a product named {quote(name)}")
                update[name] = _tensor(entry)
    if not factors:
        raise UnreadableError("has no factors lora_A and lora_B")
    return update


def _product(
    module: str, pair: Mapping[str, Entry], config: AdapterConfig
) -> tuple[Tensor, Tensor, float]:
    for side in "AB":
        if side not in pair:
            raise UnreadableError(f"lacks the factor {side} at {quote(module)}")
        if not pair[side].dtype.floating or len(pair[side].shape) < 2:
            raise UnreadableError(f"has a factor {side} that is no matrix at {quote(module)}")
    # Those of convolutions have further dimensions: A as its kernel, B of size 1.
    a = _tensor(pair["A"]).flatten(1)
    b = _tensor(pair["B"]).flatten(1)
    rank = config.rank(module)
    if len(a) != rank or b.shape[1] != rank:
        shapes = f"{pair['B'].shape} and {pair['A'].shape}"
        raise UnreadableError(
            f"has factors of shapes {shapes} at {quote(module)}, where its configuration says the "
            f"rank {rank}"
        )
    return b, a, config.scale(module)


def _tensor(entry: Entry) -> Tensor:
    """The numbers of an entry, loaded; those of eight bits as float32."""
    raw = torch.from_numpy(entry.raw(0, entry.size))
    values = raw.view(entry.dtype.torch).reshape(entry.shape)
    narrow = entry.dtype.floating and entry.dtype.torch.itemsize == 1
    return values.float() if narrow else values


class ModelWeights:
    """The weights of the model that adapters belong to, a checkpoint that the user trusts.

    - `path`: a file, the index of a sharded checkpoint, or a folder with one of them.
    - `identities`: the identity of each file that is opened is added to this set.
    """

    def __init__(self, path: Path, identities: set[Identity]) -> None:
        self.path, self.checkpoint = path, open_trusted("the base", path, identities)

    def find(self, name: str) -> str | None:
        """The name here of an entry or of the weight of a module of an adapter; None if absent."""
        plain = name.removeprefix(PREFIX).replace(".base_layer.", ".")
        for one in (plain, f"{plain}.weight"):
            if one in self.checkpoint.entries:
                return one
        return None

    def like(self, updates: Sequence[Update | None]) -> Update:
        """An update that has nothing where most have products, and these weights as arrays."""
        usable = [one for one in updates if one is not None]
        usual = Counter(map(_form, usable)).most_common(1)
        first = next((one for one in usable if _form(one) == usual[0][0]), None)
        result: Update = {}
        for name, value in (first or {}).items():
            if isinstance(value, tuple):
                b, a, _ = value
                result[name] = torch.zeros_like(b[:, :1]), torch.zeros_like(a[:1]), 1.0
                continue
            place = self.find(name)
            entry = None if place is None else self.checkpoint.entries[place]
            if entry is not None and entry.shape == value.shape and value.is_floating_point():
                result[name] = _tensor(entry).to(value.dtype)
            else:
                result[name] = torch.zeros_like(value)
        return result


def _form(update: Update) -> Hashable:
    """What updates must have in common."""
    return frozenset(
        (name, len(value[0]), value[1].shape[1], value[0].dtype)
        if isinstance(value, tuple)
        else (name, tuple(value.shape), value.dtype)
        for name, value in update.items()
    )


def are_adapters(paths: Sequence[str | os.PathLike[str]]) -> bool:
    """Whether more than half of some paths are folders of adapters, with an adapter_config.json.

    >>> are_adapters(["client.safetensors"])
    False
    """
    found = sum(os.path.lexists(Path(path) / CONFIG) for path in paths)
    return 2 * found > len(paths)
