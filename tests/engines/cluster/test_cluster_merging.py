"""Merging by tasks that know nothing of each other: as in one process, for every rule."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inputs
import members
import pytest
import torch
from agreement import agree
from members import PIPELINES, ROOT_RULES, RULES, N
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from safetensors_files import cut, joined, saved, sharded, some
from serial_tasks import Serial

import byzantium as bz
from byzantium import related
from byzantium.engines import merge
from byzantium.engines.cluster import merging as cluster_merging
from byzantium.engines.cluster import tasks
from byzantium.engines.files.input_files import InputFile
from byzantium.engines.files.merging import Call

PART = 250
# Rules that remember whole vectors of each worker, which no machine of a cluster has.
REMEMBERING = (related.Safeguard, related.ByzantineSGD)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_merging, "COLUMNS", PART)


def without_weights(summary: dict[str, Any]) -> dict[str, Any]:
    """A report without what differs by rounding."""
    contributors = [{**one, "weight": None} for one in summary["contributors"]]
    return {**summary, "contributors": contributors, "remainder": None}


def assert_as_here(make: Callable[[], bz.Aggregator], paths: list[Path], **options: Any) -> Any:
    """The output and the report of tasks are those of one process; returns both outputs."""
    outputs = [paths[0].parent / "here", paths[0].parent / "there"]
    here = merge(make(), paths, outputs[0], seed=7, **options)
    there = merge(make(), paths, outputs[1], seed=7, engine=Serial(), **options)
    assert without_weights(there) == without_weights(here)
    for one, other in zip(there["contributors"], here["contributors"], strict=True):
        assert one["weight"] == pytest.approx(other["weight"], rel=1e-9, abs=1e-12)
    with safe_open(outputs[1], "pt") as file:
        assert json.loads(file.metadata()["byzantium"]) == there
    return [load_file(output) for output in outputs]


def check(member: members.Rule, folder: Path) -> None:
    X = inputs.heterogeneous(N, 641)
    here, there = assert_as_here(member.fresh, saved([cut(row) for row in X], folder))
    agree(member, joined(there), joined(here), scale=float(X.abs().max()))


@pytest.mark.parametrize("member", RULES, ids=members.name)
def test_every_rule_gives_what_it_gives_in_one_process(
    member: members.Rule, tmp_path: Path
) -> None:
    if isinstance(member.rule, REMEMBERING):
        with pytest.raises(bz.ByzantiumError, match="needs whole vectors"):
            check(member, tmp_path)
    else:
        check(member, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("member", PIPELINES, ids=members.name)
def test_every_pipeline_gives_what_it_gives_in_one_process(
    member: members.Rule, tmp_path: Path
) -> None:
    check(member, tmp_path)


@pytest.mark.parametrize("member", ROOT_RULES, ids=members.name)
def test_rules_with_a_root(member: members.RootRule, tmp_path: Path) -> None:
    X, paths = some(tmp_path, d=641, n=31)
    for name, row in {"root": X.mean(dim=0), "base": 0.1 * X[0]}.items():
        save_file(cut(row), tmp_path / name)
    options = {name: tmp_path / name for name in ("root", "base")}
    here, there = assert_as_here(lambda: member.rule, paths, **options)
    assert torch.allclose(joined(there), joined(here), rtol=1e-6, atol=1e-6)


def mixed_states(n: int) -> list[dict[str, torch.Tensor]]:
    """Dtypes of several widths, counters, and numbers that lie in several parts."""
    X = inputs.heterogeneous(n, 700)
    return [
        {
            "c": row[:400].to(torch.bfloat16).reshape(20, 20),
            "a": row[400:].float(),
            "steps": torch.tensor([k, 2 * k]),
            "on": torch.tensor(k > 2),
        }
        for k, row in enumerate(X)
    ]


@pytest.mark.parametrize(
    "rule", ["GeometricMedian()", "Median()", "Bucketing(s=2) >> TrimmedMean(f=2)"]
)
def test_bad_files_shards_dtypes_counters_and_equal_files(rule: str, tmp_path: Path) -> None:
    states = mixed_states(11)
    states[3] = states[5]
    states[4] = {**states[4], "a": torch.full((300,), torch.nan)}
    paths = saved(states, tmp_path)
    paths[2].write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    paths[1] = sharded(states[1], tmp_path / "shards")
    save_file(states[0], tmp_path / "base")
    for options in ({}, {"base": tmp_path / "base"}):
        here, there = assert_as_here(lambda: bz.parse_rule(rule), paths, **options)
        assert {k: v.dtype for k, v in here.items()} == {k: v.dtype for k, v in there.items()}
        assert here["steps"].equal(there["steps"])
        assert here["on"].equal(there["on"])
        assert torch.allclose(here["a"], there["a"], rtol=1e-6)
        assert torch.allclose(here["c"].float(), there["c"].float(), rtol=1e-2)


@pytest.mark.parametrize("rule", ["Krum(f=1)", "Median()", "Bucketing(s=2) >> GeometricMedian()"])
def test_weights_of_the_operator(rule: str, tmp_path: Path) -> None:
    _, paths = some(tmp_path, n=9, d=641)
    weights = [3, 1, 1, 0, 2, 2, 1, 1, 0.5] if rule != "Krum(f=1)" else [1, 1, 1, 0, 1, 1, 1, 1, 1]
    here, there = assert_as_here(lambda: bz.parse_rule(rule), paths, weights=weights)
    assert torch.allclose(joined(there), joined(here), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", [bz.GeometricMedian(), bz.Median(), bz.Mean()], ids=repr)
def test_tasks_read_the_columns_twice(
    rule: bz.Aggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weightings measure and combine; a rule by coordinate reads again what it writes."""
    X, paths = some(tmp_path, n=7, d=2 * PART)
    read = Counter[str]()

    def counted(self: InputFile, target: Any, offset: int) -> None:
        read[self.path.name] += target.nbytes
        fill(self, target, offset)

    fill = InputFile.fill
    engine = Serial(twice=False)
    source = bz.engines.Files(paths)
    with engine.merging(source, tmp_path / "merged") as work:
        monkeypatch.setattr(InputFile, "fill", counted)
        report = work.explain(Call(rule))
        work.save(report.aggregate, {}, tmp_path / "merged")
    once = X[0].numel() * X.element_size()
    assert set(read.values()) == {2 * once}


