"""Tables of runs, as several commands show and write them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from byzantium.cli.options import Command, FilePath, stacked
from byzantium.cli.terminal import out
from byzantium.runs import Result
from byzantium.tables import check_axes

if TYPE_CHECKING:
    from byzantium.tables import Artifact, ResultTable

# More tables than this are not printed; the page and the files have them all.
PRINTED = 6


@dataclass(frozen=True)
class Shape:
    """The rows and columns of tables that a command makes, and the files it writes them to."""

    rows: tuple[str, ...] = ()
    columns: str = ""
    worst_case: bool = False
    files: tuple[Path, ...] = ()
    metric: str = ""
    over: str = "round"

    def tables(self, results: Iterable[Result]) -> list[ResultTable]:
        """The tables of results."""
        from byzantium.tables import pivots

        axes = self.rows, self.columns, self.worst_case, self.metric
        return pivots(results, *axes, over=self.over)


PLAIN = Shape()


def _ending(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> Any:
    from byzantium.reports import formats

    for path in paths:
        formats.form(path)
    return paths


def table_options(command: Command) -> Command:
    """The options that say how tables are made; the command gets a `shape`."""

    @functools.wraps(command)
    def with_shape(
        *, rows: str | None, columns: str | None, metric: str | None, **options: Any
    ) -> Any:
        names = tuple(name.strip() for name in (rows or "").split(",") if name.strip())
        own = {name: options.pop(name) for name in ("worst_case", "files", "over")}
        shape = Shape(names, (columns or "").strip(), metric=(metric or "").strip(), **own)
        check_axes(shape.rows, shape.columns, shape.worst_case, shape.metric)
        return command(shape=shape, **options)

    return stacked(
        click.option(
            "--rows",
            help="Which settings the rows of a table are, such as rule or rule,momentum.  "
            "[default: chosen from what varies]",
        ),
        click.option(
            "--columns",
            help="Which setting the columns of a table are, such as attack.  [default: chosen "
            "from what varies]",
        ),
        click.option(
            "--worst-case",
            is_flag=True,
            help="Show in each cell the result under the attack that hurts it most.",
        ),
        click.option(
            "--metric",
            help="Which metric the tables show, such as success_rate, by its name in "
            "`byzantium list metrics`.  [default: accuracy; for regression, loss]",
        ),
        click.option(
            "--over",
            type=click.Choice(["round", "time"]),
            default="round",
            help="What the curves in figures are drawn over: rounds, or the simulated time of runs "
            "with a clock; without one, a round takes the time 1.",
        ),
        click.option(
            "--table",
            "files",
            type=FilePath(dir_okay=False),
            multiple=True,
            callback=_ending,
            help="Also write the tables to a file: Markdown (.md), LaTeX for booktabs (.tex) "
            "or CSV (.csv), by its ending. May be given several times.",
        ),
    )(with_shape)


def print_header(artifact: Artifact) -> None:
    """Print what an artifact is."""
    out.print(artifact.title, style="bold")
    lines = [f"fixed: {artifact.fixed}", f"varies: {artifact.varies}"]
    if artifact.cheaper:
        lines.append(f"a cheaper version: {', '.join(artifact.cheaper)}")
    out.print("\n".join(lines), highlight=False, soft_wrap=True)


def print_tables(tables: Sequence[ResultTable], metric: str = "") -> None:
    """Print tables, at most the first few; without any, that no run has recorded the metric."""
    from byzantium.reports import terminal

    if metric and not tables:
        out.print(f"no table: none of these runs has recorded {metric}")
    for table in tables[:PRINTED]:
        out.print(terminal(table))
    if len(tables) > PRINTED:
        out.print(f"{len(tables) - PRINTED} more tables, for other settings, are not printed")


def write_tables(tables: Sequence[ResultTable], files: Sequence[Path]) -> None:
    """Write tables into files."""
    from byzantium.reports import formats

    for path in files:
        formats.write(path, tables)
        out.print(f"the table: {path}", soft_wrap=True)
