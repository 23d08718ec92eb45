"""The rooms, who may look into whom, and what the package exports."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import members

import byzantium as bz
from byzantium.core.formula import Formula

PACKAGE = Path(bz.__file__).parent
# Each room may import itself and the rooms named here.
ROOMS: dict[str, set[str]] = {
    "core": set(),
    "aggregation": {"core"},
    "threats": {"core", "aggregation"},
    "learning": {"core", "aggregation", "threats"},
    "runs": {"core", "aggregation", "threats", "learning"},
    "papers": {"core", "runs"},
    "reports": {"core", "aggregation", "runs", "papers"},
    "experiments": {"runs", "papers"},
    "cli": {"core", "learning", "runs", "papers", "reports"},
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


def test_imports_point_one_way() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert rooms == set(ROOMS)
    for room, allowed in ROOMS.items():
        for path in (PACKAGE / room).rglob("*.py"):
            assert imports(path) <= allowed | {room}, path


def test_files_fit_in_the_head() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


def test_importing_the_package_pulls_no_heavy_library() -> None:
    code = (
        "import sys, byzantium; "
        "heavy = {'llvmlite', 'matplotlib', 'rich', 'flwr', 'ray', 'sklearn', 'pandas', "
        "'scipy', 'byzfl', 'plotly', 'click'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
