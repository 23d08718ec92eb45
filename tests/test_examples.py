"""The short examples print what is kept beside them; the pictures are made by scripts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT

EXAMPLES = ("camps", "training_loop", "simulation", "state_dicts", "your_own")


def printed(*command: str) -> str:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_is_kept_beside_it(name: str) -> None:
    kept = ROOT / "examples" / "output" / f"{name}.txt"
    assert printed(f"examples/{name}.py") == kept.read_text()


def test_what_is_kept_is_of_these_examples() -> None:
    assert {path.stem for path in (ROOT / "examples" / "output").iterdir()} == set(EXAMPLES)


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # where dataclasses look annotations up
    spec.loader.exec_module(module)
    return module


def test_a_picture_is_drawn_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = script("pictures", monkeypatch)
    for folder in ("once", "twice"):
        pictures.write(["camps"], tmp_path / folder)
    once, twice = ((tmp_path / folder / "camps.svg").read_bytes() for folder in ("once", "twice"))
    assert once == twice
    assert "mean +0.04, Krum +1.00" in capsys.readouterr().out


def test_every_picture_is_made_by_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright")
    drawn = {f"pictures/{name}.svg" for name in script("pictures", monkeypatch).PICTURES}
    drawn |= {"pictures/architecture.svg", "pictures/convergence.svg"}
    made = drawn | script("screenshots", monkeypatch).ALTS.keys()
    docs = ROOT / "docs"
    kept = {path.relative_to(docs).as_posix() for path in (docs / "pictures").iterdir()}
    assert made == kept | {"report.png"}


def test_the_picture_of_the_packages_is_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    picture = script("architecture_picture", monkeypatch)
    message = "run python scripts/architecture_picture.py"
    assert picture.PICTURE.read_text(encoding="utf-8") == picture.draw(), message


def test_the_picture_of_the_packages_lacks_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    picture = script("architecture_picture", monkeypatch)
    for name in ("rules", "brand_new"):
        folder = tmp_path / "src" / "byzantium" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    monkeypatch.setattr(picture, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="the picture lacks brand_new"):
        picture.draw()
