"""The program `byzantium`: what it is, and how it fails."""

from __future__ import annotations

from typing import Any

import click

import byzantium as bz
from byzantium.cli.options import INTERRUPTED, WRONG, err, interrupts
from byzantium.core import BusyError, ByzantiumError

CITATION = """\
@inproceedings{karimireddy2022byzantine,
  title     = {Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing},
  author    = {Karimireddy, Sai Praneeth and He, Lie and Jaggi, Martin},
  booktitle = {International Conference on Learning Representations},
  year      = {2022}
}"""


class WrongUsage(click.ClickException):
    """What was asked for cannot be."""

    exit_code = WRONG


class Teaching(click.Group):
    """Commands whose errors are one sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with interrupts(_leave):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            err.print("Interrupted.")
            raise SystemExit(INTERRUPTED) from None
        except (BusyError, ImportError) as error:
            raise click.ClickException(str(error)) from error
        except (ByzantiumError, OSError) as error:
            raise WrongUsage(str(error)) from error


def _leave() -> None:
    raise KeyboardInterrupt


def _cite(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(CITATION)
        ctx.exit()


@click.group(cls=Teaching, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bz.__version__, package_name="byzantium")
@click.option(
    "--cite", is_flag=True, is_eager=True, expose_value=False, callback=_cite, help="BibTeX."
)
def main() -> None:
    """Byzantine-robust learning on heterogeneous data.

    Some workers lie, the honest ones differ, and the server must still find their mean. See it in a
    minute with `byzantium demo`; train once with `byzantium run`; make a table of the paper with
    `byzantium reproduce table2`, and look at all results with `byzantium report`.

    Everything can be interrupted and started again: finished runs are kept, the others go on where
    they stopped. Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 interrupted.

    Completion for bash (zsh, fish likewise): eval "$(_BYZANTIUM_COMPLETE=bash_source byzantium)"
    """
