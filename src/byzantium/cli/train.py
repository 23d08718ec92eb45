"""`run`, `sweep`, `demo`, `list`."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import byzantium as bz
from byzantium.cli.main import main
from byzantium.cli.options import (
    MOST_JOBS,
    Place,
    carry_out,
    check,
    data_option,
    engine_options,
    members,
    out,
    plugin_option,
    results_option,
    run_options,
    tell_gaps,
    until_option,
)
from byzantium.cli.paper import check_libraries, tell, written
from byzantium.cli.tables import shape, table_options, tabulated, write_tables
from byzantium.core.options import present_names
from byzantium.learning import Metric
from byzantium.papers import MAKERS
from byzantium.reports import demo as demonstration
from byzantium.runs import Engine, Processes, Run, Store, load, plugins, read

LISTED = ["artifacts", "rules", "attacks", "data", "partitions", "models", "losses", "metrics"]


@main.command()
@click.option(
    "--config",
    type=Place(exists=True, dir_okay=False),
    help="A TOML or JSON file with these options by name, such as local_steps = 5; options on the "
    "command line override it.",
)
@results_option
@until_option
@data_option
@run_options
def run(config: Path | None, results: Path, until: int | None, **options: Any) -> None:
    """Train one model, once.

    The same command again goes on where it was stopped or, if it is done, shows the result.

    \b
    byzantium run --rule "Krum()" --attack "Mimic()"
    byzantium run --rule "Bucketing(s=2) >> Krum()" --attack "Mimic()" --momentum 0.9
    """  # noqa: D301
    given = {name: value for name, value in options.items() if value is not None}
    if "record" in given:
        given["record"] = [word for word in given["record"].split(",") if word]
    values = read(config) if config else {}
    values.pop("kind", None)
    job, store = Run.of({**present_names(Run, values), **given}), Store(results)
    already = store.results([job])[0].done
    check([job], store)
    (result,) = carry_out([job], store, Processes(1), until)
    said = f"done before: {result.ending}" if already else result.ending
    if result.accuracy is not None:
        said += f", accuracy {result.accuracy:.2f} % (mean of the last five evaluations)"
    elif result.measured is not None:
        said += f", test loss {result.measured:.4g} (mean of the last five evaluations)"
    if gap := job.gap():
        said += f"; no guarantee: {gap}"
    out.print(said, soft_wrap=True)
    out.print(f"in {result.pack or result.folder}", soft_wrap=True, highlight=False)


@main.command()
@click.argument("file", type=Place(exists=True, dir_okay=False))
@results_option
@engine_options
@until_option
@data_option
@plugin_option
@table_options
def sweep(file: Path, results: Path, engine: Engine, until: int | None, **options: Any) -> None:
    """Train all combinations of settings that a file lists.

    The file is TOML: what all runs share is under [fixed]; what differs is under [varies], where
    every setting has a list of values. The names are those of the options of `byzantium run`, with
    _ for -. It ends in tables (mean and standard deviation over seeds), figures and a page.

    \b
    [fixed]
    rounds = 300
    [varies]
    rule = ["Krum()", "Bucketing(s=2) >> Krum()"]
    attack = ["Mimic()", "InnerProduct()"]
    seed = [0, 1, 2]

    Above [fixed], plugin = ["my_rules.py"] loads Python files of your own; their code is run.

    \b
    byzantium sweep mine.toml --rows rule --columns attack --table mine.tex
    """  # noqa: D301
    store, runs, wanted = Store(results), load(file), shape(**options)
    wanted.tables(store.results(runs))  # a sentence, before anything is begun
    check(runs, store)
    write_tables(tabulated(runs, store, engine, wanted, until), wanted.files)
    tell(written(store, wanted))
    tell_gaps(runs)


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


@main.command()
@click.option(
    "--out",
    "results",
    type=Place(file_okay=False),
    default="demo",
    show_default=True,
    help="The folder of results.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="How many rounds each of the 40 runs has.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_JOBS),
    default=2,
    show_default=True,
    help="How many runs are trained at a time; they share the cores.",
)
def demo(results: Path, rounds: int, jobs: int) -> None:
    """See why robust rules alone are not enough, and what helps.

    25 workers train on handwritten digits, and 5 of them attack. The honest ones hold different
    digits. Five rules meet four attacks, alone and behind buckets of two, which average pairs of
    workers first. It takes less than a minute, and ends in a table and a page to look at.

    \b
    byzantium demo
    """  # noqa: D301
    store, runs = Store(results), demonstration.runs(rounds)
    check_libraries(store)
    carry_out(list(runs.values()), store, Processes(jobs))
    for part in demonstration.conclusion(runs, store):
        out.print(part)
    out.print(f"the page: {written(store, drawn=False).page}", soft_wrap=True)
    tell_gaps(runs.values())
