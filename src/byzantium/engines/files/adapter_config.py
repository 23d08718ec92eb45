"""Configurations of LoRA adapters in PEFT's format: what factors mean, above all their scales.

An adapter's update of a matrix is c B A, and c = alpha / r (or alpha / sqrt(r)) comes from its
configuration. That is a claim of the contributor, and could make its update of any size. So the
scales are those of the operator, or those that more than half of the contributors share.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byzantium.core import ByzantiumError
from byzantium.engines.files.input_files import (
    Identity,
    InputFile,
    UnreadableError,
    convert_errors,
    quote,
)
from byzantium.engines.files.safetensors import parse_json

CONFIG = "adapter_config.json"
MAX_CONFIG = 1 << 20
# What PEFT puts before the names of a model's modules.
PREFIX = "base_model.model."
LARGEST_RANK = 1 << 16

# The settings that decide how large an update is.
SCALES = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
# Further settings in which all contributors must agree, with PEFT's defaults.
SHARED: Mapping[str, Any] = {
    "peft_type": None,
    "target_modules": None,
    "exclude_modules": None,
    "layers_to_transform": None,
    "layers_pattern": None,
    "layer_replication": None,
    "modules_to_save": None,
    "trainable_token_indices": None,
    "bias": "none",
    "fan_in_fan_out": False,
}
# Settings without influence on what trained factors mean. What they say is kept if most say it.
DESCRIPTIVE = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "revision"),
    *("peft_version", "task_type", "megatron_config", "megatron_core"),
}
# The same, of training alone; they are omitted.
TRAINING = {
    *("corda_config", "ensure_weight_tying", "eva_config", "init_lora_weights", "loftq_config"),
    *("lora_ga_config", "qalora_group_size", "runtime_config", "velora_config"),
}
# Initializations that leave the weights of the base as they are.
INITIALIZATIONS = (True, False, None, "gaussian", "eva", "orthogonal")
# Every name of a module is compared with every pattern.
MAX_PATTERNS = 1000
# A plain name as a pattern: PEFT reads it as a regular expression, which could take forever.
PLAIN = re.compile(r"\^?(?:[\w-]|\\?\.){1,300}")


@dataclass(frozen=True)
class AdapterConfig:
    """The configuration of an adapter, checked.

    - `settings`: all of its settings.
    """

    settings: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, folder: Path | None, identities: set[Identity]) -> AdapterConfig:
        """Read a configuration; raises an error if it cannot be used.

        - `path`: its file.
        - `folder`: links must not lead out of this folder; None for a file that the user named.
        - `identities`: the identity of the file is added to this set.
        """
        with convert_errors():
            file = InputFile(path, folder)
            identities.add(file.identity)
            if file.size > MAX_CONFIG:
                raise UnreadableError(f"has a configuration of more than {MAX_CONFIG} bytes")
            config = cls(parse_json(file.read(0, file.size).tobytes(), "configuration"))
            config.check(strange=folder is not None)
            config.meaning()
        return config

    def check(self, strange: bool = True) -> None:
        """Raise an error unless this is LoRA, with scales that make sense.

        - `strange`: whether it comes from a contributor.
        """
        settings = self.settings
        if settings.get("peft_type") != "LORA":
            raise UnreadableError(
                f"is an adapter of the type {quote(str(settings.get('peft_type')))}, not LORA"
            )
        known = {*SCALES, *SHARED, *DESCRIPTIVE, *TRAINING}
        for name, value in settings.items():
            if name not in known and value:
                what = "is a DoRA adapter" if name == "use_dora" else "is no plain LoRA adapter"
                raise UnreadableError(f"{what}: its configuration has {quote(name)}")
        start = settings.get("init_lora_weights")
        if not (isinstance(start, bool | str | None) and start in INITIALIZATIONS):
            raise UnreadableError(
                f"was initialized by {quote(str(start))}, which changes the weights of the base; "
                "its owner can convert it, save_pretrained(..., "
                "path_initial_model_for_weight_conversion=...)"
            )
        if not _is_rank(settings.get("r")) or not _is_alpha(settings.get("lora_alpha")):
            raise UnreadableError("has a configuration whose r or lora_alpha is no positive number")
        if not isinstance(settings.get("use_rslora", False), bool):
            raise UnreadableError("has a configuration whose use_rslora is neither true nor false")
        for name, is_valid in (("rank_pattern", _is_rank), ("alpha_pattern", _is_alpha)):
            pattern = settings.get(name) or {}
            if not isinstance(pattern, dict) or not all(map(is_valid, pattern.values())):
                raise UnreadableError(f"has a configuration whose {name} makes no sense")
            if strange and len(pattern) > MAX_PATTERNS:
                raise UnreadableError(f"has a {name} of more than {MAX_PATTERNS} names")
            for key in pattern:
                if strange and not PLAIN.fullmatch(key):
                    raise UnreadableError(f"has a {name} for {quote(key)}, which is no plain name")
                try:
                    re.compile(key)
                except re.error as error:
                    raise UnreadableError(f"has a {name} for {quote(key)}: {error}") from error

    def rank(self, module: str) -> int:
        """The rank that it claims for a module."""
        return self._of(module, "rank_pattern", "r")

    def scale(self, module: str) -> float:
        """The factor c of a module's update c B A."""
        alpha, rank = float(self._of(module, "alpha_pattern", "lora_alpha")), self.rank(module)
        return alpha / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)

    def _of(self, module: str, pattern: str, usual: str) -> Any:
        name = module.removeprefix(PREFIX)
        for key, value in (self.settings.get(pattern) or {}).items():
            if re.match(rf"(.*\.)?({key})$", name):  # as PEFT does it
                return value
        return self.settings[usual]

    def meaning(self, scales: bool = True) -> str:
        """A text that is equal for configurations of the same meaning.

        - `scales`: whether the settings that decide about scales are part of it.
        """
        shared = {name: _normal(self.settings.get(name, usual)) for name, usual in SHARED.items()}
        for name in SCALES if scales else ():
            value = self.settings.get(name)
            shared[name] = float(value or 0) if name == "lora_alpha" else value or None
        return json.dumps(shared, sort_keys=True)

    def difference(self, other: AdapterConfig, scales: bool = True) -> str:
        """How its meaning differs, as the end of a sentence; empty if it does not."""
        ours, theirs = json.loads(self.meaning(scales)), json.loads(other.meaning(scales))
        for name, value in theirs.items():
            if ours[name] != value:
                claim, usual = (quote(json.dumps(one)) for one in (ours[name], value))
                return f"has a configuration with {name} = {claim} instead of {usual}"
        return ""

    def with_ranks(self, ranks: Mapping[str, int]) -> AdapterConfig:
        """The configuration with other ranks, by the names of the modules."""
        usual = Counter(ranks.values()).most_common(1)[0][0]
        others = {
            f"^{re.escape(name.removeprefix(PREFIX))}": rank
            for name, rank in ranks.items()
            if rank != usual
        }
        return AdapterConfig({**self.settings, "r": usual, "rank_pattern": others})


