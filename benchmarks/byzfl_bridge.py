"""Brings the aggregators of byzfl 0.0.11 in as a contestant, without making it a dependency.

The package goes into a folder of the bench's own, without its dependencies. Only the submodule
`byzfl.aggregators` is imported: its parent would import torchvision and seaborn. That submodule
needs scipy for NumPy input alone, so an empty stand-in does where scipy is missing.
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
        with _scipy_or_stand_in():
            return importlib.import_module("byzfl.aggregators")
    except ImportError as error:
        raise ByzflMissingError(f"byzfl is left out: it does not import ({error}).") from error


def _install(folder: Path) -> None:
    if importlib.util.find_spec("pip"):
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise ByzflMissingError("byzfl is left out: neither pip nor uv is there to install it.")
    command += ["--no-deps", "--target", str(folder), REQUIREMENT]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        raise ByzflMissingError(
            f"byzfl is left out: {REQUIREMENT} could not be installed."
        ) from error


@contextmanager
def _scipy_or_stand_in() -> Iterator[None]:
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
