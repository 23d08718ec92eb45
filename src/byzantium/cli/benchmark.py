"""`benchmark`: which rule to use, by the worst attack on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from byzantium.cli.execution import check_unfinished, execute_jobs, print_gaps
from byzantium.cli.main import main
from byzantium.cli.options import count_option, data_option, engine_options, folder_option
from byzantium.cli.report_files import write_report
from byzantium.cli.tables import (
    Shape,
    print_header,
    print_tables,
    read_shape,
    table_options,
    write_tables,
)
from byzantium.cli.terminal import err, out
from byzantium.papers import benchmark, compare
from byzantium.runs import Engine, Snapshot, Store
from byzantium.tables import Version


@main.command(name="benchmark")
@count_option(
    "--seeds",
    "How many times each pipeline meets each attack, with seeds 0, 1, ...  [default: 3]",
)
@count_option("--rounds", "How many rounds each run has.  [default: 200]")
@click.option(
    "--only",
    help="Make only the runs that have all of these words, such as 'krum mimic noniid f=5'.",
)
@table_options
@folder_option("benchmark")
@engine_options
@data_option
def benchmark_(results: Path, engine: Engine, **options: Any) -> None:
    """Find out which rule to use, by the worst attack on each.

    14 pipelines (rules, alone or behind mixings) meet six attacks on handwritten digits, for four
    ways to divide the data and with 1, 3 or 5 of 25 workers attacking: 3,024 runs with three seeds,
    about an hour on two cores. The tables show the worst attack unless rows or columns are given.

    \b
    byzantium benchmark --jobs 2 --table docs/benchmark.md
    byzantium benchmark --seeds 1 --only "nnm-rfa noniid"
    """  # noqa: D301
    names = ("rows", "columns", "worst_case", "metric", "files")
    shaped = {name: options.pop(name) for name in names}
    shape, store = read_shape(**shaped), Store(results)
    if not (shape.rows or shape.columns):
        shape = Shape(("rule",), "partition", True, shape.files, shape.metric)
    with err.status("preparing"):
        artifact = benchmark(Version(**options))
        before = store.results(artifact.jobs)
        check_unfinished(before)
    print_header(artifact)
    after = execute_jobs(
        artifact.jobs,
        store,
        engine,
        results=before,
        on_failure=lambda some: print_tables(shape.tables(some)),
    )
    tables, snapshot = shape.tables(after), Snapshot(results, after)
    print_tables(tables, shape.metric)
    write_tables(tables, shape.files, compare(artifact, snapshot))
    out.print(f"the page: {write_report(snapshot, drawn=False).page}", soft_wrap=True)
    print_gaps(artifact.jobs)
