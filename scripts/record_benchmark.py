"""Record finished runs of the benchmark in the package, and write docs/benchmark.md from them.

    byzantium benchmark --jobs 2 --out benchmark
    python scripts/record_benchmark.py benchmark

Pipelines that are complete replace their recorded rows, which name the commit of this checkout.
"""

import platform
import subprocess
import sys
from pathlib import Path

from byzantium.papers import benchmark, compare
from byzantium.papers.benchmarks import SUITE, SUITES
from byzantium.reports.ranking import write_page
from byzantium.runs import Store
from byzantium.tables import Ranking, ranking_rows

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "src/byzantium/papers/reference/benchmark.json"


def processor() -> str:
    """The name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def main(folder: str) -> None:
    """Record the runs of a folder."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    attacks = tuple(SUITES[SUITE])
    known = Ranking.read(RECORDED).rows if RECORDED.exists() else ()
    table = compare(benchmark(), Store(folder))
    whole = {
        cell.labels["aggregator"]: not any(
            other.missing
            for other in table.cells
            if other.labels["aggregator"] == cell.labels["aggregator"]
        )
        for cell in table.cells
    }
    rows = [row for row in ranking_rows(table, commit) if whole[row.name]]
    ranking = Ranking(SUITE, attacks, known, processor()).with_rows(rows)
    ranking.write(RECORDED)
    if ranking.rows:
        write_page(ROOT / "docs/benchmark.md", ranking)
    print(f"{len(rows)} pipelines recorded, {len(ranking.rows)} in all")


main(sys.argv[1])
