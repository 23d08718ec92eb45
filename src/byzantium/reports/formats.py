"""Tables as files, ready for a paper: Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from byzantium.core import ByzantiumError, files
from byzantium.reports import measurements, text_tables
from byzantium.reports.escaping import as_code, in_csv, in_latex, in_markdown
from byzantium.reports.text_tables import Entry, TextTable
from byzantium.runs import Result, Run, Store
from byzantium.tables import ResultTable, worst
from byzantium.tables.results import grouped


def write(path: Path, tables: Sequence[ResultTable]) -> None:
    """Write tables to a file, in the format of its ending: .md, .tex or .csv.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "mine.csv"), [])
    ...     print(Path(folder, "mine.csv").read_text().strip())
    mean,deviation,seeds,diverged,missing,worst
    """
    files.write(path, form(path)(tables))


def form(path: Path) -> Callable[[Sequence[ResultTable]], str]:
    """The function that makes the text of a file, by the file's ending."""
    if path.suffix not in FORMS:
        forms = ", ".join(FORMS)
        raise ByzantiumError(f"a table is written to a file that ends in {forms}, got {path.name}")
    return FORMS[path.suffix]


def markdown(tables: Sequence[ResultTable]) -> str:
    """Tables of runs as Markdown, each under its title."""
    return "\n".join(part for table in tables for part in section(table))


def section(table: ResultTable) -> list[str]:
    """A table of runs as paragraphs of Markdown, under its title."""
    artifact = table.artifact
    fixed = in_markdown(f"Fixed: {artifact.fixed}. {artifact.notes}")
    paragraphs = [fixed, in_markdown(text_tables.meaning(table))]
    if not table.complete:
        paragraphs.append(text_tables.outcome(table))
    title = f"### {in_markdown(artifact.title)}"
    parts = [title, *paragraphs, markdown_table(text_tables.text_table(table)).rstrip("\n")]
    return [f"{part}\n" for part in parts]


def markdown_table(table: TextTable) -> str:
    """A table as Markdown."""
    rules = ["---" if k < table.labels else "---:" for k in range(len(table.head))]
    head = [in_markdown(name) for name in table.head]
    rows = [[_toned(entry) for entry in row] for row in table.rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rules, *rows])


def _toned(entry: Entry) -> str:
    if entry.tone == "code":
        return as_code(entry.text, cell=True)
    text = in_markdown(entry.text)
    return f"**{text}**" if entry.tone in ("bad", "best") else text


def surroundings(results: Iterable[Result]) -> str:
    """The machines and versions with which results were computed, and how long that took."""
    done = [result.summary for result in results if result.done]
    if not done:
        return "No run is finished yet.\n"
    times: dict[str, list[float]] = {}
    for summary in done:
        times.setdefault(_machine(summary), []).append(summary.get("seconds", 0.0))
    lines = [
        f"- {in_markdown(machine)}: {how_many(len(seconds))}, {text_tables.duration(sum(seconds))}"
        for machine, seconds in times.items()
    ]
    total = sum(sum(seconds) for seconds in times.values())
    head = (
        f"{how_many(len(done))}, {total / 3600:.1f} hours of computing (the runs' times, added up):"
    )
    return "\n".join([head, "", *lines]) + "\n"


def _machine(summary: Mapping[str, Any]) -> str:
    get = summary.get
    threads = get("threads", "?")
    return (
        f"{get('machine', 'unknown machine')}; Python {get('python', '?')}, "
        f"torch {get('torch', '?')}, byzantium {get('byzantium', '?')} "
        f"(numerics {get('numerics', '?')}), {threads} thread{'s' * (threads != 1)} a run"
    )


def how_many(count: int) -> str:
    """A number of runs in words: "1 run", "2 runs"."""
    return f"{count} run{'s' * (count != 1)}"


def latex(tables: Sequence[ResultTable]) -> str:
    """Tables as LaTeX, for the package booktabs."""
    return "\n".join(["% \\usepackage{booktabs}", *map(_latex, tables)])


def _latex(table: ResultTable) -> str:
    texts, artifact = text_tables.text_table(table), table.artifact
    parts = [artifact.title, artifact.fixed, artifact.notes, text_tables.meaning(table)]
    caption = in_latex(". ".join(part.rstrip(".") for part in parts if part) + ".")
    columns = "l" * texts.labels + "r" * (len(texts.head) - texts.labels)
    rows = [" & ".join(_strong(entry) for entry in row) for row in texts.rows]
    lines = [
        r"\begin{table}",
        r"  \centering",
        f"  \\caption{{{caption}}}",
        f"  \\label{{tab:{artifact.stem}}}",
        f"  \\begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {' & '.join(map(in_latex, texts.head))} \\\\",
        r"    \midrule",
        *(f"    {row} \\\\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _strong(entry: Entry) -> str:
    text = in_latex(entry.text)
    return f"\\textbf{{{text}}}" if entry.tone in ("bad", "best") else text


NUMBERS = ("mean", "deviation", "seeds", "diverged", "missing", "worst")


def as_csv(tables: Sequence[ResultTable]) -> str:
    """Tables as CSV: a row for each cell, with all digits.

    The column `worst` is 1 for the worst attack on a rule, 0 for others.
    """
    rows = [row for table in tables for row in _rows(table)]
    labels = dict.fromkeys(name for row in rows for name in row if name not in NUMBERS)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*labels, *NUMBERS], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: in_csv(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def results_csv(store: Store) -> str:
    """All results of a folder as CSV: a row for each, with its settings."""
    frame = store.table()
    for name in frame.columns:
        if any(isinstance(value, str) for value in frame[name]):
            frame[name] = frame[name].map(in_csv)
    text: str = frame.to_csv(index=False)
    return text


def _rows(table: ResultTable) -> list[dict[str, Any]]:
    names, _ = text_tables.axes(table)
    judged = text_tables.has_worst_case(table)
    lowest = [worst(cells) for cells in grouped(table.cells, names).values()] if judged else []
    rows = []
    for cell in table.cells:
        job, values = cell.jobs[0], measurements.numbers(table, cell)
        attack = {"attack": job.attack} if isinstance(job, Run) else {}
        rows.append(
            {
                "table": table.artifact.title,
                **attack,
                **cell.labels,
                "mean": fmean(values) if values else "",
                "deviation": stdev(values) if len(values) > 1 else "",
                "seeds": len(values),
                "diverged": cell.diverged,
                "missing": cell.missing,
                "worst": int(any(cell is one for one in lowest)),
            }
        )
    return rows


FORMS: dict[str, Callable[[Sequence[ResultTable]], str]] = {
    ".md": markdown,
    ".tex": latex,
    ".csv": as_csv,
}
