"""`check`: what a pipeline promises."""

from __future__ import annotations

import click

import byzantium as bz
from byzantium import guarantees
from byzantium.cli.main import main
from byzantium.cli.options import FAILED, complete, members, out, plugin_option


@main.command()
@click.argument(
    "rule",
    shell_complete=complete(lambda: [f"{name}()" for name in members("rule", bz.Aggregator)]),
)
@plugin_option
@click.option("--n", type=click.IntRange(min=1), required=True, help="How many vectors there are.")
@click.option(
    "--f",
    type=click.IntRange(min=0),
    required=True,
    help="How many may be bad. Rather one too many: too few is fatal, too many costs little.",
)
def check(rule: str, n: int, f: int) -> None:
    """What a rule, behind mixings if any, promises for n vectors of which f are bad.

    Written without its f, a rule has the f that is given. Exit codes: 0 covered, 1 not covered, 2
    impossible: the pipeline is not defined for so many, or half of them are bad.

    \b
    byzantium check "Bucketing(s=2) >> Krum()" --n 25 --f 5
    """  # noqa: D301
    promise = guarantees.guarantee(bz.parse_rule(rule, f=f), n, f)
    out.print(str(promise), soft_wrap=True, highlight=False)
    if not promise.covered:
        raise SystemExit(FAILED)
