"""`watch`: the report of a folder of results in the browser, while jobs run."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from byzantium.cli.execution import interrupts
from byzantium.cli.main import main
from byzantium.cli.options import FilePath, plugin_option, results_argument
from byzantium.cli.report_files import read_tables
from byzantium.cli.terminal import err, out
from byzantium.runs import Snapshot, load

PORT = 8765


@main.command()
@results_argument
@click.option(
    "--sweep",
    type=FilePath(exists=True, dir_okay=False),
    help="The file of a sweep: the progress is that of its runs, also of those that have not "
    "begun.  [default: the progress of all that is in the folder]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port of the page; 0 takes any that is free.",
)
@plugin_option
def watch(results: Path, sweep: Path | None, port: int) -> None:
    """Show the report in the browser while jobs run.

    RESULTS is the folder of results, by default `results`. The page is that of `byzantium report`,
    with the progress of the jobs; tables and curves grow as evaluations are written. It is served
    on 127.0.0.1, so that no other machine reaches it, until Ctrl-C. Nothing is written.

    \b
    byzantium sweep mine.toml --out mine &
    byzantium watch mine --sweep mine.toml
    """  # noqa: D301
    from byzantium.reports import live

    def read(store: Snapshot) -> live.Tables:
        tables = read_tables(store)
        return tables.artifacts, tables.all

    jobs = load(sweep) if sweep else ()
    report = live.LiveReport(Snapshot(results), read, jobs)
    stopped = threading.Event()
    try:
        with interrupts(stopped.set), live.served(report, port) as address:
            out.print(f"the page: {address} (Ctrl-C ends it)", soft_wrap=True)
            stopped.wait()
    except OSError as error:
        raise click.ClickException(
            f"port {port} cannot be used ({error.strerror}); choose another with --port, "
            "or 0 for any that is free"
        ) from error
    err.print("Stopped; jobs that run go on.")
