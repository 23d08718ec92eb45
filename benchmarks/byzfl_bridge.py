"""Loads the aggregators of byzfl 0.0.11 as a contestant, without making it a dependency.

The package is installed into a folder of the bench, without its dependencies. Only the submodule
`byzfl.aggregators` is imported: its parent would import torchvision and seaborn. That submodule
needs scipy only for NumPy input, so an empty module replaces scipy where it is missing.
"""

import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

REQUIREMENT = "byzfl==0.0.11"


class ByzflMissingError(Exception):
    """byzfl could not be installed or imported; the message is one sentence."""


def load(folder: Path) -> ModuleType:
    """The module `byzfl.aggregators`, installed into `folder` on first use."""
    package = folder / "byzfl"
    if not (package / "aggregators").is_dir():
        _install(folder)
    parent = ModuleType("byzfl")
    parent.__path__ = [str(package)]
    sys.modules["byzfl"] = parent
    try:
        with _scipy_or_empty_module():
            return importlib.import_module("byzfl.aggregators")
    except ImportError as error:
        raise ByzflMissingError(f"byzfl is omitted: it does not import ({error}).") from error


def _install(folder: Path) -> None:
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise ByzflMissingError("byzfl is omitted: neither pip nor uv is installed.")
    command += ["--no-deps", "--target", str(folder), REQUIREMENT]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        raise ByzflMissingError(
            f"byzfl is omitted: {REQUIREMENT} could not be installed."
        ) from error


@contextmanager
def _scipy_or_empty_module() -> Iterator[None]:
    if importlib.util.find_spec("scipy"):
        yield
        return
    names = ("scipy", "scipy.spatial", "scipy.spatial.distance")
    modules = [ModuleType(name) for name in names]
    modules[0].spatial, modules[1].distance = modules[1], modules[2]  # type: ignore[attr-defined]
    sys.modules.update(zip(names, modules, strict=True))
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
