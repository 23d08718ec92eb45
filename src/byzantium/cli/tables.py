"""Tables of runs, as several commands show and write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from byzantium.cli.options import FAILED, Command, Place, carry_out, out
from byzantium.runs import Engine, Job, Result, Store

if TYPE_CHECKING:
    from byzantium.papers import ResultTable

# More tables than this are not printed; the page and the files have them all.
PRINTED = 6


@dataclass(frozen=True)
class Shape:
    """What was asked for: the rows and columns of tables, and the files they are written to."""

    rows: tuple[str, ...]
    columns: str
    worst_case: bool
    files: tuple[Path, ...]

    def tables(self, results: Iterable[Result]) -> list[ResultTable]:
        from byzantium.reports import pivots

        return pivots(results, self.rows, self.columns, self.worst_case)


PLAIN = Shape((), "", False, ())


def _ending(ctx: click.Context, param: click.Parameter, paths: tuple[Path, ...]) -> Any:
    from byzantium.reports import formats

    for path in paths:
        formats.form(path)
    return paths


def table_options(command: Command) -> Command:
    """How results are put into tables; `shape` makes one thing of them."""
    for option in reversed(
        [
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
                "--table",
                "files",
                type=Place(dir_okay=False),
                multiple=True,
                callback=_ending,
                help="Also write the tables to a file: Markdown (.md), LaTeX for booktabs (.tex) "
                "or CSV (.csv), by its ending. May be given several times.",
            ),
        ]
    ):
        command = option(command)
    return command


def shape(
    rows: str | None, columns: str | None, worst_case: bool, files: tuple[Path, ...]
) -> Shape:
    names = tuple(name.strip() for name in (rows or "").split(",") if name.strip())
    return Shape(names, (columns or "").strip(), worst_case, files)


def tabulated(
    jobs: Sequence[Job], store: Store, engine: Engine, wanted: Shape, until: int | None = None
) -> list[ResultTable]:
    """Carry out jobs and print their tables; where some failed, those of the others."""
    try:
        carry_out(jobs, store, engine, until)
    except SystemExit as end:
        if end.code == FAILED:
            show(wanted.tables(store.results(jobs)))
        raise
    tables = wanted.tables(store.results(jobs))
    show(tables)
    return tables


def show(tables: Sequence[ResultTable]) -> None:
    """Print tables; of many the first."""
    from byzantium.reports import terminal

    for table in tables[:PRINTED]:
        out.print(terminal(table))
    if len(tables) > PRINTED:
        out.print(f"{len(tables) - PRINTED} more tables, for other settings, are not printed")


def write_tables(
    tables: Sequence[ResultTable], files: Sequence[Path], made: ResultTable | None = None
) -> None:
    """Write tables into files; `made` is what all of them are of, where one command makes them."""
    from byzantium.reports import formats

    for path in files:
        formats.write(path, tables, made)
        out.print(f"the table: {path}", soft_wrap=True)
