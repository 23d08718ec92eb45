"""`check`: the guarantee of a rule."""

from __future__ import annotations

import click

import byzantium as bz
from byzantium import guarantees
from byzantium.cli.execution import FAILED
from byzantium.cli.main import main
from byzantium.cli.options import complete, members, plugin_option
from byzantium.cli.terminal import out


@main.command()
@click.argument(
    "rule",
    shell_complete=complete(lambda: [f"{name}()" for name in members("rule", bz.Aggregator)]),
)
@plugin_option
@click.option(
    "--n",
    type=click.IntRange(min=1),
    required=True,
    help="How many vectors there are, Byzantine ones included.",
)
@click.option(
    "--f",
    type=click.IntRange(min=0),
    required=True,
    help="How many of them may be Byzantine: too few is fatal, one too many costs little.",
)
def check(rule: str, n: int, f: int) -> None:
    """Say what a rule guarantees for n vectors of which f are Byzantine.

    RULE is a rule, with mixings before it if wanted; one that is written without f takes that of
    --f. Exit codes: 0 a theorem covers it, 1 no theorem does, 2 impossible: the rule is not defined
    for so many vectors, or half of them or more are Byzantine.

    \b
    byzantium check "Bucketing(s=2) >> Krum()" --n 25 --f 5
    """  # noqa: D301
    promise = guarantees.guarantee(bz.parse_rule(rule, f=f), n, f)
    out.print(str(promise), soft_wrap=True, highlight=False)
    if not promise.covered:
        raise SystemExit(FAILED)
