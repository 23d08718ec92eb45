"""The benchmark of byzantium: every rule against the floor, straightforward torch and byzfl.

Prints tables, and writes bench.json, bench.png, growth.png and measured.md into the folder given by
--out, each section as soon as it is measured. `--out docs` renews the page of the documentation.
"""

import argparse
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import byzfl_bridge
import distributed
import growth
import page
import report
import sections
import training
from contestants import entries
from model import Section
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

N, D = 25, 1_199_882
HUGE_N = 1000
BUSY = 0.5  # load average from which figures are not to be trusted
Measure = Callable[[sections.Run], Section]
SECTIONS = (
    "rules",
    "coordinates",
    "explain",
    "after",
    "sizes",
    "offset",
    "attack",
    "first",
    "memory",
    "growth",
    "training",
    "distributed",
)
QUIET = 10.0  # seconds between lines about progress, where there is no terminal


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, help=f"rows of the matrix ({N})")
    parser.add_argument("--d", type=int, help=f"columns of the matrix ({D}; quick: 100000)")
    parser.add_argument("--repeats", type=int, help="interleaved repeats (11; quick: 3)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=18,
        help="after this long, what can be is left out, and rivals after a third of it (18)",
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
    chosen = parser.parse_args()
    chosen.n = chosen.n or N
    chosen.d = chosen.d or (100_000 if chosen.quick else D)
    chosen.repeats = chosen.repeats or (3 if chosen.quick else 11)
    if chosen.sections != ["training"] and not entries(chosen.n, chosen.only):
        parser.error(f"no rule matches {chosen.only!r}")
    return chosen


def plan(chosen: argparse.Namespace) -> dict[str, tuple[Measure, int]]:
    """Each section to run and the number of its steps on the progress bar."""
    mine, repeats = len(entries(chosen.n, chosen.only)), chosen.repeats
    by_coordinate = [
        e for n, _ in sections.COORDINATES for e in sections.by_coordinate(n, chosen.only)
    ]
    known: dict[str, tuple[Measure, int]] = {
        "rules": (sections.rules, mine * repeats),
        "coordinates": (sections.coordinates, len(by_coordinate) * repeats),
        "explain": (
            sections.explained,
            len(sections.by_coordinate(chosen.n, chosen.only)) * repeats,
        ),
        "after": (sections.after_torch, 2 * len(sections.AFTER) * repeats),
        "sizes": (sections.sizes, 2 * repeats),
        "offset": (sections.offset, 6 * repeats),
        "attack": (sections.under_attack, 3 * repeats),
        "first": (sections.first_call, sections.FIRST_CALLS),
        "memory": (lambda run: sections.peaks(run, run.n), mine + 1),
        "growth": (growth.growth, growth.STEPS),
        "training": (training.training, training.STEPS),
        "distributed": (distributed.all_reduce, distributed.STEPS),
    }
    planned = {key: known[key] for key in SECTIONS if key in chosen.sections}
    if chosen.huge:
        planned["huge"] = (lambda run: sections.peaks(run, HUGE_N, huge=True), mine)
    return planned


def why_not(key: str, chosen: argparse.Namespace) -> str | None:
    """One sentence if this machine cannot run a section."""
    if key in ("memory", "huge") and not Path("/proc/self/clear_refs").exists():
        return f"The section {key} is left out: peak memory can only be measured on Linux."
    rows = {"sizes": max(sections.SIZES), "huge": HUGE_N}.get(key, 2 * chosen.n)
    if 4 * rows * chosen.d > 0.7 * sections.physical_memory():
        return f"The section {key} is left out: its matrix does not fit into memory."
    return None


@contextmanager
def progress(status: Console, steps: int, started: float) -> Iterator[Callable[[str], None]]:
    """What is to be told of each step: a bar on a terminal; elsewhere a line now and then."""
    if status.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=status, transient=True) as bar:
            task = bar.add_task("", total=steps)
            yield lambda text: bar.update(task, advance=1, description=text)
        return
    done, told = 0, 0.0

    def tell(text: str) -> None:
        nonlocal done, told
        done += 1
        if monotonic() - told >= QUIET:
            told = monotonic()
            minutes, seconds = divmod(int(told - started), 60)
            line = f"{minutes:2d}:{seconds:02d}  step {done} of {steps}: {text}"
            status.print(line, soft_wrap=True)
            status.file.flush()

    yield tell


def main() -> None:
    chosen, started = options(), monotonic()
    # Under some of what is timed the rules say something with each call.
    logging.getLogger("byzantium").setLevel(logging.ERROR)
    output, status = Console(markup=False), Console(stderr=True, markup=False)
    if not output.is_terminal:
        output.width = 160
    chosen.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    status.print(report.processor())
    if load > BUSY:
        status.print(f"The machine is busy (load {load:.1f}): the figures will be rough.")
    byzfl = None
    if not chosen.skip_byzfl and "rules" in chosen.sections:
        try:
            byzfl = byzfl_bridge.load(Path(".bench/byzfl"))
        except byzfl_bridge.ByzflMissingError as missing:
            status.print(str(missing))
    planned, done = plan(chosen), []
    for key in list(planned):
        if reason := why_not(key, chosen):
            status.print(reason)
            del planned[key]

    settings = {key: getattr(chosen, key) for key in ("n", "d", "repeats")}
    settings |= {"byzfl": byzfl is not None, "load before": load}
    steps = sum(number for _, number in planned.values())
    with progress(status, steps, started) as step:
        run = sections.Run(
            n=chosen.n,
            d=chosen.d,
            repeats=chosen.repeats,
            only=chosen.only,
            sizes=sections.SIZES[:2] if chosen.quick else sections.SIZES,
            byzfl=byzfl,
            deadline=started + 20 * chosen.minutes,
            end=started + 60 * chosen.minutes,
            step=step,
            say=status.print,
        )
        for measure, _ in planned.values():
            section = measure(run)
            if section.results:
                done.append(section)
                report.show(output, section)
                report.write_json(chosen.out / "bench.json", settings, done)
                if plot := report.PLOTS.get(section.key):
                    status.print(plot(chosen.out, section))

    output.print(report.goal_table(done))
    if (chosen.n, chosen.d) != (N, D):
        status.print(f"The goals are meant for n = {N}, d = {D}; this was another matrix.")
    status.print(f"Written: {chosen.out / 'bench.json'}, {page.written(chosen.out)}")


if __name__ == "__main__":
    main()
