"""Text to objects: `Name(argument=value)`. Read by a whitelist; nothing is ever evaluated."""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from byzantium.core.errors import ByzantiumError, KindError
from byzantium.core.fields import fitted_arguments
from byzantium.core.formula import Formula

# Longer than any pipeline, and short enough for any text to be read at once.
LONGEST = 2000
# What a text can look like.
PIPELINE, SINGLE = "Mixing(name=value) >> Rule(name=value)", "name(argument=value)"

Known = Mapping[str, Callable[..., Any]]


def read(
    text: str,
    known: Known,
    known_arguments: Mapping[str, Any] | None = None,
    form: str = SINGLE,
) -> Any:
    """Build `Name(argument=value, ...)` from what is known; of a pipeline several, joined by `>>`.

    An argument that is needed and that the text leaves out may be found among the known ones. A
    text that says something wrong is a ValueError, whatever is wrong with it.
    """
    if not isinstance(text, str):
        raise KindError(f"{form!r} is written as text, got a {type(text).__name__}")
    if len(text) > LONGEST:
        raise ByzantiumError(
            f"{text[:40]!r}... is {len(text)} characters long, more than {LONGEST}"
        )
    if ">>" in text and form != PIPELINE:
        raise ByzantiumError(f"{text!r} is not of the form {form!r}")
    try:
        tree = _tree(text)
        return _build(tree, text, known, known_arguments or {})
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ByzantiumError(f"{text!r} is not of the form {form!r}") from error
    except TypeError as error:  # a value of the wrong kind, or steps in the wrong order
        raise ByzantiumError(str(error)) from error


def name(text: str) -> str | None:
    """The name in `Name(argument=value)`; None where the text is nothing of that form.

    >>> name("Krum(f=5)"), name("Bucketing(s=2) >> Krum(f=5)")
    ('Krum', None)
    """
    try:
        match _tree(text):
            case ast.Call(func=ast.Name(id=found)) | ast.Name(id=found):
                return found
    except (SyntaxError, RecursionError, MemoryError):
        pass
    return None


def names(text: str) -> set[str]:
    """All names in a text of our notation, those of arguments aside; empty if it is none.

    >>> sorted(names("Bucketing(s=2) >> Krum(f=5)"))
    ['Bucketing', 'Krum']
    """
    try:
        return {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)}
    except (SyntaxError, RecursionError, MemoryError):
        return set()


def called(text: str) -> str:
    """`Median` is short for `Median()`."""
    return f"{text.strip()}()" if text.strip().isidentifier() else text


def spelled(text: str, known: Known, given: int = 0) -> tuple[str, Callable[..., Any]]:
    """How `name(argument=value)` is written, and the function with these arguments.

    The first `given` parameters of the functions are not of the notation. A name without arguments
    stands for itself, and what has its default value is not written.
    """

    def note(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**arguments: Any) -> tuple[str, dict[str, Any]]:
            return name, fitted_arguments(make, arguments)

        signature = inspect.signature(make)
        written = list(signature.parameters.values())[given:]
        noted.__signature__ = signature.replace(parameters=written)  # type: ignore[attr-defined]
        return noted

    noting = {name: note(name, make) for name, make in known.items()}
    name, arguments = read(called(text), noting)
    defaults = inspect.signature(known[name]).parameters
    changed = {k: v for k, v in arguments.items() if v != defaults[k].default}
    listed = ", ".join(f"{argument}={value!r}" for argument, value in changed.items())
    return f"{name}({listed})" if listed else name, functools.partial(known[name], **arguments)


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except ValueError as error:  # null bytes, and halves of characters
        raise SyntaxError(str(error)) from error


def _build(node: ast.expr, text: str, known: Known, known_arguments: Mapping[str, Any]) -> Any:
    match node:
        case ast.BinOp(left=left, op=ast.RShift(), right=right):
            parts = [_build(part, text, known, known_arguments) for part in (left, right)]
            return parts[0] >> parts[1]
        case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords):
            if name not in known:
                raise ByzantiumError(
                    f"{text!r} names {name!r}, which does not exist{hint(name, known)}"
                )
            parameters = list(_parameters(known[name]))
            if len(positional) > len(parameters):
                raise ByzantiumError(
                    f"{text!r} gives {name} {len(positional)} values, it takes {len(parameters)}"
                )
            arguments = {
                parameter: _argument(value, text, known, known_arguments)
                for parameter, value in zip(parameters, positional, strict=False)
            }
            for keyword in keywords:
                if keyword.arg not in parameters:
                    nearest = hint(str(keyword.arg), parameters)
                    raise ByzantiumError(
                        f"{text!r} gives {name} the argument {keyword.arg!r}, "
                        f"which it does not have{nearest}"
                    )
                if keyword.arg in arguments:
                    raise ByzantiumError(
                        f"{text!r} gives {name} the argument {keyword.arg!r} twice"
                    )
                arguments[keyword.arg] = _argument(keyword.value, text, known, known_arguments)
            for parameter in _needed(known[name], arguments):
                if parameter not in known_arguments:
                    raise ByzantiumError(f"{text!r} lacks the argument {parameter!r} of {name}")
                arguments[parameter] = known_arguments[parameter]
            return known[name](**arguments)
    raise ByzantiumError(
        f"{text!r} has {ast.unparse(node)!r} where 'Name(argument=value)' is expected"
    )


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Those that can be written by their names."""
    found = inspect.signature(make).parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: one for name, one in found.items() if one.kind not in several}


def _needed(known: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """What must be given beside these arguments: what has no default, and what they make needed."""
    parameters = _parameters(known).values()
    needed = [one.name for one in parameters if one.default is one.empty]
    if inspect.isclass(known) and issubclass(known, Formula):
        needed += known.wanted(arguments)
    return [name for name in needed if name not in arguments]


def _argument(node: ast.expr, text: str, known: Known, known_arguments: Mapping[str, Any]) -> Any:
    match node:
        case ast.Call(func=ast.Name()):
            return _build(node, text, known, known_arguments)
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _argument(operand, text, known, known_arguments)
            if isinstance(value, (int, float)):
                return -value
    raise ByzantiumError(f"{text!r} has {ast.unparse(node)!r} where a number or a word is expected")


def hint(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known."""
    known = list(known)
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"
