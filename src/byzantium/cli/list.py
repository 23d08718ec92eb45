"""`list`: the names of rules, attacks, data sets and so on."""

from __future__ import annotations

import inspect
import re

import click
from rich.table import Table

import byzantium as bz
from byzantium.cli.main import main
from byzantium.cli.options import members, plugin_option
from byzantium.cli.terminal import out
from byzantium.learning import Metric
from byzantium.papers import MAKERS
from byzantium.runs import plugins

LISTED = ["artifacts", "rules", "attacks", "data", "partitions", "models", "losses", "metrics"]


@main.command(name="list")
@click.argument("what", type=click.Choice(LISTED), required=False)
@plugin_option
def list_(what: str | None) -> None:
    """List rules, attacks, data sets and all else that has a name.

    Without an argument, all of it. An artifact is a table or figure of the paper, which `byzantium
    reproduce` makes; the others are values of options of `byzantium run`.

    \b
    byzantium list rules
    """  # noqa: D301
    both = members("rule", bz.Mixing) + members("rule", bz.Aggregator)
    tables = {
        "artifacts": [(name, MAKERS[name]().title) for name in MAKERS],
        "rules": _rows("rule", both),
        "attacks": _rows("attack"),
        "data": _rows("data"),
        "partitions": _rows("partition"),
        "models": _rows("model"),
        "losses": _rows("loss"),
        "metrics": _rows("record"),
    }
    for title, rows in tables.items():
        if what in (None, title):
            table = Table("name", "", title=title, title_justify="left", show_header=False)
            for row in rows:
                table.add_row(*row)
            out.print(table)


def _rows(part: str, names: list[str] | None = None) -> list[tuple[str, str]]:
    """The names of members of a registry, with aliases, a description, and the plugin."""
    table = plugins.tables()[part]
    rows = []
    for name in names or table:
        aliases = [alias for alias, full in table.aliases.items() if full == name]
        text = _metric_text(table[name]) if part == "record" else _first_sentence(table[name])
        plugin = f" ({table.plugins[name].name})" if name in table.plugins else ""
        rows.append((", ".join([name, *aliases]), text + plugin))
    return rows


def _metric_text(metric: Metric) -> str:
    """The title of a metric, and the option that records it if it has another name."""
    option = f" (--record {metric.record})" if metric.record not in (None, metric.name) else ""
    return metric.title + option


def _first_sentence(member: object) -> str:
    text = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
    return re.sub(r",? :math:`[^`]*`", "", text)  # formulas are not for terminals
