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
    """The members that a field of a run can name, and what each is; of a plugin's, also whose.

    Beside the name of a member stand its aliases.
    """
    table = plugins.tables()[part]
    rows = []
    for name in names or table:
        aliases = [alias for alias, full in table.aliases.items() if full == name]
        what = _measured(table[name]) if part == "record" else _first_sentence(table[name])
        whose = f" ({table.plugins[name].name})" if name in table.plugins else ""
        rows.append((", ".join([name, *aliases]), what + whose))
    return rows


def _measured(metric: Metric) -> str:
    """What a metric is, and where its name is not the word that asks for it, that word."""
    asked = f" (--record {metric.record})" if metric.record not in (None, metric.name) else ""
    return metric.title + asked


def _first_sentence(member: object) -> str:
    text = (inspect.getdoc(member) or "").split("\n\n")[0].replace("\n", " ")
    return re.sub(r",? :math:`[^`]*`", "", text)  # formulas are not for terminals
