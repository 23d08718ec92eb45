"""`track`: send results to experiment trackers; and how other commands do so meanwhile."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from byzantium.cli.main import main
from byzantium.cli.options import plugin_option, results_argument
from byzantium.cli.terminal import out
from byzantium.core import ByzantiumError
from byzantium.runs import Result, Store

if TYPE_CHECKING:
    from byzantium.engines.tracking import Tracking


@contextmanager
def tracking(names: Sequence[str], results: Path, *, reports: bool = False) -> Iterator[Tracking]:
    """Trackers that follow the jobs of a command.

    - `reports`: whether each job gets a report and a figure of its own.
    """
    from byzantium.engines.tracking import Tracking

    with tempfile.TemporaryDirectory(prefix="byzantium-") as folder:

        def reports_of(result: Result) -> Iterable[Path]:
            return report_of(result, Path(folder) / result.job.identity) if reports else ()

        with Tracking(names, results, reports_of) as trackers:
            yield trackers


def report_of(result: Result, folder: Path) -> list[Path]:
    """The report of one result and, with matplotlib, its figure; both in a folder."""
    from byzantium.reports import figures
    from byzantium.reports import report as page
    from byzantium.tables import pivots

    tables = pivots([result])
    paths = [page.write([result], [], folder / "report.html", tables=tables)]
    if find_spec("matplotlib") is not None:
        for table in tables:
            paths += figures.draw(table, folder)
    return paths


@main.command()
@results_argument
@click.option(
    "--to",
    "names",
    type=click.Choice(["mlflow", "wandb", "tensorboard"]),
    multiple=True,
    required=True,
    help="The tracker. May be given several times.",
)
@plugin_option
def track(results: Path, names: tuple[str, ...]) -> None:
    """Send finished results to an experiment tracker.

    RESULTS is the folder of results, by default `results`. What a tracker has already is not sent
    again.

    \b
    byzantium track results --to mlflow
    """  # noqa: D301
    with tracking(names, results, reports=True) as trackers:
        sent = 0
        for result in Store(results):
            if result.done:
                trackers.send(result)
                sent += 1
            if not trackers.trackers:
                raise ByzantiumError("nothing more can be sent: see the lines above")
    out.print(f"{sent} finished results are in {', '.join(names)}", highlight=False)
