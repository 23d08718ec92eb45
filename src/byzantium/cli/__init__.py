"""The command line: one file for each command, which parses, calls and prints."""

import importlib
import pkgutil

from byzantium.cli.main import main

__all__ = ["main"]

for _file in pkgutil.iter_modules(__path__):  # each adds its command to `main`
    importlib.import_module(f"{__name__}.{_file.name}")
