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
from byzantium.cli.options import COMPLETIONS, FilePath, address_option, plugin_option, ray_engine
from byzantium.cli.terminal import err, out
from byzantium.engines.files import read_weights

# The most modules that the table of losses names.
MOST_MODULES = 24


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


class Rank(click.ParamType[Any]):
    """A rank: a number, or the word full."""

    name = "rank"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N|full"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "full":
            return value
        try:
            rank = int(value)
        except ValueError:
            rank = 0
        if rank < 1:
            self.fail(f"{value!r} is neither a whole number of at least 1 nor 'full'.", param, ctx)
        return rank


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
    help="The file to write the merged checkpoint to; for adapters without --base, the folder.",
)
@click.option(
    "--base",
    type=FilePath(exists=True),
    help="The checkpoint that all contributors started from: the rule then sees their changes to "
    "it, and the merged change is added to it again. For adapters, the weights of their model.",
)
@click.option(
    "--root",
    type=FilePath(exists=True),
    help="A checkpoint that you made like the contributors, from data that you trust, for rules "
    "that need it: 'RootMatching(f=5)'. The base is subtracted from it, too.",
)
@click.option(
    "--weights",
    type=FilePath(exists=True, dir_okay=False),
    help="A TOML or JSON file with a number for each contributor that you vouch for, such as the "
    "verified size of its data set: 'site-1 = 190'.  [default: all count the same]",
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
@click.option(
    "--rank",
    type=Rank(),
    help="For adapters: the rank of the merged one, or full for no loss.  [default: the largest "
    "that came in; with --base, full]",
)
@click.option(
    "--config",
    type=FilePath(exists=True, dir_okay=False),
    help="For adapters: the adapter_config.json that counts. A contributor with another one is "
    "rejected.  [default: the one that more than half of the contributors share]",
)
@click.option(
    "--trust-scales",
    is_flag=True,
    help="For adapters: let ranks and alphas differ, so that each contributor's own claim decides "
    "how large its update is.",
)
@click.option(
    "--engine",
    "kind",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where files are read and the output is computed: in this process, or on a Ray cluster "
    "whose nodes all see the files and the folder of the output.",
)
@address_option
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print how much each file counted as JSON.")
def aggregate(
    files: tuple[Path, ...],
    rule: str,
    output: Path,
    weights: Path | None,
    rank: Any,
    config: Path | None,
    trust_scales: bool,
    force: bool,
    kind: str,
    address: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Merge checkpoints, of which some may be Byzantine, by a robust rule.

    Each FILE is the checkpoint of one contributor, in the format safetensors: a file, the index of a
    sharded checkpoint, or a folder that holds one of these. One that cannot be read, or whose names,
    shapes or dtypes differ from those of the others, is rejected and counts as Byzantine.
    So is a pickled file, which is never read. No input is ever overwritten.

    \b
    byzantium aggregate --rule "GeometricMedian()" client_*.safetensors -o merged.safetensors

    With --engine ray, the nodes of a Ray cluster read the files and write the output together.

    \b
    byzantium aggregate --rule "Krum(f=1)" client_*/ -o merged.safetensors --engine ray --address HEAD:6379

    FILE may also be the folder of a LoRA adapter in PEFT's format (adapter_config.json and
    adapter_model.safetensors). Then the products of the factors are aggregated, and the result is
    an adapter again; with --base, the weights of the model with the update.

    \b
    byzantium aggregate --rule "Krum(f=1)" adapter_*/ -o merged
    """  # noqa: D301, E501
    stages, engine = bz.parse_rule(rule), ray_engine(kind, address)
    vouched = None if weights is None else read_weights(weights)
    options |= {"weights": vouched, "engine": engine}
    if engines.are_adapters(files) or rank is not None or config is not None or trust_scales:
        if force:
            raise click.UsageError("--force is for files, not for folders of adapters")
        options |= {"rank": rank, "config": config, "trust_scales": trust_scales}
        report = engines.merge_adapters(stages, files, output, **options)
    else:
        with _Bar() as bar:
            report = engines.merge(stages, files, output, force=force, watch=bar.show, **options)
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    column = ["vouched"] if vouched is not None else []
    table = Table("contributor", *column, "weight", "")
    for one in report["contributors"]:
        weight = "unknown" if one["weight"] is None else f"{one['weight']:.4f}"
        remarks = [f"rejected: {one['rejected']}"] if one["rejected"] else []
        remarks += [f"equal to {other}" for other in one["equal_to"]]
        numbers = [f"{one[name]:g}" for name in column]
        table.add_row(one["name"], *numbers, weight, "; ".join(remarks))
    out.print(table)
    for note in report["notes"]:
        out.print(note, soft_wrap=True)
    if "adapters" in report:
        _print_losses(report["adapters"])
    if any(one["equal_to"] for one in report["contributors"]):
        out.print(
            "Equal files may come from one person; if so, f must count them all.", soft_wrap=True
        )
    out.print(f"merged: {output}", soft_wrap=True, highlight=False)


def _print_losses(adapters: dict[str, Any]) -> None:
    """Print which share of the squared norm the cut to a rank has lost."""
    modules = adapters["modules"]
    table = Table("module", "rank", "lost by the cut (%)")
    worst = sorted(modules, key=lambda name: -modules[name]["lost"])[:MOST_MODULES]
    for name in modules:
        if name in worst:
            table.add_row(name, str(modules[name]["rank"]), _percent(modules[name]["lost"]))
    if len(modules) > len(worst):
        others = max(one["lost"] for name, one in modules.items() if name not in worst)
        table.add_row(f"{len(modules) - len(worst)} others", "", f"at most {_percent(others)}")
    table.add_row("in total", "", _percent(adapters["lost"]))
    out.print(table)


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


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
