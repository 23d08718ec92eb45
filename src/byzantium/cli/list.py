"""`list`: the names of rules, attacks, data sets and so on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click
from rich.table import Table

import byzantium as bz
from byzantium.cli.main import main
from byzantium.cli.options import members, plugin_option
from byzantium.cli.terminal import out
from byzantium.core import Registry
from byzantium.core.texts import first_sentence
from byzantium.papers import MAKERS
from byzantium.runs import plugins

# The registries whose members are written with parentheses, and the arguments of functions in them
# that the user does not write.
CALLED = ("rule", "attack", "worker", "partition", "model", "loss", "clock", "topology")
FILLED_IN = ("data", "outputs", "targets", "n", "beta", "heavy_ball")
PARTS = {"attacks": "attack", "workers": "worker", "data": "data", "partitions": "partition"}
PARTS |= {"models": "model", "losses": "loss", "clocks": "clock", "topologies": "topology"}
PARTS |= {"metrics": "record"}
LISTED = ["artifacts", "rules", *PARTS]


@main.command(name="list")
@click.argument("what", type=click.Choice(LISTED), required=False)
@plugin_option
def list_(what: str | None) -> None:
    """List rules, attacks, data sets and everything else that has a name.

    Without an argument, all of it. An artifact is a table or figure of the paper, which `byzantium
    reproduce` makes; the others are values of options of `byzantium run`.

    \b
    byzantium list rules
    """  # noqa: D301
    mixings = "mixings, which come before a rule: Bucketing(s=2) >> Krum(f=5)"
    tables = {
        "artifacts": {"artifacts": [(name, MAKERS[name]().title) for name in MAKERS]},
        "rules": {
            "rules": _rows("rule", _named(bz.Aggregator)),
            mixings: _rows("rule", _named(bz.Mixing)),
            "systems of related work, to compare with": _rows("rule", _named(bz.Stage, True)),
        },
        **{title: {title: _rows(part)} for title, part in PARTS.items()},
    }
    for name, parts in tables.items():
        if what in (None, name):
            for title, rows in parts.items():
                table = Table("name", "", title=title, title_justify="left", show_header=False)
                for row in rows:
                    table.add_row(*row)
                out.print(table)


def _named(base: type, related: bool = False) -> list[str]:
    """The rules or mixings that derive from a base: those of related work, or the others."""
    table = plugins.tables()["rule"]
    here = bz.related.__name__
    return [n for n in members("rule", base) if table[n].__module__.startswith(here) == related]


def _rows(part: str, names: list[str] | None = None) -> list[tuple[str, str]]:
    """The members of a registry: name, parameters and aliases; a description and the plugin."""
    if part == "topology":
        from byzantium.learning.topology import TOPOLOGIES  # help does without numpy

        table: Registry[Any] = TOPOLOGIES
    else:
        table = plugins.tables()[part]
    rows = []
    for name in names or table:
        aliases = [alias for alias, full in table.aliases.items() if full == name]
        member: Any = table[name]
        text = member.title if part == "record" else first_sentence(member)
        if part == "record" and member.record not in (None, name):
            text += f" (--record {member.record})"
        plugin = f" ({table.plugins[name].name})" if name in table.plugins else ""
        shown = name + (_parameters(table[name]) if part in CALLED else "")
        rows.append((", ".join([shown, *aliases]), text + plugin))
    return rows


def _parameters(member: Callable[..., object]) -> str:
    """The parameters that a user may write, in parentheses, with their defaults."""
    shown = []
    for name, parameter in inspect.signature(member).parameters.items():
        default = parameter.default
        if name in FILLED_IN:
            continue
        text = f'"{default}"' if isinstance(default, str) else repr(default)
        shown.append(name if default is inspect.Parameter.empty else f"{name}={text}")
    return f"({', '.join(shown)})"
