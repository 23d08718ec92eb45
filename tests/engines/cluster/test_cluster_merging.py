"""Merging by tasks that know nothing of each other: the same as in one process, for every rule."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inputs
import members
import pytest
import torch
from agreement import seeded
from members import EVERYTHING, N
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from safetensors_files import cut, joined, saved, sharded
from serial_tasks import Serial, SerialTasks

import byzantium as bz
from byzantium.engines import merge
from byzantium.engines.cluster import merging as cluster_merging
from byzantium.engines.cluster.merging import ClusterMerging
from byzantium.engines.files import Files

PART = 97


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_merging, "COLUMNS", PART)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_every_rule_gives_what_it_gives_in_one_process(
    member: members.Rule, tmp_path: Path
) -> None:
    X = inputs.heterogeneous(N, 641)
    paths = saved([cut(row) for row in X], tmp_path)
    options = {"root": paths[0]} if member.fresh().needs_root else {}
    merge(member.fresh(), paths[1:], tmp_path / "here", seed=0, **options)
    merge(member.fresh(), paths[1:], tmp_path / "there", seed=0, engine=Serial(), **options)
    here, there = load_file(tmp_path / "here"), load_file(tmp_path / "there")
    for name in here:
        assert here[name].dtype == there[name].dtype
        assert torch.allclose(here[name], there[name], rtol=1e-6, atol=1e-6)
