"""Merging with sizes for which the user vouches."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import inputs
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from safetensors_files import cut, joined, saved

import byzantium as bz
from byzantium.cli import main
from byzantium.engines.files import Files, merge, read_weights

pytestmark = pytest.mark.usefixtures("two_threads")
N = 7
SIZES = [2.0, 1.0, 3.0, 1.0, 4.0, 2.5, 1.0]
RULES: list[bz.Aggregator] = [
    bz.Mean(),
    bz.TrimmedMean(f=1),
    bz.GeometricMedian(),
    bz.NearestNeighborMixing(f=1) >> bz.MeaMed(f=1),
]


def names_of(paths: Sequence[Any]) -> list[str]:
    source = Files(paths)
    return [source.row_name(row) for row in range(source.n)]


def stems(paths: Sequence[Any]) -> list[str]:
    return [Path(name).stem for name in names_of(paths)]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_merge_with_weights_is_the_rule_on_the_vectors(
    rule: bz.Aggregator, tmp_path: Path
) -> None:
    X = inputs.heterogeneous(N, 641)
    paths = saved([cut(row) for row in X], tmp_path)
    names = names_of(paths)
    for weights in (SIZES, dict(zip(names, SIZES, strict=True)), [0.0, *SIZES[1:]]):
        summary = merge(rule, paths, tmp_path / "out", weights=weights)
        numbers = list(weights.values()) if isinstance(weights, dict) else weights
        expected = rule.explain(X, weights=numbers)
        assert torch.allclose(joined(load_file(tmp_path / "out")), expected.aggregate, atol=1e-6)
        assert [one["vouched"] for one in summary["contributors"]] == numbers
        counted = [one["weight"] for one in summary["contributors"]]
        assert counted == pytest.approx(expected.weights.tolist(), abs=1e-9)


def test_a_rejected_file_takes_its_weight_with_it(tmp_path: Path) -> None:
    X = inputs.heterogeneous(N, 30)
    paths = saved([cut(row) for row in X], tmp_path)
    Path(paths[4]).write_bytes(b"torn")
    summary = merge(bz.TrimmedMean(f=1), paths, tmp_path / "out", weights=SIZES)
    assert summary["contributors"][4]["rejected"]
    X[4] = torch.nan
    expected = bz.TrimmedMean(f=1)(X, weights=SIZES)
    assert torch.allclose(joined(load_file(tmp_path / "out")), expected, atol=1e-6)


def command(tmp_path: Path, sizes: str, *options: str) -> tuple[int, str]:
    X = inputs.heterogeneous(3, 30)
    paths = [str(path) for path in saved([cut(row) for row in X], tmp_path)]
    (tmp_path / "sizes.toml").write_text(sizes)
    given = ["--weights", str(tmp_path / "sizes.toml"), "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(main, ["aggregate", *paths, *given, *options])
    return result.exit_code, result.output


def test_the_command_reads_sizes_by_name(tmp_path: Path) -> None:
    X = inputs.heterogeneous(3, 30)
    names = stems(saved([cut(row) for row in X], tmp_path))
    written = "\n".join(
        [f"{names[0]} = 1", f"{names[1]}.safetensors = 2", f'"{names[2]}.safetensors" = 0.5']
    )
    code, output = command(tmp_path, written, "--rule", "Mean()", "--json")
    assert code == 0, output
    summary = json.loads(output)
    assert [one["vouched"] for one in summary["contributors"]] == [1, 2, 0.5]
    assert joined(load_file(tmp_path / "out")).numpy() == pytest.approx(
        bz.Mean()(X, weights=[1, 2, 0.5]).numpy(), abs=1e-6
    )
    code, output = command(tmp_path, written, "--rule", "Mean()")
    assert "vouched" in output


def test_what_is_wrong_with_sizes_is_one_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X = inputs.heterogeneous(3, 30)
    a, b, c = stems(saved([cut(row) for row in X], tmp_path))
    whole = f"{a} = 1\n{b} = 1\n{c} = 2\n"
    for sizes, rule, sentence in [
        (f"{a} = 1\n{b} = 2", "Mean()", "a number for each contributor, and there is none for"),
        (f"{a} = 1\n{b} = 2\n{c} = 'x'", "Mean()", "must give a number for each name, got 'x'"),
        (f"{a} = 1\n{b} = true\n{c} = 1", "Mean()", "a number for each name, got True"),
        ("", "Mean()", "must give a number for each name, got none"),
        (f"{a} = 1\n{b} = -1\n{c} = 1", "Mean()", "finite and at least 0"),
        ("a = [1", "Mean()", "sizes.toml"),
        (whole, "Krum(f=0)", "takes no weights"),
        (whole, "TrimmedMean(f=1)", "the largest of 3 sites holds 50 % of the weight"),
    ]:
        code, output = command(tmp_path, sizes, "--rule", rule)
        assert code == 2, output
        assert sentence in output
    with caplog.at_level(logging.WARNING):
        assert command(tmp_path, f"{whole}absent = 7\n", "--rule", "Mean()")[0] == 0
    assert "no checkpoint belongs to the weights of absent" in caplog.text


def test_sizes_may_be_json(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text('{"a": 190, "b": 17834}')
    assert read_weights(tmp_path / "sizes.json") == {"a": 190, "b": 17834}
