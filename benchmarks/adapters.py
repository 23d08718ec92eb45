"""LoRA adapters: weights and merges from factors, against forming the products in torch.

32 modules of 4096 x 4096 and 25 adapters of rank 16 are 420 MB of factors, and 54 GB of products,
which are formed for one module at a time. A few modules at a time are measured by all contestants,
one after the other, so that noise affects all alike. Reading is measured beside it.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from model import Figure, Result, Section
from safetensors.torch import save_file
from sections import Run
from torch import Tensor

import byzantium as bz
from byzantium.engines.files import Adapters
from byzantium.vectors import LowRank

N, RANK, WIDTH, MODULES = 25, 16, 4096, 32
RULES = ("Krum(f=5)", "GeometricMedian()")
PART = 4  # modules
STEPS = MODULES // PART

Update = dict[str, tuple[Tensor, Tensor, float]]


def updates(modules: int, seed: int) -> list[Update]:
    torch.manual_seed(seed)
    return [
        {f"m{k}": (torch.randn(WIDTH, RANK), torch.randn(RANK, WIDTH), 2.0) for k in range(modules)}
        for _ in range(N)
    ]


def products(rows: list[Update]) -> Iterator[list[Tensor]]:
    """The products of all adapters, of one module at a time, in float32."""
    for name in rows[0]:
        yield [scale * b @ a for b, a, scale in (row[name] for row in rows)]


def form(rows: list[Update]) -> None:
    for one in products(rows):
        del one


def gram_of_products(rows: list[Update]) -> Tensor:
    """Form the products, and take their inner products."""
    total = torch.zeros(N, N)
    for one in products(rows):
        X = torch.stack([product.reshape(-1) for product in one])
        total += X @ X.T
    return total


def save(rows: list[Update], folder: Path) -> list[Path]:
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["m"]}
    paths = [folder / f"c{i:02}" for i in range(N)]
    for row, path in zip(rows, paths, strict=True):
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps(config))
        factors = {f"base_model.model.{k}.lora_B.weight": b for k, (b, _, _) in row.items()}
        factors |= {f"base_model.model.{k}.lora_A.weight": a for k, (_, a, _) in row.items()}
        save_file(factors, path / "adapter_model.safetensors")
    return paths


def weigh(rows: list[Update], rule: str) -> None:
    bz.parse_rule(rule).explain(LowRank(rows))


def merge(rows: list[Update], rule: str) -> None:
    """The weights, and the factors of every module of the result, cut to the rank."""
    update = bz.parse_rule(rule)(LowRank(rows))
    for name in update:
        update.cut(name, RANK)


def read(rows: list[Update]) -> float:
    """The seconds that it takes to read adapters from their folders."""
    with tempfile.TemporaryDirectory() as folder:
        paths = save(rows, Path(folder))
        start = perf_counter()
        Adapters(paths)
        return perf_counter() - start


def adapters(run: Run) -> Section:
    modules = MODULES if run.d > 1_000_000 else 2 * PART
    contestants: dict[str, Callable[[list[Update]], Any]] = {
        "products": form,
        "products and Gram": gram_of_products,
        **{f"weights {rule}": partial(weigh, rule=rule) for rule in RULES},
        **{f"merge {rule}": partial(merge, rule=rule) for rule in RULES},
    }
    totals, reading = dict.fromkeys(contestants, 0.0), 0.0
    for part in range(modules // PART):
        rows = updates(PART, seed=part)
        if not part:
            for call in contestants.values():  # libraries are loaded
                call([dict(list(row.items())[:1]) for row in rows])
        for name, call in contestants.items():
            start = perf_counter()
            call(rows)
            totals[name] += perf_counter() - start
        reading += read(rows)
        run.step("adapters")
    results = []
    for rule in RULES:
        weights, whole = totals[f"weights {rule}"], totals[f"merge {rule}"]
        forming, measuring = totals["products"], totals["products and Gram"]
        figures = [
            Figure("forming products / weights", forming / weights, goal="adapter weights"),
            Figure("products and Gram / weights", measuring / weights),
            Figure("forming products / merge", forming / whole, goal="adapter merge"),
        ]
        named = {"weights": weights, "merge": whole, "products": forming, "and Gram": measuring}
        results.append(Result(rule, named, figures))
    results.append(Result("reading the folders", {"reading": reading}))
    title = f"{N} adapters of rank {RANK}, {modules} modules of {WIDTH} x {WIDTH}"
    return Section("adapters", title, results)
