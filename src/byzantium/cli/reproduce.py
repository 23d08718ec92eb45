"""`reproduce`: tables and figures of the paper, beside its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from byzantium.cli import options as opt
from byzantium.cli.execution import check_unfinished, execute_jobs, print_gaps
from byzantium.cli.main import main
from byzantium.cli.report_files import check_libraries, write_report
from byzantium.cli.tables import print_header
from byzantium.cli.terminal import out
from byzantium.papers import MAKERS, Requests, artifact, compare
from byzantium.runs import Engine, Snapshot, Store
from byzantium.tables import Version


@main.command()
@click.argument(
    "names",
    metavar="ARTIFACT...",
    nargs=-1,
    required=True,
    shell_complete=opt.complete(lambda: MAKERS),
)
@opt.version_options
@opt.results_option
@opt.engine_options
@opt.until_option
@opt.data_option
def reproduce(
    names: tuple[str, ...], results: Path, engine: Engine, until: int | None, **options: Any
) -> None:
    """Make tables and figures of the paper, beside its numbers.

    An artifact is one of these tables or figures: `byzantium list artifacts`. Fewer seeds, fewer
    rounds or a smaller model make it cheaper; every result then says so.

    \b
    byzantium reproduce table2 table4 --seeds 1
    byzantium reproduce figure-main --model mlp --seeds 1 --jobs 2
    byzantium reproduce figure-main --released --only "krum alie 0.0 1" --seeds 1
    """  # noqa: D301
    from byzantium.reports import terminal

    store, version = Store(results), Version(**options)
    artifacts = [artifact(name, version) for name in names]
    todo = list(dict.fromkeys(job for each in artifacts for job in each.jobs))
    check_libraries(store, figures=True)
    before = store.results(todo)
    check_unfinished(before)
    for each in artifacts:
        Requests(store).add(each.name, each.version)
    snapshot = Snapshot(results, execute_jobs(todo, store, engine, until, before))
    for each in artifacts:
        print_header(each)
        drawn = terminal(compare(each, snapshot))
        drawn.title = None  # the header has it
        out.print(drawn)
    out.print(f"the page: {write_report(snapshot).page}", soft_wrap=True)
    print_gaps(todo)
