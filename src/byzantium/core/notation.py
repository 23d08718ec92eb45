"""Texts to objects: reads `Name(argument=value)`. Only listed names work; nothing is evaluated."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from byzantium.core.errors import ArgumentTypeError, ByzantiumError, type_name
from byzantium.core.fields import validated_arguments
from byzantium.core.formula import Formula
from byzantium.core.registry import Registry

# Longer than any pipeline, and short enough that parsing never takes noticeable time.
LONGEST = 2000
# The forms that a text can have, as error messages show them.
PIPELINE, SINGLE = "Mixing(name=value) >> Rule(name=value)", "name(argument=value)"

Makers = Mapping[str, Callable[..., Any]]


def read(
    text: str,
    makers: Makers,
    defaults: Mapping[str, Any] | None = None,
    form: str = SINGLE,
    longest: int = LONGEST,
) -> Any:
    """Build the object that `Name(argument=value, ...)` describes; in a pipeline several with `>>`.

    - `makers`: classes and functions by name, or by an alias of the table. Nothing else is ever
      called.
    - `defaults`: values for arguments that are needed and that the text leaves out.
    - `form`: `SINGLE`, or `PIPELINE` where `>>` is allowed.
    - `longest`: how many characters the text may have.

    Whatever is wrong with the text, the error is a `ByzantiumError`.

    >>> read("pair(1, b=2)", {"pair": lambda a, b: (a, b)})
    (1, 2)
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(f"a text of the form {form!r} is needed, got {type_name(text)}")
    if len(text) > longest:
        raise ByzantiumError(
            f"{text[:40]!r}... is {len(text)} characters long, more than the {longest} allowed"
        )
    if ">>" in text and form != PIPELINE:
        raise ByzantiumError(f"{text!r} is not of the form {form!r}")
    try:
        tree = _tree(text)
        spellings = {written: makers[full] for written, full in _full_names(makers).items()}
        return _build(tree, text, spellings, defaults or {})
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ByzantiumError(f"{text!r} is not of the form {form!r}") from error
    except TypeError as error:  # a value of the wrong type, or stages in the wrong order
        raise ByzantiumError(str(error)) from error


def name(text: str) -> str | None:
    """The name in `Name(argument=value)`; None if the text does not have that form.

    >>> name("Krum(f=5)"), name("Bucketing(s=2) >> Krum(f=5)")
    ('Krum', None)
    """
    try:
        match _tree(text):
            case ast.Call(func=ast.Name(id=identifier)) | ast.Name(id=identifier):
                return identifier
    except (SyntaxError, RecursionError, MemoryError):
        pass
    return None


def names(text: str) -> set[str]:
    """All names in a text of our notation, without those of arguments; empty if it is not valid.

    >>> sorted(names("Bucketing(s=2) >> Krum(f=5)"))
    ['Bucketing', 'Krum']
    """
    try:
        return {node.id for node in ast.walk(_tree(text)) if isinstance(node, ast.Name)}
    except (SyntaxError, RecursionError, MemoryError):
        return set()


def with_parentheses(text: str) -> str:
    """The text with parentheses: `Median` is short for `Median()`."""
    return f"{text.strip()}()" if text.strip().isidentifier() else text


def written_out(text: str, registry: Registry[Any]) -> str:
    """The text with the names of members in place of aliases; it need not be valid.

    >>> written_out("Bucketing(s=2) >> RFA()", Registry("rule", {}, {"RFA": "GeometricMedian"}))
    'Bucketing(s=2) >> GeometricMedian()'
    """
    return re.sub(r"\w+(?=\s*\()", lambda match: registry.full_name(match[0]), text)


