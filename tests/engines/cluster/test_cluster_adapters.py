"""Adapters, merged by tasks of which each has the factors of one module: as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adapter_folders as folders
import pytest
import torch
from safetensors.torch import load_file, save_file
from serial_tasks import Serial

import byzantium as bz
from byzantium.engines import merge_adapters
from byzantium.engines.cluster import adapters as cluster_adapters

WEIGHTINGS = (
    "Krum(f=2)",
    "GeometricMedian()",
    "CenteredClipping(radius=3)",
    "Bucketing(s=2) >> GeometricMedian()",
    "NearestNeighborMixing(f=2) >> Mean()",
    "Clipping(radius=2) >> MinimumDiameter(f=2)",
)


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_adapters, "NUMBERS", 1)


def contributors(folder: Path) -> list[Path]:
    """Two are equal, one is huge, one is not finite, and one cannot be read."""
    paths = folders.several(folder, n=9)
    folders.save(paths[1], folders.state(0))
    folders.save(paths[2], folders.state(2, size=50.0))
    folders.save(paths[3], folders.state(3, size=float("nan")))
    (paths[4] / "adapter_model.safetensors").write_bytes(b"nothing")
    return paths


def assert_alike(here: Path, there: Path) -> None:
    one, other = load_file(here), load_file(there)
    assert one.keys() == other.keys()
    for name in folders.SHAPES:
        if f"{name}.weight" in one:
            assert torch.allclose(one[f"{name}.weight"], other[f"{name}.weight"], atol=1e-5)
    for name in folders.SHAPES if len(one) == 2 * len(folders.SHAPES) else ():
        b, a = (f"{folders.BEFORE}{name}.lora_{side}.weight" for side in "BA")
        assert torch.allclose(one[b] @ one[a], other[b] @ other[a], rtol=1e-4, atol=1e-5)


def without_rounding(summary: dict[str, Any]) -> dict[str, Any]:
    contributors = [{**one, "weight": None} for one in summary["contributors"]]
    return {**summary, "contributors": contributors, "remainder": None, "adapters": None}


@pytest.mark.parametrize(
    ("rule", "rank"),
    [*((rule, None) for rule in WEIGHTINGS), ("GeometricMedian()", 2), ("Krum(f=2)", "full")],
)
def test_tasks_merge_adapters_as_one_process_does(rule: str, rank: Any, tmp_path: Path) -> None:
    paths = contributors(tmp_path)
    given = {"rank": rank, "seed": 5}
    here = merge_adapters(bz.parse_rule(rule), paths, tmp_path / "here", **given)
    engine = Serial()
    there = merge_adapters(bz.parse_rule(rule), paths, tmp_path / "there", engine=engine, **given)
    assert without_rounding(there) == without_rounding(here)
    for one, other in zip(there["contributors"], here["contributors"], strict=True):
        assert one["weight"] == pytest.approx(other["weight"], rel=1e-9, abs=1e-12)
    assert there["adapters"]["lost"] == pytest.approx(here["adapters"]["lost"], abs=1e-9)
    assert_alike(*(tmp_path / name / "adapter_model.safetensors" for name in ("here", "there")))


@pytest.mark.parametrize("rank", [None, 1])
def test_into_the_weights_of_the_model_with_a_root_and_weights(rank: Any, tmp_path: Path) -> None:
    paths = contributors(tmp_path)
    generator = torch.Generator().manual_seed(1)
    base = {f"{k}.weight": torch.randn(v, generator=generator) for k, v in folders.SHAPES.items()}
    save_file(base, tmp_path / "base.safetensors")
    root = folders.save(tmp_path / "root", folders.state(20))
    cases: list[tuple[str, dict[str, Any]]] = [
        ("RootMatching(f=3)", {"root": root}),
        ("GeometricMedian()", {"weights": [1, 2, 1, 1, 1, 0, 1, 1, 3]}),
    ]
    for rule, options in cases:
        options |= {"rank": rank, "base": tmp_path / "base.safetensors"}
        merge_adapters(bz.parse_rule(rule), paths, tmp_path / "here", **options)
        engine = Serial()
        merge_adapters(bz.parse_rule(rule), paths, tmp_path / "there", engine=engine, **options)
        assert_alike(tmp_path / "here", tmp_path / "there")


def test_nearly_equal_adapters_are_measured_by_their_columns(tmp_path: Path) -> None:
    """Inner products of factors would lose digits."""
    paths = folders.several(tmp_path, n=5)
    for k, path in enumerate(paths):
        state = folders.state(0)
        for name in state:
            state[name] = state[name].double() + 1e-11 * k**2
        folders.save(path, state)
    here = merge_adapters(bz.GeometricMedian(), paths, tmp_path / "here")
    there = merge_adapters(bz.GeometricMedian(), paths, tmp_path / "there", engine=Serial())
    for one, other in zip(there["contributors"], here["contributors"], strict=True):
        assert one["weight"] == pytest.approx(other["weight"], rel=1e-4, abs=1e-6)


def test_rules_by_coordinate_are_for_one_process(tmp_path: Path) -> None:
    paths = folders.several(tmp_path)
    save_file({"q.weight": torch.zeros(30, 20)}, tmp_path / "base.safetensors")
    with pytest.raises(bz.ByzantiumError, match="which one process computes: omit the engine"):
        merge_adapters(
            bz.Median(),
            paths,
            tmp_path / "merged",
            base=tmp_path / "base.safetensors",
            engine=Serial(),
        )
