"""Merging with a root: a checkpoint of data that the user trusts."""

from __future__ import annotations

from pathlib import Path

import inputs
import members
import pytest
import torch
from click.testing import CliRunner
from members import N
from safetensors.torch import load_file, save_file
from safetensors_files import cut, joined, saved

import byzantium as bz
from byzantium.cli import main
from byzantium.engines.files import merge

pytestmark = pytest.mark.usefixtures("two_threads")


@pytest.mark.parametrize("with_base", [False, True])
@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
def test_a_merge_with_a_root_is_the_rule_on_the_vectors(
    member: members.RootRule, with_base: bool, tmp_path: Path
) -> None:
    X = inputs.heterogeneous(N, 641)
    root, start = X.mean(dim=0) + 0.1, torch.linspace(-1, 1, 641, dtype=torch.float64)
    paths = saved([cut(row) for row in X], tmp_path)
    save_file(cut(root), tmp_path / "root.safetensors")
    save_file(cut(start), tmp_path / "base.safetensors")
    base = tmp_path / "base.safetensors" if with_base else None
    report = merge(
        member.rule, paths, tmp_path / "out", base=base, root=tmp_path / "root.safetensors"
    )
    expected = member.rule(X, root=root, base=start if with_base else None)
    assert torch.allclose(joined(load_file(tmp_path / "out")), expected, atol=1e-6)
    assert list(report["root"]) == ["root.safetensors"]  # and its digest


def test_a_root_that_is_missing_unused_or_wrong_gets_one_error(tmp_path: Path) -> None:
    X = inputs.heterogeneous(7, 30)
    paths = [str(path) for path in saved([cut(row) for row in X], tmp_path)]
    save_file(cut(X[0]), tmp_path / "root.safetensors")
    save_file(cut(X[0] * torch.nan), tmp_path / "nan.safetensors")
    save_file({"other": X[0]}, tmp_path / "other.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"\xff" * 40)

    def error(rule: str, root: str | None) -> str:
        options = [] if root is None else ["--root", str(tmp_path / f"{root}.safetensors")]
        output = str(tmp_path / "out")
        result = CliRunner().invoke(
            main, ["aggregate", "--rule", rule, *paths, "-o", output, *options]
        )
        assert result.exit_code == 2
        assert not Path(output).exists()
        return result.output

    assert "needs a root (--root FILE)" in error("RootMatching(f=1)", None)
    assert "does not use a root" in error("Median()", "root")
    for root in (None, "root"):
        assert "Zeno(f=1) tries steps on the loss of root data" in error("Zeno(f=1)", root)
    assert "the root holds numbers that are not finite" in error("RootMatching(f=1)", "nan")
    assert "the root" in error("RootMatching(f=1)", "other")
    assert "the root" in error("RootMatching(f=1)", "torn")


def test_the_root_is_never_overwritten(tmp_path: Path) -> None:
    paths = saved([cut(row) for row in inputs.heterogeneous(5, 30)], tmp_path)
    save_file(cut(inputs.heterogeneous(5, 30)[0]), tmp_path / "root.safetensors")
    root = tmp_path / "root.safetensors"
    with pytest.raises(bz.ByzantiumError, match="is one of the files that are read"):
        merge(bz.RootMatching(f=1), paths, root, root=root)
