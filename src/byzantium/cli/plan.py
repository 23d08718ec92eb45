"""`plan`: what would run, what is done, and how long the rest takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from byzantium.cli import options as opt
from byzantium.cli.execution import check_unfinished
from byzantium.cli.main import main
from byzantium.cli.tables import print_header
from byzantium.cli.terminal import err, out
from byzantium.core import printable_lines
from byzantium.papers import MAKERS, artifact, benchmark
from byzantium.reports import duration
from byzantium.runs import Job, Result, Snapshot, Store, described, estimate, load
from byzantium.tables import Version


@main.command()
@click.argument(
    "target",
    metavar="ARTIFACT|FILE|benchmark",
    shell_complete=opt.complete(lambda: [*MAKERS, "benchmark"]),
)
@opt.version_options
@opt.results_option
@opt.count_option(
    "--jobs",
    "How many runs at a time the estimate is for; they share the cores.",
    1,
    most=opt.MAX_JOBS,
)
@opt.data_option
@opt.plugin_option
@click.option(
    "--probe/--no-probe",
    default=True,
    show_default=True,
    help="Try a few rounds, to say how long the rest takes.",
)
def plan(target: str, results: Path, jobs: int, probe: bool, **options: Any) -> None:
    """Say what would run, what is done, and how long the rest takes.

    What to plan is an artifact (a table or figure of the paper: `byzantium list artifacts`), the
    file of a sweep, or the word benchmark. Only a few rounds are trained,
    to measure the time.

    \b
    byzantium plan figure-main --model mlp --seeds 1
    byzantium plan mine.toml --jobs 2
    """  # noqa: D301
    store, planned = Snapshot(results), None
    if target in MAKERS or target == "benchmark":
        version = Version(**options)
        planned = artifact(target, version) if target in MAKERS else benchmark(version)
        todo: Sequence[Job] = planned.jobs
    else:
        if not Path(target).exists():
            artifact(target)  # raises an error that suggests a name
        todo = load(Path(target))
    stored = store.results(todo)
    _print_answer(stored, store, jobs, probe=probe)
    if planned:
        print_header(planned)
    if len(stored) <= 60:
        for result in stored:
            text = f"{result.ending:>10}  {described(result.job)}"
            text += f": {result.reason}" if result.reason else ""
            out.print(text, highlight=False, soft_wrap=True)


def _print_answer(stored: Sequence[Result], store: Store, jobs: int, *, probe: bool) -> None:
    """Print how long the unfinished jobs take, and how many there are."""
    left = sum(not result.done for result in stored)
    counts = f"{len(stored)} job{'s' * (len(stored) != 1)}, {len(stored) - left} done, {left} to do"
    if not probe or not left:
        out.print(counts)
        return
    check_unfinished(stored)
    try:
        with err.status("trying a few rounds of each type of run"):
            seconds = estimate([result.job for result in stored], store) / min(jobs, left)
    except (RuntimeError, MemoryError) as error:  # a model that does not fit into memory
        raise click.ClickException(printable_lines(f"{type(error).__name__}: {error}")) from error
    out.print(f"about {duration(seconds)} with --jobs {jobs}, from a short probe", style="bold")
    out.print(counts)
