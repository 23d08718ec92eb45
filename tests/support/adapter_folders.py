"""Folders of LoRA adapters in PEFT's format, and tiny models for them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

os.environ["HF_HUB_OFFLINE"] = "1"

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": ["q", "v"],
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_rslora": False,
    "use_dora": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "base_model_name_or_path": "tiny",
}
SHAPES = {"q": (30, 20), "v": (8, 50)}
BEFORE = "base_model.model."


def state(seed: int, rank: int = 4, size: float = 1.0, shapes: Any = None) -> dict[str, Tensor]:
    """The factors of an adapter."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (out, columns) in (shapes or SHAPES).items():
        tensors[f"{BEFORE}{name}.lora_A.weight"] = torch.randn(rank, columns, generator=g)
        tensors[f"{BEFORE}{name}.lora_B.weight"] = size * torch.randn(out, rank, generator=g)
    return tensors


def save(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


def several(folder: Path, n: int = 6, rank: int = 4, **config: Any) -> list[Path]:
    """The folders of honest contributors."""
    return [save(folder / f"c{i}", state(i, rank), **{"r": rank, **config}) for i in range(n)]


def update(folder: Path, scale: float) -> dict[str, Tensor]:
    """The updates c B A of the modules of an adapter, in float64."""
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    return {
        name: scale
        * tensors[f"{BEFORE}{name}.lora_B.weight"].double()
        @ tensors[f"{BEFORE}{name}.lora_A.weight"].double()
        for name in SHAPES
    }


def mean(folders: Sequence[Path], scales: Sequence[float]) -> dict[str, Tensor]:
    rows = [update(folder, scale) for folder, scale in zip(folders, scales, strict=True)]
    return {name: torch.stack([row[name] for row in rows]).mean(dim=0) for name in SHAPES}
