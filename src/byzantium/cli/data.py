"""`data`: fetch data sets, verify them, and draw how they are divided."""

from __future__ import annotations

from pathlib import Path

import click

from byzantium.cli.execution import FAILED
from byzantium.cli.main import main
from byzantium.cli.options import FilePath, complete, data_option, members, plugin_option
from byzantium.cli.terminal import out
from byzantium.core import import_optional


@main.group()
def data() -> None:
    """Fetch data sets, verify them, and draw who holds what."""


name_argument = click.argument("name", shell_complete=complete(lambda: members("data")))


@data.command()
@name_argument
@data_option
@plugin_option
def fetch(name: str) -> None:
    """Find the files of a data set, or download them.

    What is not on this machine is downloaded into the user's cache.

    \b
    byzantium data fetch mnist
    """  # noqa: D301
    from byzantium.data import load

    out.print(str(load(name)))


@data.command()
@name_argument
@data_option
def verify(name: str) -> None:
    """Say of each file whether it is the one that was published.

    \b
    byzantium data verify mnist
    """  # noqa: D301
    from byzantium.data import datasets

    files = datasets.verify(name)
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
@click.option(
    "--partition",
    default="by_label()",
    show_default=True,
    help="How the training samples are dealt to the workers: `byzantium list partitions`.",
)
@click.option("--workers", default=20, show_default=True, help="How many honest workers there are.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    default=0,
    show_default=True,
    help="The seed of what is dealt at random.",
)
@click.option(
    "--out",
    type=FilePath(),
    default="partition.png",
    show_default=True,
    help="The file to draw; its ending, such as .png or .pdf, says in which format.",
)
def picture(name: str, partition: str, workers: int, seed: int, out: Path) -> None:
    """Draw how many samples of each class each worker holds.

    \b
    byzantium data picture digits --partition "dirichlet(0.1)"
    """  # noqa: D301
    import torch

    from byzantium.data import load
    from byzantium.data import partition as partitions

    import_optional("matplotlib", "report", "a picture")
    loaded, way = load(name), partitions.read(partition)
    generator = torch.Generator().manual_seed(seed)
    parts = way(loaded.train_y, workers, generator, users=loaded.train_user)
    partitions.picture(parts, loaded.train_y, out)
    click.echo(f"the picture: {out}")
