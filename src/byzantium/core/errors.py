"""What can go wrong: each error is one sentence that says what, and where possible what to do."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType


class ByzantiumError(ValueError):
    """Something that was given to Byzantium cannot be: a parameter, a size, a text, a file.

    Every error of ours is one.
    """


class KindError(ByzantiumError, TypeError):
    """A value is of the wrong kind: a text where a number belongs."""


class TooManyRejected(ByzantiumError):  # noqa: N818
    """More vectors of this call are unusable than the pipeline can do without.

    Nothing is wrong with the pipeline: another call may succeed.

    reasons: for each unusable row, why.
    """

    def __init__(self, sentence: str, reasons: Mapping[int, str]) -> None:
        super().__init__(sentence)
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type, tuple[str, dict[int, str]]]:
        return type(self), (str(self), self.reasons)


class MissingLibraryError(ByzantiumError, ImportError):
    """A library that an extra of Byzantium brings is not installed."""


def needed(library: str, extra: str, purpose: str) -> ModuleType:
    """Import a library that an extra brings; where it is missing, say how to get it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        name = library.partition(".")[0]
        raise MissingLibraryError(
            f"{purpose} needs {name}: pip install 'byzantium[{extra}]'"
        ) from error


# Tracebacks name them as they are imported.
for _error in (ByzantiumError, KindError, MissingLibraryError, TooManyRejected):
    _error.__module__ = "byzantium"
