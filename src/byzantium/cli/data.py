"""`data`: fetch data sets, verify them, look at who holds what."""

from __future__ import annotations

from pathlib import Path

import click

from byzantium import learning
from byzantium.cli.main import main
from byzantium.cli.options import (
    FAILED,
    Place,
    complete,
    data_option,
    members,
    out,
    plugin_option,
)
from byzantium.core import needed


@main.group()
def data() -> None:
    """Fetch data sets, verify them, look at who holds what."""


name_argument = click.argument("name", shell_complete=complete(lambda: members("data")))


@data.command()
@name_argument
@data_option
@plugin_option
def fetch(name: str) -> None:
    """Find the files of a data set or fetch them, into the user's cache."""
    out.print(str(learning.load(name)))


@data.command()
@name_argument
@data_option
def verify(name: str) -> None:
    """Say of each file whether it is the original one."""
    files = learning.data.verify(name)
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
@plugin_option
@click.option("--partition", default="by_label()", show_default=True, help="How it is dealt.")
@click.option("--workers", default=20, show_default=True, help="Honest workers.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=0, show_default=True)
@click.option("--out", type=Place(), default="partition.png", show_default=True)
def picture(name: str, partition: str, workers: int, seed: int, out: Path) -> None:
    """A picture of who holds what: workers by classes."""
    import torch

    needed("matplotlib", "report", "a picture")
    loaded, way = learning.load(name), learning.partition.read(partition)
    generator = torch.Generator().manual_seed(seed)
    parts = way(loaded.train_y, workers, generator, users=loaded.train_user)
    learning.partition.picture(parts, loaded.train_y, out)
    click.echo(f"the picture: {out}")
