"""The benchmark of byzantium: every rule against the floor, straightforward torch and byzfl.

Prints tables, and writes bench.json, bench.png, growth.png and measured.md into the folder of
--out, each section as soon as it is measured. `--out docs` updates the page of the documentation.
"""

import argparse
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import adapters
import byzfl_bridge
import distributed
import growth
import page
import report
import sections
import training
import whole
from contestants import entries
from model import Section
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

N, D = 25, 1_199_882
HUGE_N = 1000
BUSY = 0.5  # load average from which figures are unreliable
Measure = Callable[[sections.Run], Section]
SECTIONS = (
    "rules",
    "coordinates",
    "explain",
    "weights",
    "after",
    "sizes",
    "offset",
    "attack",
    "first",
    "memory",
    "start",
    "recording",
    "plain",
    "clients",
    "trainings",
    "growth",
    "training",
    "distributed",
    "adapters",
)
INTERVAL = 10.0  # seconds between lines about progress, where there is no terminal


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, help=f"rows of the matrix ({N})")
    parser.add_argument("--d", type=int, help=f"columns of the matrix ({D}; quick: 100000)")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (11; quick: 3)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=18,
        help="after this time optional parts are omitted, and rivals after a third of it (18)",
    )
    parser.add_argument("--out", type=Path, default=Path(".bench"), help="output folder (.bench)")
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="only rules whose name matches this regex"
    )
    parser.add_argument(
        "--sections",
        nargs="+",
        choices=SECTIONS,
        default=SECTIONS,
        metavar="NAME",
        help=f"what to measure, of: {', '.join(SECTIONS)} (all)",
    )
    parser.add_argument("--skip-byzfl", action="store_true", help="do not install or measure byzfl")
    parser.add_argument("--quick", action="store_true", help="a small matrix, for a first look")
    parser.add_argument(
        "--huge", action="store_true", help=f"also weightings on {HUGE_N} rows (d = {D}: 4.8 GB)"
    )
    arguments = parser.parse_args()
    arguments.n = arguments.n or N
    arguments.d = arguments.d or (100_000 if arguments.quick else D)
    arguments.repeats = arguments.repeats or (3 if arguments.quick else 11)
    if arguments.sections != ["training"] and not entries(arguments.n, arguments.only):
        parser.error(f"no rule matches {arguments.only!r}")
    return arguments


def plan(arguments: argparse.Namespace) -> dict[str, tuple[Measure, int]]:
    """Each section to run and the number of its steps on the progress bar."""
    count, repeats = len(entries(arguments.n, arguments.only)), arguments.repeats
    by_coordinate = [
        e for n, _ in sections.COORDINATES for e in sections.by_coordinate(n, arguments.only)
    ]
    plans: dict[str, tuple[Measure, int]] = {
        "rules": (sections.rules, count * repeats),
        "coordinates": (sections.coordinates, len(by_coordinate) * repeats),
        "explain": (
            sections.explain,
            len(sections.by_coordinate(arguments.n, arguments.only)) * repeats,
        ),
        "weights": (
            sections.weights,
            len(sections.weighted(arguments.n, arguments.only)) * repeats,
        ),
        "after": (sections.after_torch, 2 * len(sections.AFTER) * repeats),
        "sizes": (sections.sizes, 2 * repeats),
        "offset": (sections.offset, 6 * repeats),
        "attack": (sections.under_attack, 3 * repeats),
        "first": (sections.first_call, sections.FIRST_CALLS),
        "memory": (lambda run: sections.peaks(run, run.n), count + 1),
        "start": (whole.start, whole.STARTS),
        "recording": (whole.recording, whole.BLOCKS),
        "plain": (whole.without_llvmlite, len(whole.WITHOUT_LLVMLITE)),
        "clients": (whole.clients, 1 + len(whole.MANY)),
        "trainings": (whole.trainings, 2 * len(training.JOBS)),
        "growth": (growth.growth, growth.STEPS),
        "training": (training.training, training.STEPS),
        "distributed": (distributed.all_reduce, distributed.STEPS),
        "adapters": (adapters.adapters, adapters.STEPS),
    }
    plans = {key: plans[key] for key in SECTIONS if key in arguments.sections}
    if arguments.huge:
        plans["huge"] = (lambda run: sections.peaks(run, HUGE_N, huge=True), count)
    return plans


