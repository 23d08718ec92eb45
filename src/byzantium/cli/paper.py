"""`plan`, `reproduce`, `report`: the paper's tables and figures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from byzantium.cli.main import main
from byzantium.cli.options import (
    Place,
    carry_out,
    check,
    complete,
    data_option,
    engine_options,
    err,
    jobs_option,
    out,
    results_option,
    version_options,
)
from byzantium.core import needed
from byzantium.papers import MAKERS, Artifact, Requests, Version, artifact, compare
from byzantium.reports import duration
from byzantium.runs import Engine, Job, Store, described, estimate, load


@main.command()
@click.argument("target", metavar="ARTIFACT|FILE", shell_complete=complete(lambda: MAKERS))
@version_options
@results_option
@jobs_option
@data_option
@click.option("--probe/--no-probe", default=True, help="Try a few rounds to tell the time.")
def plan(target: str, results: Path, jobs: int, probe: bool, **version: Any) -> None:
    """What would run, what is done, and how long the rest takes."""
    store = Store(results)
    if target in MAKERS:
        made = artifact(target, Version(**version))
        _header(made)
        todo: Sequence[Job] = made.jobs
    else:
        if not Path(target).exists():
            artifact(target)  # says what is near
        todo = load(Path(target))
    found = store.results(todo)
    if len(found) <= 60:
        for result in found:
            text = f"{result.ending:>10}  {described(result.job)}"
            text += f": {result.reason}" if result.reason else ""
            out.print(text, highlight=False, soft_wrap=True)
    done = sum(result.done for result in found)
    out.print(f"{len(found)} jobs, {done} done, {len(found) - done} to do")
    if probe and done < len(found):
        check(todo, store)
        with err.status("trying a few rounds of each kind"):
            seconds = _tried(todo, store) / min(jobs, len(found) - done)
        out.print(f"about {duration(seconds)} with --jobs {jobs}, from a short probe")


def _tried(jobs: Sequence[Job], store: Store) -> float:
    try:
        return estimate(jobs, store)
    except (RuntimeError, MemoryError) as error:  # of a model beyond all memory
        raise click.ClickException(f"{type(error).__name__}: {error}") from error


def _header(made: Artifact) -> None:
    out.print(made.title, style="bold")
    said = [f"fixed: {made.fixed}", f"varies: {made.varies}"]
    if made.cheaper:
        said.append(f"a cheaper version: {', '.join(made.cheaper)}")
    out.print("\n".join(said), highlight=False, soft_wrap=True)


@main.command()
@click.argument(
    "names", metavar="ARTIFACT...", nargs=-1, required=True, shell_complete=complete(lambda: MAKERS)
)
@version_options
@results_option
@engine_options
@data_option
def reproduce(names: tuple[str, ...], results: Path, engine: Engine, **version: Any) -> None:
    """Make tables and figures of the paper, beside its numbers.

    \b
    byzantium reproduce table2 table4 --seeds 1
    byzantium reproduce figure-main --model mlp --seeds 1 --jobs 2
    """  # noqa: D301
    from byzantium.reports import terminal

    store, wanted = Store(results), Version(**version)
    made = [artifact(name, wanted) for name in names]
    todo = [job for one in made for job in one.jobs]
    check_libraries(store, figures=True)
    check(todo, store)
    for one in made:
        Requests(store).add(one.name, one.version)
    carry_out(todo, store, engine)
    for one in made:
        _header(one)
        out.print(terminal(compare(one, store)))
    page, _ = written(store, None)
    out.print(f"the report: {page}", soft_wrap=True)


@main.command()
@click.argument("results", type=Place(exists=True, file_okay=False), default="results")
@click.option(
    "--markdown",
    type=Place(dir_okay=False),
    help="Also write published | ours | difference as Markdown.",
)
@click.option(
    "--csv",
    type=Place(dir_okay=False),
    help="Also write all results as a table, one row a run.",
)
def report(results: Path, markdown: Path | None, csv: Path | None) -> None:
    """One page to look at, and figures, from a folder of results."""
    store = Store(results)
    check_libraries(store, table=csv is not None)
    page, pictures = written(store, markdown)
    out.print(f"the page: {page}", soft_wrap=True)
    for picture in pictures:
        out.print(f"a figure: {picture}", soft_wrap=True)
    if csv:
        store.table().to_csv(csv, index=False)
        out.print(f"the table: {csv}", soft_wrap=True)


def check_libraries(store: Store, *, figures: bool = False, table: bool = False) -> None:
    """Raise a sentence, before anything is begun, where a library for the report is missing.

    figures: even if no artifact was asked for yet, whose figure is drawn.
    """
    needed("plotly.offline", "report", "a report")
    if figures or list(Requests(store)):
        needed("matplotlib", "report", "a figure")
    if table:
        needed("pandas", "report", "a table of results")


def written(store: Store, markdown: Path | None) -> tuple[Path, list[Path]]:
    """Write the page, and where artifacts were asked for, their figures."""
    from byzantium.reports import figures
    from byzantium.reports import markdown as reproduction
    from byzantium.reports import report as page

    comparisons = [compare(artifact(name, version), store) for name, version in Requests(store)]
    with err.status("drawing"):
        drawn = {
            comparison.artifact.stem: figures.draw(comparison, store.root / "figures")
            for comparison in comparisons
        }
        path = page.write(store, comparisons, store.root / "report.html")
    if markdown is not None:
        shown = {stem: os.path.relpath(paths[0], markdown.parent) for stem, paths in drawn.items()}
        markdown.write_text(reproduction.markdown(comparisons, store, shown), encoding="utf-8")
        out.print(f"the text: {markdown}", soft_wrap=True)
    return path, [picture for paths in drawn.values() for picture in paths]