def shared_config(
    configs: Sequence[AdapterConfig | None], trust_scales: bool = False
) -> AdapterConfig:
    """The configuration that more than half of the contributors share.

    Of settings without influence on what factors mean, those count that more than half have.

    - `configs`: the configuration of each contributor; None where there is none.
    - `trust_scales`: whether ranks and alphas may differ. Then those of the first count.
    """
    n = len(configs)
    usable = [config for config in configs if config is not None]
    meanings = Counter(config.meaning(not trust_scales) for config in usable)
    meaning, count = meanings.most_common(1)[0] if meanings else ("", 0)
    if 2 * count <= n:
        raise ByzantiumError(
            f"no configuration is shared by more than half of the {n} contributors; say which one "
            "counts (--config adapter_config.json), or trust what each claims about its own scale "
            "(--trust-scales)"
        )
    first = next(config for config in usable if config.meaning(not trust_scales) == meaning)
    settings = {name: first.settings[name] for name in (*SHARED, *SCALES) if name in first.settings}
    for name in sorted(DESCRIPTIVE):
        values = Counter(json.dumps(config.settings.get(name)) for config in usable)
        text, agreeing = values.most_common(1)[0]
        if 2 * agreeing > n and text != "null":
            settings[name] = json.loads(text)
    return AdapterConfig(settings)


def _is_rank(value: Any) -> bool:
    return type(value) is int and 0 < value <= LARGEST_RANK


def _is_alpha(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= 1e9


def _normal(value: Any) -> Any:
    """A value without an order where it is a list, which PEFT writes in any order."""
    if not isinstance(value, list):
        return value
    return sorted(value, key=lambda one: json.dumps(one, sort_keys=True)) or None
