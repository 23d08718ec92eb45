"""The page docs/measured.md, from the bench's results: every figure, and which goals are met.

`python benchmarks/bench.py --out docs` measures and writes it; `python benchmarks/page.py` writes
it again from docs/bench.json, without measuring.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from model import Figure, Goal, Result, Section, goal_rows

HEAD, DISTRIBUTED, INTEL = (
    Path(__file__).with_name(f"measured-{name}.md") for name in ("head", "distributed", "intel")
)
NOTES = {
    "rules": "![Time over the floor: ours, straightforward torch and byzfl](bench.png)",
    "coordinates": (
        "Here each call gets another matrix, as in training, and reads it from memory. *Always the "
        "same*: one of 13 rows, 62 MB, is read again and again. If it fits into a cache of the "
        "machine, the mean is as fast as that cache, and sorting takes the time of its "
        "instructions. Then the ratios are larger: in another run of the same command 1.35 x "
        "(median), 1.94 x (trimmed mean) and 2.82 x (MeaMed), where the mean took 0.76 ms. When "
        "memory itself was quick, and another matrix took the mean 1.1 ms, it was 1.05 x, 1.35 x "
        "and 1.95 x."
    ),
    "weights": (
        "`rule(updates, weights=w)` over `rule(updates)`; each call reads another matrix from "
        "memory ([Weights](do/weights.md))."
    ),
    "after": (
        "Directly after an operation of torch its threads wait in a loop for more work, for some "
        "milliseconds. Our kernels run on these threads, so that it costs nothing."
    ),
    "attack": "What attackers can make us spend: see [Limits](limits.md).",
    "clients": (
        "Each rule in a process of its own, the faster of two calls. Memory is the most of the "
        "first call beside X, in matrices of n x n float64."
    ),
    "start": (
        "Each command in a process of its own; both are compiled to bytecode, as they are where "
        "they are installed."
    ),
    "recording": (
        "By default a run records the loss, the error of the aggregate and how much Byzantine "
        "workers counted, and saves checkpoints."
    ),
    "plain": (
        "Without: in plain torch, as where llvmlite cannot be used; one line in the log says so. "
        "The same code serves other devices, such as GPUs, where it has not been measured."
    ),
    "trainings": (
        "*byzfl*: its own clients and server, as its program calls them; attackers compute nothing "
        "there. *Flower*: `FedTrimmedAvg` in its simulation, with one process of Ray for each "
        "core, in which 25 clients take a local step and send the model; none attacks. The model, "
        "the data, the batches and the learning rate are the same for all."
    ),
    "growth": (
        "Milliseconds; in brackets, over a model of bytes read, products and comparisons. Below "
        "d = 10⁶ what a call costs by itself is more than its passes.\n\n"
        "![Time over n and d, for each rule, beside the model](growth.png)"
    ),
    "training": (
        "A round is all of it: gradients, momentum, attack, aggregation, step. Its passes are "
        "faster than torch's own, because channels lie last in memory and the pooling's gradient "
        "is not copied."
    ),
    "distributed": (
        "`python benchmarks/bench.py --sections distributed`: the fastest of 8 to 60 interleaved "
        "repeats, of gathering the fastest of 2. With 1.2M numbers the ranks are started "
        "several times, because starts differ by a tenth or more from beginning to end: shown is, "
        "for each rule, the start in the middle by `ours / all_reduce`. "
        "Below is [a formula](#the-cost-of-an-all-reduce) that predicts it."
    ),
}


def sections_of(content: dict[str, Any]) -> list[Section]:
    return [
        Section(
            section["key"],
            section["title"],
            [
                Result(r["name"], r["seconds"], [Figure(**figure) for figure in r["figures"]])
                for r in section["results"]
            ],
        )
        for section in content["sections"]
    ]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Markdown, whose first column is text and whose others are numbers."""
    lines = [row(*head), row("---", *["---:"] * (len(head) - 1))]
    return [*lines, *(row(*cells) for cells in rows), ""]


def milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def goals(content: dict[str, Any], sections: list[Section]) -> list[str]:
    """How many goals are missed, and the table of all."""
    goals = {key: Goal(**values) for key, values in content["goals"].items()}
    rows = goal_rows(sections, goals)
    missed = sum(not one.met for one in rows)
    verdict = f"{missed} of {len(rows)} goals are missed." if missed else "All goals are met."
    lines = [f"**{verdict}**", "", row("", "goal", "measured", ""), row("---", "---", "---", "---")]
    lines += [row(*one[:3], "" if one.met else "**missed**") for one in rows]
    return [*lines, ""]


def section_tables(section: Section) -> list[str]:
    """One section: a table for each quantity."""
    if section.key == "growth":
        return growth(section)
    kinds: dict[str, list[Result]] = {}
    for result in section.results:
        kind = result.figures[0].quantity if result.figures else ""  # a time alone
        kinds.setdefault(kind, []).append(result)
    lines = []
    for results in kinds.values():
        times = list(dict.fromkeys(name for r in results for name in r.seconds))
        quantities = [f.quantity for r in results for f in r.figures if f.quantity != "difference"]
        quantities = list(dict.fromkeys(quantities))
        rows = []
        for result in results:
            texts = {figure.quantity: figure.text for figure in result.figures}
            numbers = [milliseconds(s) if (s := result.seconds.get(t)) else "" for t in times]
            rows.append([f"`{result.name}`", *numbers, *(texts.get(q, "") for q in quantities)])
        lines += table(["", *(f"{name}, ms" for name in times), *quantities], rows)
    return lines


def growth(section: Section) -> list[str]:
    """A row for each rule and n, a column for each d."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for result in section.results:
        rule, n, d = result.name.split(", ")
        ours, model = result.seconds["ours"], result.seconds["model"]
        cells.setdefault((rule, n), {})[d] = f"{milliseconds(ours)} ({ours / model:.1f} x)"
    widths = sorted({d for row in cells.values() for d in row}, key=lambda d: float(d[4:]))
    rows = [[f"`{rule}`, {n}", *(f.get(d, "") for d in widths)] for (rule, n), f in cells.items()]
    return table(["", *widths], rows)


def page(content: dict[str, Any]) -> str:
    sections = sections_of(content)
    lines = ["# Measured", "", *goals(content, sections), "## How it was measured", ""]
    lines += [HEAD.read_text(encoding="utf-8").format_map(content["machine"])]
    lines += ["## Every figure", ""]
    for section in sections:
        lines += ["<details>", f"<summary>{section.title}</summary>", ""]
        if note := NOTES.get(section.key):
            lines += [note, ""]
        lines += [*section_tables(section), "</details>", ""]
    lines += [file.read_text(encoding="utf-8") for file in (DISTRIBUTED, INTEL)]
    return "\n".join(lines)


def write(folder: Path) -> Path:
    content = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    path = folder / "measured.md"
    path.write_text(page(content), encoding="utf-8")
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("docs"), help="with bench.json"
    )
    print(write(parser.parse_args().folder))
