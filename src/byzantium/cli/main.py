"""The program `byzantium`: its help, its citation, and its errors."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

import byzantium as bz
from byzantium.cli.execution import INTERRUPTED, WRONG, interrupts
from byzantium.cli.terminal import err
from byzantium.core import BusyError, ByzantiumError, printable, printable_lines

CITATION = """\
@inproceedings{karimireddy2022byzantine,
  title     = {Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing},
  author    = {Karimireddy, Sai Praneeth and He, Lie and Jaggi, Martin},
  booktitle = {International Conference on Learning Representations},
  year      = {2022}
}"""


def _make_printable(record: logging.LogRecord) -> bool:
    """Make texts in the log printable: errors may quote files of others."""
    if isinstance(record.args, tuple):
        shown = (str(one) if isinstance(one, Exception | Path) else one for one in record.args)
        record.args = tuple(printable(one) if isinstance(one, str) else one for one in shown)
    return True


logging.getLogger("byzantium").addFilter(_make_printable)


class WrongUsage(click.ClickException):
    """An error in the arguments, or in a file that they name."""

    exit_code = WRONG


# So many new objects before the garbage collector looks at them: importing torch makes a million,
# and the default, 700, would take a tenth of the time of the import.
NEW_OBJECTS = 10_000


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Within it, garbage is collected less often."""
    before = gc.get_threshold()
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class ErrorSentences(click.Group):
    """A group of commands whose errors are printed as one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts(_leave), fewer_collections():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            err.print("Interrupted.")
            raise SystemExit(INTERRUPTED) from None
        except click.NoSuchOption as error:
            if meant := _abbreviated(error):
                options = " or ".join(map(repr, meant))
                hint = f"No such option {error.option_name!r}. Did you mean {options}?"
                raise click.UsageError(hint, error.ctx) from None
            raise
        except (BusyError, ImportError) as error:
            raise click.ClickException(printable_lines(str(error))) from error
        except (ByzantiumError, OSError) as error:
            raise WrongUsage(printable_lines(str(error))) from error


def _abbreviated(error: click.NoSuchOption) -> list[str]:
    """The options whose words have these initials: --learning-rate for --lr."""
    command = error.ctx.command if error.ctx else None
    flags = [flag for one in getattr(command, "params", ()) for flag in one.opts]
    initials = error.option_name.lstrip("-").lower()
    spelled = ("".join(word[:1] for word in flag.lstrip("-").split("-")) for flag in flags)
    found = [flag for flag, first in zip(flags, spelled, strict=True) if first == initials]
    return found if len(initials) > 1 else []


def _leave() -> None:
    raise KeyboardInterrupt


def _cite(ctx: click.Context, _: click.Parameter, cite: bool) -> None:
    if cite:
        click.echo(CITATION)
        ctx.exit()


@click.group(cls=ErrorSentences, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bz.__version__, package_name="byzantium")
@click.option(
    "--cite",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_cite,
    help="Show the paper in BibTeX, and exit.",
)
def main() -> None:
    """Byzantine-robust learning on heterogeneous data.

    Workers train one model together. Some of them attack, the honest ones hold different data, and
    the server must still find the mean of what the honest ones send.

    \b
    byzantium demo                     see the problem, and what helps, in a minute
    byzantium recommend --n 25 --f 3   find the rule for 25 workers of which 3 may be bad
    byzantium run --rule "Krum()"      train one model
    byzantium reproduce table2         make a table of the paper, beside its numbers
    byzantium report                   look at all results
    byzantium watch                    look at them while they are made

    Any command can be interrupted and started again: what is finished is not repeated, and the rest
    continues where it stopped. Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 stopped.

    Completion of names in bash: eval "$(_BYZANTIUM_COMPLETE=bash_source byzantium)"; in zsh and
    fish, write zsh_source or fish_source.
    """  # noqa: D301
