"""Record finished runs of the benchmark in the package, and write docs/benchmark.md from them.

    byzantium benchmark --jobs 2 --out benchmark
    python scripts/record_benchmark.py benchmark

A pipeline's results, of either level, replace those of its recorded row, in the splits in which all
its runs are there. The row names the commit of this checkout, or the one after the folder, which
made the runs, and the commits of the splits that stay. The page names all processors that computed
rows.
"""

import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from byzantium.papers import LEVELS, benchmark, compare
from byzantium.papers.benchmarks import SUITE, SUITES
from byzantium.reports.ranking import write_page
from byzantium.runs import Store
from byzantium.tables import Ranking, Row, ranking_rows

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "src/byzantium/papers/reference/benchmark.json"


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def checkout() -> str:
    """The commit of this checkout."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def with_splits(former: Row | None, row: Row) -> Row:
    """A row, with the splits that only its former version has."""
    if former is None or former.scores.keys() <= row.scores.keys():
        return row
    commits = dict.fromkeys([*former.commit.split(", "), row.commit])
    return replace(row, scores={**former.scores, **row.scores}, commit=", ".join(commits))


def main(folder: str, commit: str) -> None:
    """Record the runs of a folder, which a commit made."""
    standard, full = (benchmark(level=level) for level in LEVELS)
    cells = {cell.name: cell for cell in (*standard.cells, *full.cells)}
    table = compare(replace(standard, cells=tuple(cells.values())), Store(folder))
    unfinished = {
        (cell.labels["aggregator"], cell.labels["split"]) for cell in table.cells if cell.missing
    }
    finished = [
        cell
        for cell in table.cells
        if (cell.labels["aggregator"], cell.labels["split"]) not in unfinished
    ]
    recorded = Ranking.read(RECORDED) if RECORDED.exists() else None
    known = recorded.rows if recorded is not None else ()
    former = {(row.rule, row.root): row for row in known}
    rows = [
        with_splits(former.get((row.rule, row.root)), row)
        for row in ranking_rows(replace(table, cells=tuple(finished)), commit)
    ]
    machines = [processor()] if recorded is None else [*recorded.machine.split(", "), processor()]
    machine = ", ".join(dict.fromkeys(machines))
    ranking = Ranking(SUITE, tuple(SUITES[SUITE]), known, machine).with_rows(rows)
    ranking.write(RECORDED)
    if ranking.rows:
        write_page(ROOT / "docs/benchmark.md", Ranking.read(RECORDED))
    print(f"{len(rows)} pipelines recorded, {len(ranking.rows)} in all")


main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else checkout())