@pytest.mark.parametrize("function", ["_partial_sum", "_write"])
def test_a_file_that_changes_on_the_way_is_named_and_nothing_is_written(
    function: str, tmp_path: Path
) -> None:
    _, paths = some(tmp_path, d=641)

    def change(called: Callable[..., Any]) -> None:
        if called.__name__ == function:
            paths[3].write_bytes(paths[3].read_bytes())

    with pytest.raises(
        bz.ByzantiumError, match=r"client_03.safetensors was changed, or is another"
    ):
        merge(bz.Krum(f=1), paths, tmp_path / "merged", engine=Serial(before=change))
    assert not list(tmp_path.glob("merged*"))


class Largest(bz.MatrixRule):
    """A rule that needs whole vectors."""

    def aggregate(self, updates: torch.Tensor) -> torch.Tensor:
        return updates.max(dim=0).values


def test_too_many_bad_files_and_the_wrong_rules_are_the_same_errors(tmp_path: Path) -> None:
    X, paths = some(tmp_path, d=641)
    for k in (1, 2):
        save_file(cut(torch.full_like(X[0], torch.inf)), paths[k])
    with pytest.raises(bz.TooManyRejected, match=r"client_01.safetensors, client_02.safetensors"):
        merge(bz.Krum(f=1), paths, tmp_path / "merged", engine=Serial())
    with pytest.raises(bz.ByzantiumError, match="needs whole vectors"):
        merge(Largest(), paths, tmp_path / "merged", engine=Serial())
    rule = bz.CenteredClipping(radius=1.0)
    rule(X[3:])
    with pytest.raises(bz.ByzantiumError, match=r"holds the center .* reset\(\) forgets it"):
        merge(rule, paths, tmp_path / "merged", engine=Serial())
    assert not list(tmp_path.glob("merged*"))


def test_a_cluster_leaves_the_state_of_a_rule_alone(tmp_path: Path) -> None:
    _, paths = some(tmp_path, d=641)
    rule = bz.CenteredClipping(radius=1.0)
    merge(rule, paths, tmp_path / "merged", engine=Serial())
    assert rule.center is None


@pytest.mark.parametrize("rule", ["Krum(f=1)", "Median()"])
def test_files_without_numbers(rule: str, tmp_path: Path) -> None:
    paths = saved([{"w": torch.zeros(0, 3), "steps": torch.tensor(k)} for k in range(5)], tmp_path)
    here, there = assert_as_here(lambda: bz.parse_rule(rule), paths)
    assert there["w"].shape == (0, 3)
    assert there["steps"] == here["steps"] == 2


def test_what_the_cluster_loses_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in code keeps its traceback."""
    ray = pytest.importorskip("ray", reason="NOT TESTED: Ray is not installed")
    lost = ray.exceptions.RaySystemError("the store is gone")
    broken = ray.exceptions.RayTaskError("attempt", "Traceback: ...", ValueError("a mistake"))

    def failing(error: Exception) -> Callable[[object], object]:
        def get(reference: object) -> object:
            raise error

        return get

    monkeypatch.setattr(ray, "get", failing(lost))
    with pytest.raises(bz.ByzantiumError, match="the cluster has lost a task"):
        tasks._result(None)
    monkeypatch.setattr(ray, "get", failing(broken))
    with pytest.raises(ray.exceptions.RayTaskError):
        tasks._result(None)
