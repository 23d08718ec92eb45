"""The errors of Byzantium: one sentence each, with what is wrong and, if possible, what to do."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType


class ByzantiumError(ValueError):
    """Something that was given to Byzantium cannot be used: a parameter, a size, a text or a file.

    Every error that Byzantium raises by itself is of this class, and so a `ValueError`. Its message
    is one sentence that names the parameter, the bound and the value.

    >>> from byzantium import Krum
    >>> Krum(f=-1)
    Traceback (most recent call last):
    byzantium.ByzantiumError: Krum needs f >= 0, got f=-1
    """


class ArgumentTypeError(ByzantiumError, TypeError):
    """A value is of the wrong type, such as a text where a number belongs. Also a `TypeError`.

    >>> from byzantium import Krum
    >>> Krum(f="5")
    Traceback (most recent call last):
    byzantium.ArgumentTypeError: Krum needs a whole number for f, got f='5'
    """


class TooManyRejected(ByzantiumError):  # noqa: N818
    """More vectors of this call are unusable (NaN, infinite, too large) than the rule tolerates.

    Nothing is wrong with the pipeline: a call with other vectors may succeed.

    - `reasons`: a mapping from the row of each unusable vector to the reason, a text.

    >>> from byzantium import Krum, TooManyRejected
    >>> updates = torch.ones(6, 2)
    >>> updates[4:] = torch.nan
    >>> try:
    ...     Krum(f=1)(updates)
    ... except TooManyRejected as error:
    ...     error.reasons
    {4: 'not finite, or of norm above 1e+18', 5: 'not finite, or of norm above 1e+18'}
    """

    def __init__(self, sentence: str, reasons: Mapping[int, str]) -> None:
        super().__init__(sentence)
        self.reasons = dict(reasons)

    def __reduce__(self) -> tuple[type, tuple[str, dict[int, str]]]:
        return type(self), (str(self), self.reasons)


class MissingLibraryError(ByzantiumError, ImportError):
    """An optional library is not installed. Also an `ImportError`; the message says how to get it.

    >>> from byzantium.core import import_optional
    >>> import_optional("no_such_library", "report", "a figure")  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
    byzantium.MissingLibraryError: a figure needs no_such_library: pip install '.[report]' in the
    folder of Byzantium's source
    """


def type_name(value: object) -> str:
    """What messages call the type of a value; a class is named itself.

    >>> type_name([1]), type_name(1), type_name(int)
    ('a list', 'an int', 'the class int')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return named(type(value).__name__)


def named(kind: str) -> str:
    """The name of a type with its article.

    >>> named("Krum"), named("Attack")
    ('a Krum', 'an Attack')
    """
    return f"{'an' if kind[0] in 'aeioAEIO' else 'a'} {kind}"


def import_optional(library: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional library; where it is missing, raise an error that says how to get it.

    - `extra`: the extra of Byzantium that installs it, as in `pip install '.[extra]'`.
    - `purpose`: what needs it; the message begins with it.

    >>> import_optional("json", "report", "a figure").dumps([1])
    '[1]'
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        name = library.partition(".")[0]
        raise MissingLibraryError(
            f"{purpose} needs {name}: pip install '.[{extra}]' in the folder of Byzantium's source"
        ) from error


# Tracebacks name them as they are imported.
for _error in (ByzantiumError, ArgumentTypeError, MissingLibraryError, TooManyRejected):
    _error.__module__ = "byzantium"
