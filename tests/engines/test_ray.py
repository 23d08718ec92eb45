"""Sweeps on a cluster of Ray, and what may happen to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cluster
import idx
import pytest
from click.testing import CliRunner
from jail import needs_jail, witnessed
from pages import forget
from paths import SUPPORT
from threads import torch_threads

from byzantium import __version__
from byzantium.cli import main
from byzantium.core import files
from byzantium.engines import Ray
from byzantium.engines.ray import check_node
from byzantium.runs import Run, Store, execute, load


@pytest.fixture(autouse=True)
def no_plugins() -> Iterator[None]:
    """The sweeps use a plugin, which is not to be seen by other tests."""
    yield
    forget()


@pytest.fixture
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def witness(happening: str, folder: Path) -> dict[str, Any]:
    return witnessed(SUPPORT / "cluster.py", happening, folder)


def assert_as_undisturbed(folder: Path) -> None:
    """The metrics are those of the same runs in this process."""
    runs = load(cluster.sweep_file(folder))
    cluster.allow(folder, cluster.ALL)
    alone, there = Store(folder / "alone"), Store(folder / "results")
    execute(runs, alone)
    for run in runs:
        assert there.result(run).done
        assert there.result(run).metrics == alone.result(run).metrics
        assert there.result(run).summary["threads"] == 1
    left = {path.name for path in there.root.iterdir()} - {"report.html", "figures"}
    assert left == {run.identity for run in runs}


@needs_jail
@pytest.mark.usefixtures("one_thread")
def test_a_worker_that_is_killed_costs_what_it_did_since_its_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the data are is told to the nodes."""
    monkeypatch.delenv("BYZANTIUM_DATA", raising=False)
    data = idx.write(tmp_path / "data", idx.idx_files())
    found = witness("worker_killed", tmp_path)
    monkeypatch.setenv("BYZANTIUM_DATA", str(data))
    assert found["code"] == 0, found["said"]
    assert "its worker process has died; another process continues it" in found["said"]
    assert "2/2 done" in found["said"]
    assert found["before"] == 2
    assert {where.rpartition(":")[0] for where in found["listeners"]} <= {"127.0.0.1", "::1"}
    assert_as_undisturbed(tmp_path)


@needs_jail
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("happening", "note"),
    [
        ("lock_kept", "the process that died is released"),
        ("node_killed", "another process continues it"),
    ],
)
def test_a_lock_that_outlives_its_process_is_waited_for_and_jobs_of_a_dead_node_go_on(
    happening: str, note: str, tmp_path: Path
) -> None:
    found = witness(happening, tmp_path)
    assert found["code"] == 0, found["said"]
    assert note in found["said"]
    assert_as_undisturbed(tmp_path)


@needs_jail
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_sweep_that_is_interrupted_saves_itself_and_goes_on(tmp_path: Path) -> None:
    interrupted, terminated, killed, last, again = witness("driver_interrupted", tmp_path)["told"]
    for code, said, _ in (interrupted, terminated):
        assert code == 130, said
        assert "Stopped with 0 of 2 done; the same command continues." in said
    assert killed[0] == -9
    assert last[0] == again[0] == 0, last[1]
    assert 0 < interrupted[2] < terminated[2] < killed[2] < last[2] == again[2] == 20
    assert_as_undisturbed(tmp_path)


@needs_jail
@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_plugin_goes_with_its_jobs(tmp_path: Path) -> None:
    found = witness("own_rule", tmp_path)
    assert found["code"] == 0, found["said"]
    assert_as_undisturbed(tmp_path)
    assert [bool(run.plugin) for run in load(tmp_path / "sweep.toml")] == [True, True]


@needs_jail
@pytest.mark.slow
def test_nodes_that_do_not_share_the_results_are_refused_at_the_start(tmp_path: Path) -> None:
    found = witness("not_shared", tmp_path)
    for name, why in {"another": "No such file", "read-only": "Read-only file system"}.items():
        code, said = found["said"][name]
        assert code == 2, said
        assert "the node 127.0.0.1 of the cluster cannot take part: " in said
        assert f"it does not share the folder of results, {tmp_path / 'results'}" in "".join(
            said.splitlines()
        )
        assert why in said
    assert found["left"] == []


def test_a_node_on_which_locks_do_not_hold_is_found_out(tmp_path: Path) -> None:
    sign, descriptor = files.create_beside(tmp_path / ".ray")
    assert check_node(sign, tmp_path / "reply", __version__) == ""
    os.close(descriptor)
    assert "do not hold on all nodes" in check_node(sign, tmp_path / "reply", __version__)
    assert check_node(sign, tmp_path / "reply", "0.0").endswith(
        "and the command was started with 0.0"
    )


def test_where_there_is_no_cluster_that_is_said_at_once(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="NOT TESTED: Ray is not installed")
    with pytest.raises(ValueError, match=r"no Ray cluster at 127\.0\.0\.1:1 .*refused"):
        execute([Run()], Store(tmp_path), Ray("127.0.0.1:1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("local", "does what local processes do"),
        ("ray://10.0.0.1:10001", "must be host:port, got 'ray://10.0.0.1:10001'"),
    ],
)
def test_addresses_that_are_of_no_use_are_refused(address: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="Ray") as caught:
        Ray(address)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("command", [["sweep", "sweep.toml"], ["reproduce", "table2"]])
def test_the_engine_is_looked_at_before_anything_else(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address without it, and Ray where it is not installed."""
    (tmp_path / "sweep.toml").write_text("[fixed]\nrounds = 1\n")
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(main, [*command, "--address", "host:1"])
    assert (told.exit_code, "--address is for --engine ray" in told.output) == (2, True)
    monkeypatch.setitem(sys.modules, "ray", None)
    told = CliRunner().invoke(main, [*command, "--engine", "ray"])
    assert told.exit_code == 1
    assert "the engine Ray needs ray: pip install '.[ray]'" in told.output
    assert not (tmp_path / "results").exists()
