"""Options that several commands have."""

from __future__ import annotations

import dataclasses
import functools
import os
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

import byzantium as bz
from byzantium import engines
from byzantium.core.options import former_names, options_of
from byzantium.runs import PLUGIN_HELP, Processes, Run, plugins

MAX_JOBS = 1024
Command = Callable[..., Any]


class FilePath(click.Path):
    """A path that can be opened, printed, and written into a report."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = os.fsdecode(value)
        if "\0" in text or text != text.encode(errors="replace").decode():
            self.fail(f"{text!r} must be UTF-8, and without null bytes.", param, ctx)
        return super().convert(value, param, ctx)


def members(part: str, base: type = object) -> list[str]:
    """The names that a field of a run can have; of classes, those that derive from a base."""
    table = plugins.tables()[part]
    return [name for name, one in table.items() if base is object or issubclass(one, base)]


def complete(names: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """Completion by names, which are looked up when somebody completes."""
    return lambda ctx, param, incomplete: [n for n in names() if n.startswith(incomplete)]


# Completion of the values of options and arguments with these names.
COMPLETIONS = {
    "rule": complete(lambda: [f"{name}()" for name in members("rule", bz.Aggregator)]),
    "attack": complete(lambda: [f"{name}()" for name in members("attack")]),
    "worker": complete(lambda: [f"{name}()" for name in members("worker")]),
    **{
        part: complete(functools.partial(members, part))
        for part in ("data", "partition", "model", "loss", "clock")
    },
}


def _set_data_folder(ctx: click.Context, _: click.Parameter, folder: Path | None) -> None:
    if folder is not None:
        os.environ["BYZANTIUM_DATA"] = str(folder)  # also for the processes that are started


def _load_plugins(ctx: click.Context, _: click.Parameter, files: tuple[Path, ...]) -> None:
    plugins.load_installed()
    for file in files:
        plugins.load_plugin(file)


def stacked(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: Command) -> Command:
        return functools.reduce(lambda inner, option: option(inner), reversed(options), command)

    return decorate


def count_option(
    flag: str, text: str, default: int | None = None, least: int = 1, most: int | None = None
) -> Callable[[Command], Command]:
    """An option that is a whole number; its default, if there is one, is shown in the help."""
    kind = click.IntRange(least, most)
    return click.option(flag, type=kind, default=default, show_default=True, help=text)


def folder_option(default: str, text: str = "The folder of results.") -> Callable[..., Any]:
    """The option of the folder of results."""
    kind = FilePath(file_okay=False)
    return click.option(
        "--out", "results", type=kind, default=default, show_default=True, help=text
    )


results_option = folder_option(
    "results", "The folder of results, in which every run has a folder of its own."
)
results_argument = click.argument(
    "results", type=FilePath(exists=True, file_okay=False), default="results"
)
plugin_option = click.option(
    "--plugin",
    type=FilePath(dir_okay=False),
    multiple=True,
    expose_value=False,
    is_eager=True,  # before options that name what it defines
    callback=_load_plugins,
    help=PLUGIN_HELP,
)
data_option = click.option(
    "--data-dir",
    type=FilePath(exists=True, file_okay=False),
    expose_value=False,
    callback=_set_data_folder,
    help="The folder with the files of data sets.  [default: what the environment variable "
    "BYZANTIUM_DATA names]",
)


address_option = click.option(
    "--address",
    help="Where the head of the Ray cluster is, as host:port.  [default: auto, the cluster "
    "that this machine belongs to]",
)


def engine_options(command: Command) -> Command:
    """The options that say where jobs run; the command gets an `engine`."""

    @functools.wraps(command)
    def with_engine(*, kind: str, address: str | None, jobs: int | None, **options: Any) -> Any:
        engine = ray_engine(kind, address, jobs) or Processes(jobs or 1)
        return command(engine=engine, **options)

    return stacked(
        click.option(
            "--engine",
            "kind",
            type=click.Choice(["processes", "ray"]),
            default="processes",
            show_default=True,
            help="Where jobs run: in processes of this machine, or on a Ray cluster whose nodes "
            "share the folder of results.",
        ),
        address_option,
        count_option(
            "--jobs",
            "How many jobs run at a time; they share the cores of this machine. On Ray each has a "
            "core of its own.  [default: 1; on Ray, the cores of the cluster]",
            most=MAX_JOBS,
        ),
    )(with_engine)


def ray_engine(kind: str, address: str | None, jobs: int | None = None) -> engines.Ray | None:
    """The engine of a cluster; None for another engine."""
    if kind == "ray":
        return engines.Ray(address or "auto", jobs)
    if address is not None:
        raise click.UsageError("--address is for --engine ray")
    return None


n_option = click.option(
    "--n",
    type=click.IntRange(min=1),
    required=True,
    help="How many workers (or vectors) there are, Byzantine ones included.",
)
f_option = click.option(
    "--f",
    type=click.IntRange(min=0),
    required=True,
    help="How many of them may be Byzantine: too few is fatal, one too many costs little.",
)
track_option = click.option(
    "--track",
    type=click.Choice(["mlflow", "wandb", "tensorboard"]),
    multiple=True,
    help="Also send parameters, metrics and results to an experiment tracker, through its own "
    "library. May be given several times.",
)
until_option = count_option(
    "--until",
    "Stop each run after this round for now; the same command without it continues from there.",
)


version_options = stacked(
    count_option(
        "--seeds", "How many times each cell is trained, with seeds 0, 1, ...  [default: 3]"
    ),
    count_option("--rounds", "How many rounds each run has.  [default: as in the paper]"),
    click.option(
        "--model",
        help="The model to train; mlp is far faster than cnn.  [default: the paper's, cnn]",
    ),
    click.option(
        "--data",
        help="The data set to train on.  [default: the paper's, mnist]",
        shell_complete=COMPLETIONS["data"],
    ),
    click.option(
        "--only",
        help="Make only the cells that have all of these words, such as 'krum mimic s=2'. A word "
        "is a value (krum, noniid, 0.9) or a label with its value (momentum=0.9).",
    ),
    click.option(
        "--dropout",
        type=click.Choice(["fresh", "shared"]),
        help="Whether each worker draws its dropout anew in each round, or all have the same in "
        "all rounds.  [default: fresh; with --released shared]",
    ),
    click.option(
        "--released",
        is_flag=True,
        help="Repeat the runs that the authors released, with their random numbers: tables 1 to 4 "
        "and figure-main, seeds 0 to 2.",
    ),
)
"""The options of a cheaper version of an artifact."""


def field_options(names: Sequence[str]) -> Callable[[Command], Command]:
    """An option for each of these fields of a run, in the order of the fields."""
    return stacked(*(_field_option(field) for field in options_of(Run) if field.name in names))


def _field_option(field: dataclasses.Field[Any]) -> Callable[[Command], Command]:
    name, text = field.name, field.metadata["help"]
    if name == "plugin":
        return plugin_option
    flag, hint = "--" + name.replace("_", "-"), typing.get_type_hints(Run)[name]
    kind = (typing.get_args(hint) or (hint,))[0]
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    text += "" if default is None else f" [default: {default}]"
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", default=None, help=text)
    if typing.get_origin(hint) is Literal:
        kind = click.Choice(typing.get_args(hint))
    former = [f"--{former_names(Run)[name]}"] if name in former_names(Run) else []
    return click.option(
        *(flag, *former, name),
        type=kind if name != "record" else str,
        help=text,
        shell_complete=COMPLETIONS.get(name),
    )


run_options = field_options([field.name for field in options_of(Run)])
"""An option for each field of a run."""
