"""The packages, which of them may import which, and what they export."""

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
from paths import ROOT

import byzantium as bz
from byzantium.core import Formula

PACKAGE = Path(bz.__file__).parent
# The packages in the order of imports: each may import those before it.
ORDER = ["core", "_kernels", "vectors", "rules", "attacks", "guarantees", "data", "learning"]
ORDER += ["related", "runs", "tables", "papers", "reports", "cli"]
# Engines import `runs` and what lies before it; the command line imports engines.
MAY_IMPORT = {package: set(ORDER[:place]) for place, package in enumerate(ORDER)}
MAY_IMPORT["engines"] = {*MAY_IMPORT["runs"], "runs"}
MAY_IMPORT["cli"] |= {"engines"}


def sources() -> list[Path]:
    return [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".pyi")]


def imports(path: Path) -> set[str]:
    """The modules of ours that a file imports, at any depth, in full."""
    found = set()
    package = ("byzantium", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                assert path.suffix == ".pyi", f"{path}: imports are written in full"
                module = ".".join([*package, *module.split(".")]).rstrip(".")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("byzantium.")}


def packages_of(path: Path) -> set[str]:
    """The packages of ours that a file imports."""
    return {name.split(".")[1] for name in imports(path)} - {"__version__"}


def test_imports_point_one_way() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert folders == set(MAY_IMPORT)
    for path in sources():
        package = path.relative_to(PACKAGE).parts[0]
        if package in MAY_IMPORT:
            assert packages_of(path) <= MAY_IMPORT[package] | {package}, path


def test_a_package_imports_its_own_files_and_not_its_exports() -> None:
    """Exports are for others: inside, they would hide which file needs which."""
    for path in sources():
        folder = path.parent
        if path.suffix == ".pyi" or folder == PACKAGE:
            continue
        stub = folder / "__init__.pyi"
        own = "byzantium." + ".".join(folder.relative_to(PACKAGE).parts)
        exported = {name.rpartition(".")[2] for name in imports(stub)} if stub.exists() else set()
        modules = {inner.stem for inner in folder.iterdir()}
        through = {f"{own}.{name}" for name in exported - modules}
        assert imports(path) & through == set(), path


def test_private_packages_serve_the_library_alone() -> None:
    for path in sources():
        if path.suffix == ".pyi":
            assert not any("._" in name for name in imports(path)), path


@pytest.mark.parametrize("package", [None, *sorted(MAY_IMPORT)])
def test_every_exported_name_leads_somewhere(package: str | None) -> None:
    """Names are loaded when they are used: a wrong one would be found out by its first user."""
    module = importlib.import_module("byzantium" if package is None else f"byzantium.{package}")
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None, name
    assert set(getattr(module, "__all__", ())) <= set(dir(module))


def test_the_package_exports_all_rules_mixings_and_attacks() -> None:
    formulas = {
        name
        for package in (bz.rules, bz.attacks)
        for name in dir(package)
        if inspect.isclass(member := getattr(package, name)) and issubclass(member, Formula)
    }
    assert formulas <= set(bz.__all__)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aggregation.Krum", "rules.Krum"),
        ("aggregation.as_source", "vectors.as_source"),
        ("threats.Mimic", "attacks.Mimic"),
        ("experiments.Run", "runs.Run"),
        ("experiments.artifact", "papers.artifact"),
        ("experiments.Comparison", "tables.ResultTable"),
        ("papers.Version", "tables.Version"),
        ("papers.Compared", "tables.MeasuredCell"),
        ("reports.pivots", "tables.pivots"),
        ("runs.attempt", "runs.perform_with_events"),
        ("learning.by_label", "data.by_label"),
        ("learning.load", "data.load"),
    ],
)
def test_former_names_lead_to_the_new_ones_with_a_warning(old: str, new: str) -> None:
    package, _, name = old.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"byzantium\.{old} is now byzantium\.{new}$"):
        found = getattr(importlib.import_module(f"byzantium.{package}"), name)
    place, _, name = new.rpartition(".")
    assert found is getattr(importlib.import_module(f"byzantium.{place}"), name)


def test_former_packages_are_attributes_still() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now byzantium\.attacks"):
        assert importlib.import_module("byzantium").threats.BitFlip is bz.BitFlip
    with pytest.raises(AttributeError, match=r"'byzantium\.aggregation' has no attribute 'Krun'"):
        importlib.import_module("byzantium.aggregation").Krun  # noqa: B018


def test_only_engines_know_of_torch_distributed() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "torch.distributed" in path.read_text():
            assert path.relative_to(PACKAGE).parts[0] == "engines", path


def test_files_fit_in_the_head() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 450, path


# Of each kind one that is there, and the files in which it is named: where a new one goes.
PLACES: dict[str, tuple[str, set[str]]] = {
    "rule": ("SpectralFilter", {"rules/weighting.py", "rules/__init__.pyi"}),
    "rule by coordinate": (
        "MeaMed",
        {"rules/coordinatewise.py", "rules/__init__.pyi", "guarantees/bounds.py"},
    ),
    "mixing": ("AdaptiveClipping", {"rules/mixing.py", "rules/__init__.pyi"}),
    "attack": ("MinSum", {"attacks/stateless.py", "attacks/__init__.pyi"}),
    "worker method": ("Marina", {"related/variance.py", "related/__init__.pyi"}),
    "data set": ("cifar10", {"data/datasets.py"}),
    "metric": ("zeta2", {"learning/metrics.py", "learning/evaluation.py"}),
    "artifact": ("figure-b2", {"papers/bucketing.py"}),
    "option": (
        "local_rate",
        {"learning/settings.py", "learning/loop.py", "learning/simulation.py"},
    ),
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
    compared = {"papers/benchmarks.py", "guarantees/recommendation.py", "reports/demo.py"}
    assert named - compared == places
    told = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
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
        ("worker method", "SAGA"),
    ],
)
def test_contributing_names_the_page_of_the_reference_that_lists_a_member(
    kind: str, name: str
) -> None:
    root = ROOT
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


@pytest.mark.parametrize(
    "page",
    ["CONTRIBUTING.md", "docs/architecture.md", "docs/contracts.md", "docs/numerics.md"],
)
def test_files_that_the_documentation_names_exist(page: str) -> None:
    root = ROOT
    text = (root / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.]+/[\w./]+\.(?:pyi?|md|yml))`", text))
    assert named
    assert {
        name for name in named if not any((at / name).exists() for at in (root, PACKAGE))
    } == set()


HEAVY = {"torch", "numpy", "llvmlite", "matplotlib", "flwr", "nvflare", "ray", "sklearn", "pandas"}
HEAVY |= {"mlflow", "wandb", "tensorboard"}
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
COMMANDS += ["aggregate", "check", "certify", "recommend", "track"]


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
        one
        for package in (bz, bz.related)
        for name in package.__all__
        if isinstance(one := getattr(package, name), type)
        and issubclass(one, Formula)
        and dataclasses.is_dataclass(one)
    }
    tested: set[type] = {type(rule.rule) for rule in members.RULES}
    tested |= {type(one.rule) for one in members.ROOT_RULES}
    tested |= {type(one.rule) for one in (members.BLOCKS, members.TRIALS)}
    tested |= {type(mix.mixing) for mix in [*members.MIXINGS, members.VOTE]}
    tested |= {type(attack) for attack in members.ATTACKS}
    tested |= {type(worker) for worker in members.WORKERS} - {bz.learning.Momentum}
    assert formulas == tested


def test_nothing_is_evaluated_or_unpickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"eval", "exec", "compile", "__import__"}, path
                assert not called.startswith("pickle."), path
