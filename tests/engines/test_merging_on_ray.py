"""Merging checkpoints on a cluster of Ray, and what may happen to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import adapter_folders
import inputs
import pytest
import torch
from jail import needs_jail, witnessed
from paths import SUPPORT
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import byzantium as bz
from byzantium.engines import merge, merge_adapters

pytestmark = [pytest.mark.slow, needs_jail]

N, D = 9, 4321  # five parts
OUT = Path("out") / "merged.safetensors"


def witness(happening: str, folder: Path) -> dict[str, Any]:
    return witnessed(SUPPORT / "merging_on_ray.py", happening, folder)


def state(row: torch.Tensor, k: int) -> dict[str, torch.Tensor]:
    """A state dict of two dtypes, with a counter."""
    first, second = row[:3000].to(torch.bfloat16), row[3000:]
    return {"b": second, "a": first.reshape(3, 1000), "steps": torch.tensor([k, 2 * k])}


def clients(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"client-{k}.safetensors" for k in range(N)]
    for k, (path, row) in enumerate(zip(paths, inputs.heterogeneous(N, D), strict=True)):
        save_file(state(row, k), path)
    return paths


def case(folder: Path, rule: str, *options: str) -> list[Path]:
    paths = clients(folder)
    (folder / "options").write_text("\n".join([rule, *options]))
    return paths


def assert_as_here(
    rule: bz.Aggregator, paths: Sequence[Path], folder: Path, **options: Any
) -> None:
    """The output and its report are those of one process."""
    expected = merge(rule, paths, folder / "here", **options)
    here, there = load_file(folder / "here"), load_file(folder / OUT)
    assert here.keys() == there.keys()
    for name in here:
        assert here[name].dtype == there[name].dtype
        assert torch.allclose(here[name], there[name], rtol=1e-6, atol=1e-7)
    with safe_open(folder / OUT, "pt") as file:
        summary = json.loads(file.metadata()["byzantium"])
    for one, other in zip(summary["contributors"], expected["contributors"], strict=True):
        assert one.pop("weight") == pytest.approx(other.pop("weight"), rel=1e-9, abs=1e-12)
    assert {**summary, "remainder": 0, "plugin": []} == {**expected, "remainder": 0, "plugin": []}


PLUGIN = """
import os, sys
import numpy as np
import byzantium as bz

class First(bz.Weighting):
    def weights(self, geometry):
        return np.eye(geometry.n)[0]

class Deadly(bz.Mixing):
    def matrix(self, geometry, generator):
        if sys.argv[0].endswith("default_worker.py"):
            os._exit(1)
        return np.eye(geometry.n)
