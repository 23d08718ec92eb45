"""`byzantium recommend`: what it prints can be pasted, and follows from what was measured."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

import byzantium as bz
from byzantium.cli import main
from byzantium.runs import Run

SORTED = ("--data", "digits", "--partition", "by_label()")


def recommend(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["recommend", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(("n", "f", "root"), [(25, 3, 0), (25, 5, 0), (25, 5, 10), (25, 20, 2)])
def test_its_lines_can_be_pasted(n: int, f: int, root: int) -> None:
    text = recommend("--n", str(n), "--f", str(f), "--root", str(root))
    code, command, *_ = text.splitlines()
    expected = bz.recommend(n, f, root=bool(root)).pipeline
    assert eval(code.removeprefix("rule = ").partition("  #")[0], {"bz": bz}) == expected
    words = shlex.split(command)
    assert words[:2] == ["byzantium", "run"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    run = Run.of({name.removeprefix("--"): _value(value) for name, value in options.items()})
    assert (run.n, run.f, run.momentum, run.root) == (n, f, 0.9, root)
    assert run.aggregator() == expected


def _value(text: str) -> object:
    return int(text) if text.isdigit() else float(text) if re.match(r"^\d+\.", text) else text


def test_b2_of_the_users_data_decides() -> None:
    hard = recommend("--n", "25", "--f", "5", *SORTED)
    assert "RankClipping(f=5) >> SpectralFilter(f=5)" in hard
    assert "no rule on the vectors alone promises descent" in hard
    assert re.search(r"Measured on digits: B² = [\d.]+; 5 of 25 need B² < 3; yours is", hard)
    helped = recommend("--n", "25", "--f", "5", "--root", "10", *SORTED)
    assert "rule = bz.RootMatching(f=5)" in helped
    easy = recommend("--n", "25", "--f", "5", "--data", "digits", "--partition", "iid()")
    assert "rule = bz.TrimmedMean(f=5)" in easy
    assert "--partition 'iid()'" in easy


def test_errors_teach() -> None:
    assert "--root), RootMatching can" in recommend("--n", "25", "--f", "13", code=2)
    assert "--model is for --data" in recommend("--n", "9", "--f", "1", "--model", "mlp", code=2)
    both = recommend("--n", "9", "--f", "1", "--iid", "--data", "digits", code=2)
    assert "--data measures them" in both
