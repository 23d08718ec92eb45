"""The rooms, who may look into whom, and what the package exports."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import members
import pytest

import byzantium as bz
from byzantium.core import Formula

PACKAGE = Path(bz.__file__).parent
# Each room may import itself and the rooms named here.
ROOMS: dict[str, set[str]] = {
    "core": set(),
    "aggregation": {"core"},
    "threats": {"core", "aggregation"},
    "guarantees": {"core", "aggregation", "threats"},
    "learning": {"core", "aggregation", "threats", "guarantees"},
    "runs": {"core", "aggregation", "threats", "guarantees", "learning"},
    "engines": {"core", "aggregation", "threats", "guarantees", "learning", "runs"},
    "papers": {"core", "learning", "runs"},
    "reports": {"core", "aggregation", "guarantees", "learning", "runs", "papers"},
    "experiments": {"runs", "papers"},
    "cli": {"core", "engines", "guarantees", "learning", "runs", "papers", "reports"},
}


def imports(path: Path) -> set[str]:
    """The rooms of ours that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are written in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        ours = {name.split(".")[1] for name in names if name.startswith("byzantium.")}
        found |= ours - {"__version__"}
    return found


def inner_imports(path: Path, room: str) -> list[str]:
    """The files of other rooms that a file imports past their `__init__`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if node.module == "byzantium.core.doors":  # of which doors are made
                continue
            if parts[0] == "byzantium" and len(parts) > 2 and parts[1] != room:
                found.append(node.module)
    return found


def test_a_room_is_entered_through_its_door() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert inner_imports(path, path.relative_to(PACKAGE).parts[0]) == [], path


@pytest.mark.parametrize("room", [None, *ROOMS])
def test_every_name_at_a_door_leads_somewhere(room: str | None) -> None:
    """Names are loaded when they are used: a wrong one would be found out by its first user."""
    module = importlib.import_module("byzantium" if room is None else f"byzantium.{room}")
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    assert set(module.__all__) <= set(dir(module))


def test_the_package_offers_all_rules_mixings_and_attacks() -> None:
    offered = {
        name
        for room in (bz.aggregation, bz.threats)
        for name in room.__all__
        if inspect.isclass(member := getattr(room, name)) and issubclass(member, Formula)
    }
    assert offered <= set(bz.__all__)


def test_imports_point_one_way() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert rooms == set(ROOMS)
    for room, allowed in ROOMS.items():
        for path in (PACKAGE / room).rglob("*.py"):
            assert imports(path) <= allowed | {room}, path


def test_only_engines_know_of_torch_distributed() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "torch.distributed" in path.read_text():
            assert path.relative_to(PACKAGE).parts[0] == "engines", path


def test_files_fit_in_the_head() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


DOORS = {"aggregation/__init__.pyi", "__init__.pyi"}
# Of each kind one that is there, and the files in which it is named: where a new one goes.
PLACES: dict[str, tuple[str, set[str]]] = {
    "rule": ("SpectralFilter", {"aggregation/weightings.py", *DOORS}),
    "rule by coordinate": (
        "MeaMed",
        {"aggregation/coordinatewise.py", "guarantees/bounds.py", *DOORS},
    ),
    "mixing": ("AdaptiveClipping", {"aggregation/mixing.py", *DOORS}),
    "attack": ("MinSum", {"threats/attacks.py", "threats/__init__.pyi", "__init__.pyi"}),
    "data set": ("cifar10", {"learning/data.py"}),
    "metric": ("zeta2", {"learning/metrics.py", "learning/evaluation.py"}),
    "artifact": ("figure-b2", {"papers/bucketing.py"}),
    "option": ("local_rate", {"runs/run.py", "learning/settings.py", "learning/simulation.py"}),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_new_member_touches_what_contributing_says_and_no_more(kind: str) -> None:
    name, places = PLACES[kind]
    sources = (
        path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyi", ".js", ".html")
    )
    word = re.compile(rf"\b{name}\b")
    named = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources
        if word.search(path.read_text(encoding="utf-8"))
    }
    assert named == places
    told = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert all(f"`{place}`" in told for place in places)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("rule", "SpectralFilter"),
        ("mixing", "AdaptiveClipping"),
        ("attack", "MinSum"),
        ("partition", "by_user"),
        ("model", "convnet"),
        ("loss", "huber"),
    ],
)
def test_contributing_names_the_page_of_the_reference_that_lists_a_member(
    kind: str, name: str
) -> None:
    root = Path(__file__).parents[1]
    (page,) = (
        path.name
        for path in (root / "docs" / "reference").iterdir()
        if re.search(rf"^\.\. auto\w+:: \S+\.{name}$", path.read_text("utf-8"), re.MULTILINE)
    )
    beside = ""
    for row in (root / "CONTRIBUTING.md").read_text("utf-8").splitlines():
        if row.count(" | ") == 2:
            first, _, last = row.strip("| ").split(" | ")
            beside = beside if last == "the same" else last
            if first == kind:
                break
    assert f"`docs/reference/{page}`" in beside


HEAVY = {"torch", "numpy", "llvmlite", "matplotlib", "flwr", "ray", "sklearn", "pandas"}
HEAVY |= {"scipy", "byzfl", "plotly"}


def loaded_by(code: str, **environment: str) -> set[str]:
    """What is in sys.modules after some code, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('LOADED', *sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    return set(done.stdout.split("LOADED")[1].split())


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert loaded_by("import byzantium") & (HEAVY | {"rich", "click"}) == set()


CALLED = """
from byzantium.cli import main
try:
    main({arguments!r}, prog_name="byzantium")
except SystemExit as done:
    assert done.code == 0
"""
COMMANDS = ["", "run", "sweep", "demo", "list", "plan", "reproduce", "report", "data", "data fetch"]
COMMANDS += ["aggregate", "check", "certify"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_no_heavy_library(command: str) -> None:
    code = CALLED.format(arguments=[*command.split(), "--help"])
    assert loaded_by(code) & HEAVY == set()


@pytest.mark.parametrize("words", ["byzantium r", "byzantium run --ru", "byzantium data f"])
def test_completing_commands_and_options_loads_no_heavy_library(words: str) -> None:
    last = str(len(words.split()) - 1)
    how = {"_BYZANTIUM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": last}
    assert loaded_by(CALLED.format(arguments=[]), **how) & HEAVY == set()


def test_every_exported_name_exists_and_is_documented() -> None:
    for name in bz.__all__:
        member = getattr(bz, name)
        assert inspect.getdoc(member), name
        if dataclasses.is_dataclass(member) and issubclass(member, Formula):  # type: ignore[arg-type]
            assert ">>>" in str(inspect.getdoc(member)), f"{name} has no example"


def test_every_exported_formula_is_a_member_of_the_tests() -> None:
    formulas = {
        getattr(bz, name)
        for name in bz.__all__
        if dataclasses.is_dataclass(getattr(bz, name)) and issubclass(getattr(bz, name), Formula)
    }
    tested: set[type] = {type(rule.rule) for rule in members.RULES}
    tested |= {type(mix.mixing) for mix in members.MIXINGS}
    tested |= {type(attack) for attack in members.ATTACKS}
    assert formulas == tested


def test_nothing_is_evaluated_or_unpickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "compile", "__import__"}, path
                assert not called.startswith("pickle."), path
