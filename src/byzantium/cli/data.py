"""`data`: fetch data sets, verify them, look at who holds what."""

from __future__ import annotations

from pathlib import Path

import click
import torch

from byzantium.cli.main import main
from byzantium.cli.options import FAILED, Place, complete, data_option, out
from byzantium.core.errors import needed
from byzantium.learning import data as data_sets
from byzantium.learning import partition as partitions


@main.group()
def data() -> None:
    """Fetch data sets, verify them, look at who holds what."""


name_argument = click.argument("name", shell_complete=complete(data_sets.NAMES))


@data.command()
@name_argument
@data_option
def fetch(name: str) -> None:
    """Find the files of a data set or fetch them, into the user's cache."""
    out.print(str(data_sets.load(name)))


@data.command()
@name_argument
@data_option
def verify(name: str) -> None:
    """Say of each file whether it is the original one."""
    files = data_sets.verify(name)
    for path, original in files:
        verdict = "the original" if original else "NOT the original"
        out.print(f"{verdict}: {path}", soft_wrap=True, highlight=False)
    if not files:
        out.print(f"{name} is part of the package")
    if not all(original for _, original in files):
        raise SystemExit(FAILED)


@data.command()
@name_argument
@data_option
@click.option("--partition", default="by_label()", show_default=True, help="How it is dealt.")
@click.option("--workers", default=20, show_default=True, help="Honest workers.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option("--out", type=Place(), default="partition.png", show_default=True)
def picture(name: str, partition: str, workers: int, seed: int, out: Path) -> None:
    """A picture of who holds what: workers by classes."""
    needed("matplotlib", "report", "a picture")
    loaded, way = data_sets.load(name), partitions.read(partition)
    parts = way(loaded.train_y, workers, torch.Generator().manual_seed(seed))
    partitions.picture(parts, loaded.train_y, out)
    click.echo(f"the picture: {out}")
