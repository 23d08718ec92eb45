"""`benchmark`: which rule to use, by the worst attack on each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from byzantium.cli import options as opt
from byzantium.cli.execution import check_unfinished, execute_jobs, print_gaps
from byzantium.cli.main import main
from byzantium.cli.report_files import write_report
from byzantium.cli.tables import print_header
from byzantium.cli.terminal import err, out
from byzantium.core import ByzantiumError
from byzantium.papers import LEVELS, benchmark, compare, recorded_ranking
from byzantium.runs import Engine, Snapshot, Store
from byzantium.tables import Ranking, Version, ranking_rows


def _page(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix != ".md":
        raise ByzantiumError(f"the ranking is written to a file that ends in .md, got {path.name}")
    return path


@main.command(name="benchmark")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    shell_complete=opt.complete(lambda: opt.members("rule")),
    help="A pipeline to run, instead of those of the library; it is ranked among them. May be "
    "given several times.",
)
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default=LEVELS[0],
    show_default=True,
    help="standard: digits, four ways to divide them, 1, 3 or 5 of 25 attack. full: also MNIST "
    "with a convolutional network, 50 workers, sampled workers and local steps; only the best "
    "three of the library's pipelines.",
)
@opt.count_option(
    "--seeds",
    "How many times each pipeline meets each attack, with seeds 0, 1, ...  [default: 3]",
)
@opt.count_option("--rounds", "How many rounds each run has.  [default: 200]")
@click.option(
    "--only",
    help="Make only the runs that have all of these words, such as 'krum mimic noniid f=5'.",
)
@click.option(
    "--page",
    type=opt.FilePath(dir_okay=False),
    callback=_page,
    help="Also write the ranking to a Markdown file (.md), with its figures beside it.",
)
@opt.plugin_option
@opt.folder_option("benchmark")
@opt.engine_options
@opt.data_option
def benchmark_(
    results: Path,
    engine: Engine,
    rules: tuple[str, ...],
    level: Any,
    page: Path | None,
    **options: Any,
) -> None:
    """Find out which rule to use, by the worst attack on each.

    Every pipeline (a rule, alone or behind mixings) meets the same suite of attacks on handwritten
    digits, for four ways to divide the data and with 1, 3 or 5 of 25 workers attacking. One
    pipeline takes some minutes on two cores. The ranking shows it beside those of the library,
    whose numbers are recorded.

    \b
    byzantium benchmark --rule "Krum(m=3)" --jobs 2
    byzantium benchmark --plugin mine.py --rule "Mine()" --jobs 2 --page ranking.md
    byzantium benchmark --seeds 1 --only "rfa noniid"
    """  # noqa: D301
    store = Store(results)
    with err.status("preparing"):
        artifact = benchmark(Version(**options), level, rules)
        before = store.results(artifact.jobs)
        check_unfinished(before)
    print_header(artifact)
    after = execute_jobs(artifact.jobs, store, engine, results=before)
    snapshot = Snapshot(results, after)
    ranking = recorded_ranking().with_rows(ranking_rows(compare(artifact, snapshot)))
    _print(ranking)
    if page is not None:
        from byzantium.reports.ranking import write_page

        for path in write_page(page, ranking):
            out.print(f"the ranking: {path}", soft_wrap=True)
    report = write_report(snapshot, drawn=False, ranking=ranking)
    out.print(f"the page: {report.page}", soft_wrap=True)
    print_gaps(artifact.jobs)


def _print(ranking: Ranking) -> None:
    """Print a table for each way to divide the data."""
    from byzantium.reports.markdown import drawn
    from byzantium.reports.ranking import splits_of, table
    from byzantium.reports.text_tables import BOLD

    for split in splits_of(ranking):
        shown = table(ranking, split)
        if shown.rows:
            out.print(
                drawn(shown, f"{split}: test accuracy (%) under the worst of the suite", BOLD)
            )
