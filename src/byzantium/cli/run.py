"""`run`: train one model, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from byzantium.cli import options as opt
from byzantium.cli.execution import check_unfinished, execute_jobs
from byzantium.cli.main import main
from byzantium.cli.terminal import out
from byzantium.cli.track import tracking
from byzantium.core.options import present_names
from byzantium.runs import Processes, Run, Store, read


@main.command()
@click.option(
    "--config",
    type=opt.FilePath(exists=True, dir_okay=False),
    help="A TOML or JSON file with these options by name, such as local_steps = 5; options on the "
    "command line override it.",
)
@opt.results_option
@opt.until_option
@opt.data_option
@opt.track_option
@opt.run_options
def run(
    config: Path | None,
    results: Path,
    until: int | None,
    track: tuple[str, ...],
    **options: Any,
) -> None:
    """Train one model, once.

    The same command again continues where it was stopped or, if it is done, shows the result.

    \b
    byzantium run --rule "Krum()" --attack "Mimic()"
    byzantium run --rule "AgnosticClipping(b=0.6)" --f 3 --attack "Mimic()"
    byzantium run --rule "RootMatching()" --root 10 --attack "Mimic()"
    """  # noqa: D301
    values = present_names(Run, read(config)) if config else {}
    values.pop("kind", None)
    written = {name: value for name, value in options.items() if value is not None}
    if "record" in written:
        written["record"] = [word for word in written["record"].split(",") if word]
    job, store = Run.of({**values, **written}), Store(results)
    stored = store.results([job])
    check_unfinished(stored)
    with tracking(track, results, reports=True) as trackers:
        if stored[0].done:
            trackers.send(stored[0])
        (result,) = execute_jobs([job], store, Processes(1), until, stored, follow=trackers.show)
    text = f"done before: {result.ending}" if stored[0].done else result.ending
    if result.accuracy is not None:
        text += f", accuracy {result.accuracy:.2f} % (mean of the last five evaluations)"
    elif result.measured is not None:
        text += f", test loss {result.measured:.4g} (mean of the last five evaluations)"
    if (success := result.mean_of_last("success_rate")) is not None:
        text += f", success rate of the backdoor {success:.2f} %"
    if gap := job.gap():
        text += f"; no guarantee: {gap}"
    if limit := job.beyond_limit(result.metrics):
        text += f"; {limit}"
    out.print(text, soft_wrap=True)
    if (alone := job.root_alone()) is not None:
        from byzantium.reports.promises import root_alone

        text = root_alone(alone, store.results([alone]))
        out.print(f"root alone: {text}", soft_wrap=True, highlight=False)
    if graph := job.graph():
        out.print(graph, soft_wrap=True, highlight=False)
    out.print(f"in {result.pack or result.folder}", soft_wrap=True, highlight=False)
