"""`report`: a page, tables and figures from a folder of results."""

from __future__ import annotations

from pathlib import Path

import click

from byzantium.cli.main import main
from byzantium.cli.options import FilePath, results_argument
from byzantium.cli.report_files import check_libraries, print_paths, write_report
from byzantium.cli.tables import Shape, print_tables, table_options, write_tables
from byzantium.cli.terminal import out
from byzantium.runs import Snapshot


@main.command()
@results_argument
@click.option(
    "--markdown",
    type=FilePath(dir_okay=False),
    help="Also write a Markdown file: the paper's numbers, ours and the difference, and tables of "
    "all other runs.",
)
@click.option(
    "--csv",
    type=FilePath(dir_okay=False),
    help="Also write all runs to a CSV file, one row for each, with their settings and results.",
)
@table_options
def report(results: Path, markdown: Path | None, csv: Path | None, shape: Shape) -> None:
    """Make a page, tables and figures from a folder of results.

    RESULTS is that folder, by default `results`. The page is the file report.html in it, which a
    browser shows without a network; the figures are in its folder figures.

    \b
    byzantium report results
    byzantium report results --rows rule --columns attack --table mine.tex
    """  # noqa: D301
    from byzantium.reports import formats

    store = Snapshot(results)
    check_libraries(store, table=csv is not None)
    files = write_report(store, shape, markdown)
    print_tables(files.own, shape.metric)
    write_tables([*files.artifacts, *files.own], shape.files)
    print_paths(files)
    if csv:
        csv.write_text(formats.results_csv(store), encoding="utf-8")
        out.print(f"the table: {csv}", soft_wrap=True)