def spelled(
    text: str, makers: Makers, leading: int = 0, longest: int = LONGEST
) -> tuple[str, Callable[..., Any]]:
    """The standard spelling of `name(argument=value)`, and the function with these arguments.

    - `leading`: how many of the first parameters of these functions the caller fills in, so that
      they cannot be written in the text.
    - `longest`: how many characters the text may have.

    Arguments that have their default value are not spelled out.
    """

    def note(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def noted(**arguments: Any) -> tuple[str, dict[str, Any]]:
            return name, validated_arguments(make, arguments)

        signature = inspect.signature(make)
        written = list(signature.parameters.values())[leading:]
        noted.__signature__ = signature.replace(parameters=written)  # type: ignore[attr-defined]
        return noted

    noting = {written: note(full, makers[full]) for written, full in _full_names(makers).items()}
    name, arguments = read(with_parentheses(text), noting, longest=longest)
    defaults = inspect.signature(makers[name]).parameters
    changed = {k: v for k, v in arguments.items() if v != defaults[k].default}
    listed = ", ".join(f"{argument}={value!r}" for argument, value in changed.items())
    return f"{name}({listed})" if listed else name, functools.partial(makers[name], **arguments)


def _full_names(makers: Makers) -> dict[str, str]:
    """For each name that a text may have, that of the member: the same, unless it is an alias."""
    aliases = makers.aliases if isinstance(makers, Registry) else {}
    return {**{name: name for name in makers}, **aliases}


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except ValueError as error:  # null bytes, and lone surrogates
        raise SyntaxError(str(error)) from error


def _build(node: ast.expr, text: str, makers: Makers, defaults: Mapping[str, Any]) -> Any:
    match node:
        case ast.BinOp(left=left, op=ast.RShift(), right=right):
            parts = [_build(part, text, makers, defaults) for part in (left, right)]
            return parts[0] >> parts[1]
        case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords):
            if name not in makers:
                missing = f"which does not exist{hint(name, makers)}"
                raise ByzantiumError(f"{text!r} names {name!r}, {missing}")
            parameters, gives = list(_parameters(makers[name])), f"{text!r} gives {name}"
            if len(positional) > len(parameters):
                most = f"but it takes at most {len(parameters)}"
                raise ByzantiumError(f"{gives} {len(positional)} values, {most}")
            arguments = {
                parameter: _argument(value, text, makers, defaults)
                for parameter, value in zip(parameters, positional, strict=False)
            }
            for keyword in keywords:
                argument = f"{gives} the argument {keyword.arg!r}"
                if keyword.arg not in parameters:
                    nearest = hint(str(keyword.arg), parameters)
                    raise ByzantiumError(f"{argument}, which it does not have{nearest}")
                if keyword.arg in arguments:
                    raise ByzantiumError(f"{argument} twice")
                arguments[keyword.arg] = _argument(keyword.value, text, makers, defaults)
            for parameter in _needed(makers[name], arguments):
                if parameter not in defaults:
                    raise ByzantiumError(
                        f"{text!r} lacks the argument {parameter!r}, which {name} needs"
                    )
                arguments[parameter] = defaults[parameter]
            return makers[name](**arguments)
    raise ByzantiumError(
        f"{text!r} has {ast.unparse(node)!r} where 'Name(argument=value)' is expected"
    )


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function that can be written by name."""
    found = inspect.signature(make).parameters
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: one for name, one in found.items() if one.kind not in several}


def _needed(make: Callable[..., Any], arguments: Mapping[str, Any]) -> list[str]:
    """The parameters without a default, and those of `Formula.also_required`."""
    parameters = _parameters(make).values()
    needed = [one.name for one in parameters if one.default is one.empty]
    if inspect.isclass(make) and issubclass(make, Formula):
        needed += make.also_required(arguments)
    return [name for name in needed if name not in arguments]


def _argument(node: ast.expr, text: str, makers: Makers, defaults: Mapping[str, Any]) -> Any:
    match node:
        case ast.Call(func=ast.Name()) | ast.BinOp(op=ast.RShift()):
            return _build(node, text, makers, defaults)
        case ast.Tuple(elts=items):
            return tuple(_argument(item, text, makers, defaults) for item in items)
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _argument(operand, text, makers, defaults)
            if isinstance(value, (int, float)):
                return -value
    raise ByzantiumError(f"{text!r} has {ast.unparse(node)!r} where a number or a word is expected")


def hint(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known one, or all of them."""
    listed = list(names)
    close = get_close_matches(name, listed, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(listed))}"