"""


def test_a_cluster_merges_as_one_process_does_and_says_what_is_wrong(tmp_path: Path) -> None:
    """Rules by weights and by coordinate, bad files, a base, a plugin, errors."""
    weights = case(tmp_path / "case-weights", "GeometricMedian()")
    weights[1].write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    weights[2].write_bytes(weights[2].read_bytes()[:-1])
    save_file(state(torch.full((D,), torch.nan, dtype=torch.float64), 0), weights[4])

    middle = case(tmp_path / "case-middle", "Bucketing(s=2) >> Median()", "--seed=3", "--base=base")
    save_file(state(inputs.gaussian(1, D)[0], 0), tmp_path / "case-middle" / "base")

    groups = "Hierarchy(groups=3, inner=GeometricMedian(), deal='random') >> GeometricMedian()"
    levels = case(tmp_path / "case-levels", groups, "--seed=3")

    own = case(tmp_path / "case-own", "First()", "--plugin=mine.py")
    case(tmp_path / "case-deadly", "Deadly() >> Mean()", "--plugin=mine.py")
    for name in ("own", "deadly"):
        (tmp_path / f"case-{name}" / "mine.py").write_text(PLUGIN)

    bad = case(tmp_path / "case-bad", "Krum(f=1)")
    for path in bad[:2]:
        path.write_bytes(b"nothing")
    adapters = case(tmp_path / "case-adapters", "Krum(f=2)")
    for k, path in enumerate(adapters):
        path.unlink()
        adapter_folders.save(path, adapter_folders.state(k))
    case(tmp_path / "case-base", "Median()", "--base=base")
    save_file(
        state(torch.full((D,), torch.nan, dtype=torch.float64), 0), tmp_path / "case-base" / "base"
    )

    said = witness("undisturbed", tmp_path)["said"]
    for name in ("weights", "middle", "levels", "own", "adapters"):
        assert said[f"case-{name}"][0] == 0, said[f"case-{name}"][1]
    assert_as_here(bz.GeometricMedian(), weights, tmp_path / "case-weights")
    base = tmp_path / "case-middle" / "base"
    assert_as_here(
        bz.Bucketing(s=2) >> bz.Median(), middle, tmp_path / "case-middle", seed=3, base=base
    )
    assert_as_here(bz.parse_rule(groups), levels, tmp_path / "case-levels", seed=3)
    assert load_file(tmp_path / "case-own" / OUT)["b"].equal(load_file(own[0])["b"])
    merge_adapters(bz.Krum(f=2), adapters, tmp_path / "case-adapters" / "here")
    here, there = (
        load_file(tmp_path / "case-adapters" / name / "adapter_model.safetensors")
        for name in ("here", OUT)
    )
    for name in (f"{adapter_folders.BEFORE}{k}.lora_" for k in adapter_folders.SHAPES):
        one, other = (x[f"{name}B.weight"] @ x[f"{name}A.weight"] for x in (here, there))
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    code, text = said["case-bad"]
    assert code == 2
    assert "client-0.safetensors, client-1.safetensors (is not safetensors" in text
    code, text = said["case-base"]
    assert code == 2
    assert "the base holds numbers that are not finite, on the node 127.0.0.1" in text
    code, text = said["case-deadly"]
    assert code == 2
    assert "the processes of a task have died 4 times" in text
    for name in ("bad", "base", "deadly"):
        assert list((tmp_path / f"case-{name}" / "out").iterdir()) == []


def test_a_worker_that_is_killed_while_it_writes_is_replaced(tmp_path: Path) -> None:
    paths = clients(tmp_path)
    (tmp_path / "out").mkdir()
    found = witness("worker_killed", tmp_path)
    assert found["code"] == 0, found["said"]
    assert [name.rpartition(".")[2] for name in found["before"] if "merged" in name] == ["writing"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["merged.safetensors"]
    assert_same_numbers(paths, tmp_path)


def test_when_a_node_is_killed_the_others_go_on(tmp_path: Path) -> None:
    paths = clients(tmp_path)
    (tmp_path / "out").mkdir()
    found = witness("node_killed", tmp_path)
    assert found["code"] == 0, found["said"]
    assert_same_numbers(paths, tmp_path)


def assert_same_numbers(paths: Sequence[Path], folder: Path) -> None:
    merge(bz.GeometricMedian(), paths, folder / "here")
    here, there = load_file(folder / "here"), load_file(folder / OUT)
    assert all(torch.allclose(here[k], there[k], rtol=1e-6, atol=1e-7) for k in here)


def test_a_driver_that_is_killed_leaves_no_half_output(tmp_path: Path) -> None:
    paths = clients(tmp_path)
    (tmp_path / "out").mkdir()
    found = witness("driver_killed", tmp_path)
    assert all(name.endswith(".writing") for name in found["left"])
    assert any(name.startswith("merged.safetensors.") for name in found["left"])
    assert found["code"] == 0, found["said"]
    assert found["after"] == ["merged.safetensors"]
    assert_same_numbers(paths, tmp_path)


def test_a_node_that_does_not_see_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    paths = clients(tmp_path / "input")
    (tmp_path / "out").mkdir()
    found = witness("not_seen", tmp_path)
    code, text = found["said"]["files"]
    assert code == 2
    text = "".join(text.split("\n"))
    assert "the node 127.0.0.1 of the cluster cannot take part: it does not see the same" in text
    assert f"{paths[0]}: No such file or directory" in text
    code, text = found["said"]["output"]
    assert code == 2
    assert f"it does not share the folder of the output, {tmp_path / 'out'}" in text
    assert found["left"] == []
