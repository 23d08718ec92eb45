"""What is released: one version everywhere, for the Pythons that are tested, whole, no more."""

from __future__ import annotations

import email
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from paths import ROOT

import byzantium as bz

WORKFLOWS = ROOT / ".github" / "workflows"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def found(pattern: str, path: str) -> list[str]:
    return re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_version_is_the_same_everywhere() -> None:
    assert found(r"^version: (.+)$", "CITATION.cff") == [bz.__version__]
    assert found(r"^## (\d\S+)", "CHANGELOG.md")[0] == bz.__version__


def test_workflows_test_the_pythons_that_the_project_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}"
    for workflow in ("ci", "release"):
        (tested,) = found(r"python: (\[.+\])$", f".github/workflows/{workflow}.yml")
        assert json.loads(tested) == named


def test_workflows_run_what_must_pass_here() -> None:
    assert found(r"- run: .*?(\S+)$", ".github/workflows/ci.yml") == [".ci/run"]
    assert "./.github/workflows/ci.yml" in found(r"uses: (\S+)", ".github/workflows/release.yml")


def test_the_slow_tests_run_every_night() -> None:
    nightly = ".github/workflows/nightly.yml"
    assert found(r"- cron: \"\d+ \d+ (.+)\"$", nightly) == ["* * *"]
    assert found(r"- run: .*?(make \S+)$", nightly) == ["make test-slow"]
    (command,) = found(r"^test-slow:.*\n\t(.+)$", "Makefile")
    assert "-m slow" in command


def test_actions_of_others_are_pinned_to_a_commit() -> None:
    """A tag may be moved to other code; what is next to it says which version it is."""
    for path in WORKFLOWS.iterdir():
        for action in re.findall(r"uses: (?!\./)(.+)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w/.-]+@[0-9a-f]{40} # v[\d.]+", action), action


def test_with_an_address_links_and_urls_name_it(tmp_path: Path) -> None:
    """In a copy whose address is given, as it will be once there is one."""
    for name in ("README.md", "hatch_build.py", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    package = Path("src", "byzantium")
    shutil.copytree(ROOT / package / "reports" / "page", tmp_path / package / "reports" / "page")
    shutil.copy(ROOT / package / "__init__.py", tmp_path / package)
    address = "https://github.com/somebody/byzantium"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text, given = re.subn(r'^address = ".*?"', f'address = "{address}"', text, flags=re.MULTILINE)
    assert given == 1
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    built = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*built, str(tmp_path)], check=True)
    name = f"byzantium-{bz.__version__}"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl") as wheel:
        metadata = email.message_from_bytes(wheel.read(f"{name}.dist-info/METADATA"))
    assert f"Repository, {address}" in metadata.get_all("Project-URL", [])
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))
    assert f"{address}/raw/v{bz.__version__}/docs/report.png" in links
    assert f"{address}/blob/v{bz.__version__}/docs/start.md" in links
    assert all(link.startswith("https://") for link in links)


def test_the_wheel_holds_the_package_and_the_sdist_its_tests_and_docs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT], check=True
    )
    name = f"byzantium-{bz.__version__}"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl") as wheel:
        held = set(wheel.namelist())
        metadata = email.message_from_bytes(wheel.read(f"{name}.dist-info/METADATA"))
    package = ROOT / "src" / "byzantium"
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {f for f in held if not f.startswith(f"{name}.dist-info/")} == {
        path.relative_to(package.parent).as_posix() for path in files
    }
    assert {f"byzantium/{f}" for f in ("py.typed", "data/digits.npz")} <= held
    licences = [f for f in held if f.startswith(f"{name}.dist-info/licenses/")]
    assert len(licences) == len(PROJECT["license-files"])
    assert metadata["Version"] == bz.__version__
    assert metadata["License-Expression"] == PROJECT["license"]
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    with tarfile.open(tmp_path / f"{name}.tar.gz") as source:
        kept = {member.partition("/")[2] for member in source.getnames()}
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False
    ).stdout.split()
    left_out = ("results/", ".ci/", ".github/")
    assert {name for name in listed if not name.startswith(left_out)} <= kept
    assert not [name for name in kept if name.startswith(left_out)]
    assert {"docs/index.md", "tests/test_release.py", "PKG-INFO", "src/byzantium/py.typed"} <= kept
