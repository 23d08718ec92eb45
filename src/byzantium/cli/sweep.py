"""`sweep`: train all combinations of settings that a file lists."""

from __future__ import annotations

from pathlib import Path

import click

from byzantium.cli import options as opt
from byzantium.cli.execution import check_unfinished, execute_jobs, print_gaps
from byzantium.cli.main import main
from byzantium.cli.report_files import print_paths, write_report
from byzantium.cli.tables import Shape, print_tables, table_options, write_tables
from byzantium.cli.track import tracking
from byzantium.runs import Engine, Snapshot, Store, load


@main.command()
@click.argument("file", type=opt.FilePath(exists=True, dir_okay=False))
@opt.results_option
@opt.engine_options
@opt.until_option
@opt.data_option
@opt.plugin_option
@opt.track_option
@table_options
def sweep(
    file: Path,
    results: Path,
    engine: Engine,
    until: int | None,
    track: tuple[str, ...],
    shape: Shape,
) -> None:
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
    store, runs = Store(results), load(file)
    before = store.results(runs)
    check_unfinished(before)
    with tracking(track, results) as trackers:
        trackers.begin_group(f"sweep {file.name}", runs)
        for result in before:
            if result.done:
                trackers.send(result)
        after = execute_jobs(
            runs,
            store,
            engine,
            until,
            before,
            lambda some: print_tables(shape.tables(some)),
            trackers.show,
        )
        tables = shape.tables(after)
        print_tables(tables, shape.metric)
        write_tables(tables, shape.files)
        files = write_report(Snapshot(results, after), shape)
        print_paths(files)
        if until is None:
            trackers.attach([files.page, *files.figures])
    print_gaps(runs)
