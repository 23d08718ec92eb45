"""The page, the figures and the Markdown file of a folder of results."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from byzantium.cli.tables import PLAIN, Shape
from byzantium.cli.terminal import err, out
from byzantium.core import import_optional
from byzantium.papers import MAKERS, Requests, artifact, compare
from byzantium.runs import Snapshot, Store
from byzantium.tables import Ranking, ResultTable, own_runs

# The figures of at most so many tables of other runs are drawn.
DRAWN = 12


class ReportFiles(NamedTuple):
    """The files that were made of a folder of results, and the tables in them."""

    artifacts: list[ResultTable]
    own: list[ResultTable]
    page: Path
    figures: list[Path]


class Tables(NamedTuple):
    """The tables of a folder of results.

    - `artifacts`: the artifacts that `byzantium reproduce` made there, beside the published
      numbers.
    - `own`: tables of all other runs.
    - `all`: tables of all runs.
    """

    artifacts: list[ResultTable]
    own: list[ResultTable]
    all: list[ResultTable]


def read_tables(store: Store, shape: Shape = PLAIN) -> Tables:
    """Read the tables of a folder of results; `shape` is that of the tables of runs."""
    names, results = list(MAKERS), list(store)
    artifacts = [compare(artifact(name, version), store) for name, version in Requests(store)]
    artifacts.sort(key=lambda table: names.index(table.artifact.name))
    others = own_runs(results, artifacts)
    own = shape.tables(others)
    return Tables(artifacts, own, own if len(others) == len(results) else shape.tables(results))


def write_report(
    store: Snapshot,
    shape: Shape = PLAIN,
    markdown: Path | None = None,
    *,
    drawn: bool = True,
    ranking: Ranking | None = None,
) -> ReportFiles:
    """Write the page, the figures of artifacts and, if possible, those of other runs.

    - `drawn`: whether to draw tables of other runs; they are not drawn without matplotlib.
    - `ranking`: that of the benchmark, for the page.
    """
    from byzantium.reports import figures
    from byzantium.reports import markdown as reproduction
    from byzantium.reports import report as page

    with err.status("reading"):
        artifacts, own, tables = read_tables(store, shape)
    drawn = drawn and find_spec("matplotlib") is not None
    with err.status("drawing"):
        paths = {
            table.artifact.stem: figures.draw(table, store.root / "figures")
            for table in [*artifacts, *(own[:DRAWN] if drawn else ())]
        }
        file = store.root / "report.html"
        path = page.write(store, artifacts, file, tables=tables, ranking=ranking)
    if markdown is not None:
        relative = {stem: os.path.relpath(some[0], markdown.parent) for stem, some in paths.items()}
        text = reproduction.markdown(artifacts, store, relative, own)
        markdown.write_text(text, encoding="utf-8")
        out.print(f"the text: {markdown}", soft_wrap=True)
    return ReportFiles(artifacts, own, path, [one for some in paths.values() for one in some])


def print_paths(files: ReportFiles) -> None:
    """Print where the page and the figures are."""
    out.print(f"the page: {files.page}", soft_wrap=True)
    for figure in files.figures:
        out.print(f"a figure: {figure}", soft_wrap=True)
    if files.own and not files.figures:
        out.print("no figures were drawn: they need matplotlib, the extra '.[report]'")


def check_libraries(store: Store, *, figures: bool = False, table: bool = False) -> None:
    """Raise an error, before anything is begun, if a library for the report is missing.

    - `store`: the folder of results; figures of the artifacts that were made there are drawn.
    - `figures`: whether other figures are drawn, too.
    """
    if figures or list(Requests(store)):
        import_optional("matplotlib", "report", "a figure")
    if table:
        import_optional("pandas", "report", "a table of results")
