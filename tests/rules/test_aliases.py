"""The paper's names, which tables and figures show, can be typed wherever ours can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import byzantium as bz
from byzantium.cli import main, terminal
from byzantium.core import Registry, notation
from byzantium.data import partition
from byzantium.runs import Certification, Federation, Mimicry, Run, load, plugins
from byzantium.tables import terms

# Arguments without which a member cannot be made.
NEEDED = {"Krum": "f=2", "CenteredClipping": "radius=10", "dirichlet": "alpha=0.5"}
SHOWN = [term for term in terms.TERMS if term.member]


def table_of(kind: str) -> Registry[Any]:
    tables = [plugins.tables()[part] for part in ("rule", "attack", "partition")]
    return next(table for table in tables if kind in table)


@pytest.mark.parametrize("term", SHOWN, ids=lambda term: term.member)
def test_what_we_show_is_accepted_and_is_the_class_with_these_arguments(
    term: terms.Term,
) -> None:
    arguments = NEEDED.get(term.member, "")
    table = table_of(term.member)
    shown, ours = (
        notation.read(f"{name}({arguments})", table) for name in (term.short, term.member)
    )
    assert repr(shown) == repr(ours)
    assert type(shown) is type(ours)
    assert term.short in (term.member, *table.aliases)


def test_there_is_no_alias_that_we_do_not_show() -> None:
    shown = {term.short: term.member for term in SHOWN}
    for part in plugins.tables().values():
        assert part.aliases.items() <= shown.items()
        assert not set(part.aliases) & set(part)


def test_an_alias_stands_for_the_class_and_never_for_published_settings() -> None:
    assert bz.parse_rule("RFA()") == bz.GeometricMedian()
    assert bz.parse_rule("CM()") == bz.Median()
    assert bz.parse_rule("Bucketing(2) >> CClip(10)") == bz.parse_rule(
        "Bucketing(s=2) >> CenteredClipping(radius=10)"
    )
    assert bz.parse_attack("Tuned(ALIE())") == bz.Tuned(bz.ALittleIsEnough())
    assert bz.parse_attack("IPM(epsilon=0.5)") == bz.InnerProduct(epsilon=0.5)
    assert partition.read("noniid") == partition.by_label()
    with pytest.raises(bz.ByzantiumError, match="lacks the argument 'radius', which CClip needs"):
        bz.parse_rule("CClip()")
    with pytest.raises(bz.ByzantiumError, match="'RFB', which does not exist; did you mean 'RFA'"):
        bz.parse_rule("RFB()")


def test_aliases_are_written_out_in_whatever_is_stored() -> None:
    ours = Run(rule="Bucketing(s=2) >> GeometricMedian()", attack="BitFlip()", partition="by_label")
    theirs = Run(rule="Bucketing(s=2) >> RFA()", attack="BF", partition="noniid()")
    assert theirs == ours
    assert (theirs.identity, theirs.toml()) == (ours.identity, ours.toml())
    assert Run(attack="none").identity == Run(attack="NoAttack()").identity
    for kind in (Mimicry, Certification):
        assert kind(rule="RFA").identity == kind(rule="GeometricMedian()").identity
    written = Federation(rule="Bucketing(s=2) >> CClip(radius=1)")
    assert written.rule == "Bucketing(s=2) >> CenteredClipping(radius=1)"
    assert Federation(rule="CM").rule == "CM"  # a function of this name, and no rule


def test_none_attacks_nobody_before_it_is_written_out() -> None:
    """How many workers attack decides whether a run is possible."""
    run = Run(rule="Mean()", attack="none", n=10, f=20)
    assert (run.attack, run.attacker_count) == ("NoAttack()", 0)


def test_a_sweep_and_the_command_line_take_aliases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('[varies]\nrule = ["RFA", "CM()"]\nattack = ["LF()"]\n')
    assert [run.rule for run in load(tmp_path / "mine.toml")] == ["GeometricMedian()", "Median()"]
    options = ["--rule", "RFA", "--attack", "IPM()", "--partition", "noniid"]
    command = ["run", "--n", "7", "--f", "1", "--rounds", "2", *options]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    (written,) = Path("results").glob("*/config.toml")
    for line in ('"GeometricMedian()"', '"InnerProduct()"', '"by_label()"'):
        assert f"= {line}\n" in written.read_text()
    told = CliRunner().invoke(main, ["check", "RFA()", "--n", "7", "--f", "1"])
    assert "GeometricMedian() for 7 vectors" in told.stdout


def test_list_shows_them_beside_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal.out, "_width", 200)
    listed = CliRunner().invoke(main, ["list"]).stdout
    for alias, name in (
        ("RFA", "GeometricMedian"),
        ("ALIE", "ALittleIsEnough"),
        ("noniid", "by_label"),
    ):
        assert re.search(rf" {name}\(.*\), {alias} ", listed)


def test_a_plugin_cannot_take_the_name_of_an_alias(tmp_path: Path) -> None:
    """As it cannot take the name of a member: one text would mean two rules."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from byzantium import MatrixRule\n\nclass RFA(MatrixRule):\n"
        "    def aggregate(self, updates):\n        return updates.mean(dim=0)\n"
    )
    with pytest.raises(
        bz.ByzantiumError,
        match=r"mine\.py defines 'RFA', but this is another name of the rule or mixing "
        "'GeometricMedian', which is part of Byzantium; give yours another name",
    ):
        bz.load_plugin(file)
    assert bz.parse_rule("RFA()") == bz.GeometricMedian()
