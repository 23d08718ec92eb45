"""`pack`: folders of results in a few files, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.progress import Progress

from byzantium.cli.main import main
from byzantium.cli.options import results_argument
from byzantium.cli.terminal import err, out
from byzantium.papers import MAKERS, Requests, artifact
from byzantium.runs import Job, Store
from byzantium.runs import pack as pack_folders
from byzantium.runs import unpack as unpack_folders


@main.command()
@results_argument
@click.option(
    "--unpack",
    is_flag=True,
    help="Make folders of all runs in packs again, with the same files, and remove the packs.",
)
def pack(results: Path, unpack: bool) -> None:
    """Put the folders of many runs into a few files, to commit or send them.

    RESULTS is the folder of results, by default `results`. Every run becomes one line of a file in
    it: table2.jsonl for the runs of an artifact that was asked for, and run.jsonl,
    certification.jsonl and so on for all others. All commands read these files like folders; a run
    that has both is read from its folder. The same command again adds new folders.

    A run that another process works on stays a folder, and so does one that continues from a
    checkpoint. Models and logs stay where they are. Nothing is lost if the command is interrupted:
    a folder is removed after its pack was written and read back.

    \b
    byzantium pack results
    byzantium pack results --unpack
    """  # noqa: D301
    store = Store(results)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("unpacking" if unpack else "packing", total=None)

        def watch(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if unpack:
            changes = unpack_folders(store, watch)
        else:
            changes = pack_folders(store, _pack_names(store), watch)
    for what, reason in changes.skipped.items():
        err.print(f"{what} stays as it is: {reason}", soft_wrap=True, highlight=False)
    for path, count in changes.moved.items():
        done = f"{path}: {count} {'unpacked' if unpack else 'packed'}"
        out.print(done, soft_wrap=True, highlight=False)
    if not changes.moved:
        out.print("nothing to unpack" if unpack else "nothing to pack")
    if changes.remainders:
        out.print(f"{len(changes.remainders)} folders stay, with models or logs alone")


def _pack_names(store: Store) -> Callable[[Job], str]:
    """The pack of each job: the first artifact that was asked for and has it, else its kind."""
    asked = sorted(Requests(store), key=lambda request: list(MAKERS).index(request[0]))
    names: dict[str, str] = {}
    for name, version in asked:
        for job in artifact(name, version).jobs:
            names.setdefault(job.identity, name)
    return lambda job: names.get(job.identity, type(job).__name__.lower())
