"""`plan`, `reproduce`, `report`, `benchmark`: tables and figures, the paper's and ours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
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
    plugin_option,
    results_option,
    tell_gaps,
    until_option,
    version_options,
)
from byzantium.cli.tables import PLAIN, Shape, shape, show, table_options, tabulated, write_tables
from byzantium.core import import_optional, printable_lines
from byzantium.papers import (
    MAKERS,
    Artifact,
    Requests,
    ResultTable,
    Version,
    artifact,
    benchmark,
    compare,
)
from byzantium.reports import duration
from byzantium.runs import Engine, Job, Store, described, estimate, load

# More figures of tables of one's own than this are not drawn.
DRAWN = 12


@main.command()
@click.argument(
    "target",
    metavar="ARTIFACT|FILE|benchmark",
    shell_complete=complete(lambda: [*MAKERS, "benchmark"]),
)
@version_options
@results_option
@jobs_option
@data_option
@plugin_option
@click.option(
    "--probe/--no-probe",
    default=True,
    show_default=True,
    help="Try a few rounds, to say how long the rest takes.",
)
def plan(target: str, results: Path, jobs: int, probe: bool, **version: Any) -> None:
    """Say what would run, what is done, and how long the rest takes.

    What to plan is an artifact (a table or figure of the paper: `byzantium list artifacts`), the
    file of a sweep, or the word benchmark. Nothing is trained but a few rounds to measure the time.

    \b
    byzantium plan figure-main --model mlp --seeds 1
    byzantium plan mine.toml --jobs 2
    """  # noqa: D301
    store = Store(results)
    if target in MAKERS or target == "benchmark":
        wanted = Version(**version)
        made = artifact(target, wanted) if target in MAKERS else benchmark(wanted)
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
        raise click.ClickException(printable_lines(f"{type(error).__name__}: {error}")) from error


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
@until_option
@data_option
def reproduce(
    names: tuple[str, ...], results: Path, engine: Engine, until: int | None, **version: Any
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

    store, wanted = Store(results), Version(**version)
    made = [artifact(name, wanted) for name in names]
    todo = [job for one in made for job in one.jobs]
    check_libraries(store, figures=True)
    check(todo, store)
    for one in made:
        Requests(store).add(one.name, one.version)
    carry_out(todo, store, engine, until)
    for one in made:
        _header(one)
        out.print(terminal(compare(one, store)))
    out.print(f"the page: {written(store).page}", soft_wrap=True)
    tell_gaps(todo)


@main.command(name="benchmark")
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="How many times each pipeline meets each attack, with seeds 0, 1, ...  [default: 3]",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), help="How many rounds each run has.  [default: 200]"
)
@click.option(
    "--only",
    help="Make only the runs that have all of these words, such as 'krum mimic noniid f=5'.",
)
@table_options
@click.option(
    "--out",
    "results",
    type=Place(file_okay=False),
    default="benchmark",
    show_default=True,
    help="The folder of results.",
)
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
    shaped = {name: options.pop(name) for name in ("rows", "columns", "worst_case", "files")}
    wanted, store = shape(**shaped), Store(results)
    if not (wanted.rows or wanted.columns):
        wanted = Shape(("rule",), "partition", True, wanted.files)
    with err.status("preparing"):
        made = benchmark(Version(**options))
        wanted.tables(store.results(made.jobs))  # a sentence, before anything is begun
        check(made.jobs, store)
    _header(made)
    tables = tabulated(made.jobs, store, engine, wanted)
    write_tables(tables, wanted.files, compare(made, store))
    out.print(f"the page: {written(store, drawn=False).page}", soft_wrap=True)
    tell_gaps(made.jobs)


@main.command()
@click.argument("results", type=Place(exists=True, file_okay=False), default="results")
@click.option(
    "--markdown",
    type=Place(dir_okay=False),
    help="Also write a Markdown file: the paper's numbers, ours and the difference, and tables of "
    "all other runs.",
)
@click.option(
    "--csv",
    type=Place(dir_okay=False),
    help="Also write all runs to a CSV file, one row for each, with their settings and results.",
)
@table_options
def report(results: Path, markdown: Path | None, csv: Path | None, **options: Any) -> None:
    """Make a page, tables and figures from a folder of results.

    RESULTS is that folder, by default `results`. The page is the file report.html in it, which a
    browser shows without a network; the figures are in its folder figures.

    \b
    byzantium report results
    byzantium report results --rows rule --columns attack --table mine.tex
    """  # noqa: D301
    from byzantium.reports import formats

    store, wanted = Store(results), shape(**options)
    check_libraries(store, table=csv is not None)
    made = written(store, wanted, markdown)
    show(made.own)
    write_tables([*made.comparisons, *made.own], wanted.files)
    tell(made)
    if csv:
        csv.write_text(formats.results_csv(store), encoding="utf-8")
        out.print(f"the table: {csv}", soft_wrap=True)


def check_libraries(store: Store, *, figures: bool = False, table: bool = False) -> None:
    """Raise a sentence, before anything is begun, where a library for the report is missing.

    figures: even if no artifact was asked for yet, whose figure is drawn.
    """
    if figures or list(Requests(store)):
        import_optional("matplotlib", "report", "a figure")
    if table:
        import_optional("pandas", "report", "a table of results")


@dataclass(frozen=True)
class Written:
    """What was made of a folder of results: artifacts that were asked for, tables of other runs."""

    comparisons: list[ResultTable]
    own: list[ResultTable]
    page: Path
    pictures: list[Path]


def tell(made: Written) -> None:
    """Say where the page and the figures are."""
    out.print(f"the page: {made.page}", soft_wrap=True)
    for picture in made.pictures:
        out.print(f"a figure: {picture}", soft_wrap=True)
    if made.own and not made.pictures:
        out.print("no figures were drawn: they need matplotlib, pip install 'byzantium[report]'")


def written(
    store: Store, wanted: Shape = PLAIN, markdown: Path | None = None, *, drawn: bool = True
) -> Written:
    """Write the page, the figures of artifacts and, if they are to be drawn, of all other runs.

    The latter need not be asked for: where there is no matplotlib, they are left out.
    """
    from byzantium.reports import figures, own_runs
    from byzantium.reports import markdown as reproduction
    from byzantium.reports import report as page

    names = list(MAKERS)
    with err.status("reading"):
        found = list(store)
        comparisons = [compare(artifact(name, version), store) for name, version in Requests(store)]
    comparisons.sort(key=lambda comparison: names.index(comparison.artifact.name))
    own = wanted.tables(own_runs(found, comparisons))
    drawn = drawn and find_spec("matplotlib") is not None
    with err.status("drawing"):
        pictures = {
            comparison.artifact.stem: figures.draw(comparison, store.root / "figures")
            for comparison in [*comparisons, *(own[:DRAWN] if drawn else ())]
        }
        tables = wanted.tables(found)
        path = page.write(store, comparisons, store.root / "report.html", tables=tables)
    if markdown is not None:
        near = {
            stem: os.path.relpath(paths[0], markdown.parent) for stem, paths in pictures.items()
        }
        text = reproduction.markdown(comparisons, store, near, own)
        markdown.write_text(text, encoding="utf-8")
        out.print(f"the text: {markdown}", soft_wrap=True)
    return Written(comparisons, own, path, [one for paths in pictures.values() for one in paths])
