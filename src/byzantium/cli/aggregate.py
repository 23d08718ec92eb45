"""`aggregate`: robust merging of checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import byzantium as bz
from byzantium import engines
from byzantium.cli.main import main
from byzantium.cli.options import COMPLETIONS, FilePath, plugin_option
from byzantium.cli.terminal import err, out


class Upload(click.Path):
    """The path of a contributor's file, which may have any name and need not be readable.

    An unreadable file is rejected, and does not stop the others. Only a path that does not exist is
    an error of the user.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.path.lexists(value):
            self.fail(f"{os.fsdecode(value)!r} does not exist.", param, ctx)
        return super().convert(value, param, ctx)


@main.command()
@click.argument("files", type=Upload(), metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--rule",
    required=True,
    help="The aggregation rule from `byzantium list rules`, with mixings before it if wanted: "
    "'Bucketing(s=2) >> Krum(f=1)'.",
    shell_complete=COMPLETIONS["rule"],
)
@click.option(
    "-o",
    "--out",
    "output",
    type=FilePath(),
    required=True,
    help="The file to write the merged checkpoint to.",
)
@click.option(
    "--base",
    type=FilePath(exists=True),
    help="The checkpoint that all contributors started from: the rule then sees their changes to "
    "it, and the merged change is added to it again.",
)
@click.option(
    "--root",
    type=FilePath(exists=True),
    help="A checkpoint that you made like the contributors, from data that you trust, for rules "
    "that need it: 'RootMatching(f=5)'. The base is subtracted from it, too.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="The seed of random mixings, to repeat a result.  [default: a new one each time]",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also merge the two factors of low-rank updates (LoRA), which are refused otherwise: the "
    "product of merged factors is not the merged product.",
)
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print how much each file counted as JSON.")
def aggregate(
    files: tuple[Path, ...],
    rule: str,
    output: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Merge checkpoints, of which some may be Byzantine, by a robust rule.

    Each FILE is the checkpoint of one contributor, in the format safetensors: a file, the index of a
    sharded checkpoint, or a folder that holds one of these. One that cannot be read, or whose names,
    shapes or dtypes differ from those of the others, is rejected and counts as Byzantine.
    So is a pickled file, which is never read. No input is ever overwritten.

    \b
    byzantium aggregate --rule "Bucketing(s=2) >> GeometricMedian()" client_*.safetensors -o merged.safetensors
    """  # noqa: D301, E501
    with _Bar() as bar:
        report = engines.merge(bz.parse_rule(rule), files, output, watch=bar.show, **options)
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    table = Table("contributor", "weight", "")
    for one in report["contributors"]:
        weight = "unknown" if one["weight"] is None else f"{one['weight']:.4f}"
        remarks = [f"rejected: {one['rejected']}"] if one["rejected"] else []
        remarks += [f"equal to {other}" for other in one["equal_to"]]
        table.add_row(one["name"], weight, "; ".join(remarks))
    out.print(table)
    for note in report["notes"]:
        out.print(note, soft_wrap=True)
    if any(one["equal_to"] for one in report["contributors"]):
        out.print(
            "Equal files may come from one person; if so, f must count them all.", soft_wrap=True
        )
    out.print(f"merged: {output}", soft_wrap=True, highlight=False)


class _Bar(Progress):
    """A progress bar over the bytes of the files; the rule decides how often it reads them."""

    def __init__(self) -> None:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn()
        super().__init__(*columns, console=err, transient=True, disable=not err.is_terminal)
        self.passes = 0

    def show(self, done: int, total: int) -> None:
        if not self.tasks or self.tasks[-1].completed >= total:
            self.passes += 1
            for task in self.task_ids:
                self.remove_task(task)
            self.add_task(f"reading, pass {self.passes}", total=total)
        self.update(self.task_ids[-1], completed=done)