def obstacle(key: str, arguments: argparse.Namespace) -> str | None:
    """The reason why this machine cannot run a section; None if it can."""
    if key in ("memory", "huge") and not Path("/proc/self/clear_refs").exists():
        return f"The section {key} is omitted: peak memory can only be measured on Linux."
    rows = {"sizes": max(sections.SIZES), "huge": HUGE_N}.get(key, 2 * arguments.n)
    if 4 * rows * arguments.d > 0.7 * sections.physical_memory():
        return f"The section {key} is omitted: its matrix does not fit into memory."
    return None


@contextmanager
def progress(status: Console, steps: int, started: float) -> Iterator[Callable[[str], None]]:
    """A function to call at each step: it moves a bar on a terminal; elsewhere it prints lines."""
    if status.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=status, transient=True) as bar:
            task = bar.add_task("", total=steps)
            yield lambda text: bar.update(task, advance=1, description=text)
        return
    done, last = 0, 0.0

    def print_step(text: str) -> None:
        nonlocal done, last
        done += 1
        if monotonic() - last >= INTERVAL:
            last = monotonic()
            minutes, seconds = divmod(int(last - started), 60)
            line = f"{minutes:2d}:{seconds:02d}  step {done} of {steps}: {text}"
            status.print(line, soft_wrap=True)
            status.file.flush()

    yield print_step


def main() -> None:
    arguments, started = options(), monotonic()
    # Some of the timed calls log a line each.
    logging.getLogger("byzantium").setLevel(logging.ERROR)
    output, status = Console(markup=False), Console(stderr=True, markup=False)
    if not output.is_terminal:
        output.width = 160
    arguments.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    status.print(report.processor())
    if load > BUSY:
        status.print(f"The machine is busy (load {load:.1f}): the figures will be rough.")
    byzfl = None
    if not arguments.skip_byzfl and {"rules", "trainings"} & set(arguments.sections):
        try:
            byzfl = byzfl_bridge.load(Path(".bench/byzfl"))
        except byzfl_bridge.ByzflMissingError as missing:
            status.print(str(missing))
    plans, done = plan(arguments), []
    for key in list(plans):
        if reason := obstacle(key, arguments):
            status.print(reason)
            del plans[key]

    settings = {key: getattr(arguments, key) for key in ("n", "d", "repeats")}
    settings |= {"byzfl": byzfl is not None, "load before": load}
    steps = sum(number for _, number in plans.values())
    with progress(status, steps, started) as step:
        run = sections.Run(
            n=arguments.n,
            d=arguments.d,
            repeats=arguments.repeats,
            only=arguments.only,
            sizes=sections.SIZES[:2] if arguments.quick else sections.SIZES,
            byzfl=byzfl,
            deadline=started + 20 * arguments.minutes,
            end=started + 60 * arguments.minutes,
            step=step,
            say=status.print,
        )
        for measure, _ in plans.values():
            section = measure(run)
            if section.results:
                done.append(section)
                report.show(output, section)
                report.write_json(arguments.out / "bench.json", settings, done)
                if plot := report.PLOTS.get(section.key):
                    status.print(plot(arguments.out, section))

    output.print(report.goal_table(done))
    if (arguments.n, arguments.d) != (N, D):
        status.print(f"The goals are meant for n = {N}, d = {D}; this was another matrix.")
    status.print(f"Written: {arguments.out / 'bench.json'}, {page.write(arguments.out)}")


if __name__ == "__main__":
    main()
