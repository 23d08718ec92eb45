"""`demo`: why the mean and robust rules are not enough, and what helps."""

from __future__ import annotations

from pathlib import Path

from byzantium.cli.execution import execute_jobs, print_gaps
from byzantium.cli.main import main
from byzantium.cli.options import MAX_JOBS, count_option, folder_option
from byzantium.cli.report_files import check_libraries, write_report
from byzantium.cli.terminal import out
from byzantium.reports import demo as demonstration
from byzantium.runs import Processes, Snapshot, Store


@main.command()
@folder_option("demo")
@count_option("--rounds", "How many rounds each of the 35 runs has.", 300)
@count_option(
    "--jobs", "How many runs are trained at a time; they share the cores.", 2, most=MAX_JOBS
)
def demo(results: Path, rounds: int, jobs: int) -> None:
    """See why the mean and robust rules are not enough, and what helps.

    25 workers train on handwritten digits, and 5 of them attack. The honest ones hold different
    digits. Seven rules meet four attacks and none. It takes about a minute, and ends in a table and
    a page to look at.

    \b
    byzantium demo
    """  # noqa: D301
    store, runs = Store(results), demonstration.runs(rounds)
    check_libraries(store)
    after = execute_jobs(runs.values(), store, Processes(jobs))
    snapshot = Snapshot(results, after)
    for part in demonstration.conclusion(runs, snapshot):
        out.print(part)
    out.print(f"the page: {write_report(snapshot, drawn=False).page}", soft_wrap=True)
    print_gaps(runs.values())
