"""Tables on the terminal, JSON and plots, all made from the same sections."""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from model import GOALS, Figure, Section, goal_rows
from rich.console import Console
from rich.table import Table
from rich.text import Text

from byzantium import core

SHADES = ("#9ecae1", "#4292c6", "#08519c", "#e09f3e", "#9e2a2b")
COLORS = {"ours": "#1b6ca8", "straightforward": "#e09f3e", "byzfl": "#9e2a2b"}


def machine() -> dict[str, Any]:
    """The machine and its software, without the name of the host and without paths."""
    return {
        "cpu": core.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": date.today().isoformat(),
    }


def processor() -> str:
    facts = machine()
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['threads']} threads of torch"


def cell(figure: Figure) -> Text:
    if figure.goal is None:
        return Text(figure.text if figure.unit else f"{figure.value:.0e}")
    bound = f"  ({GOALS[figure.goal].requirement})"
    return Text.assemble((figure.text, "green" if figure.met else "bold red"), (bound, "dim"))


def columns(section: Section) -> tuple[list[str], list[str]]:
    """The contestants whose seconds are shown, and the quantities, in order of appearance."""
    wide = section.key == "rules"
    seconds = [c for r in section.results for c in r.seconds if c == "ours" or not wide]
    quantities = [f.quantity for result in section.results for f in result.figures]
    return list(dict.fromkeys(seconds)), list(dict.fromkeys(quantities))


def table(section: Section) -> Table:
    contestants, quantities = columns(section)
    result_table = Table(title=section.title, title_justify="left", title_style="bold")
    result_table.add_column("", no_wrap=True)
    for name in contestants:
        result_table.add_column(f"{name}, ms", justify="right")
    for name in quantities:
        result_table.add_column(name, justify="right")
    for result in section.results:
        figures = {f.quantity: cell(f) for f in result.figures}
        result_table.add_row(
            result.name,
            *(f"{1e3 * result.seconds[c]:.1f}" if c in result.seconds else "" for c in contestants),
            *(figures.get(q, "") for q in quantities),
        )
    return result_table


def parts(section: Section) -> list[Section]:
    """One part for each quantity of training: a single table would be too wide."""
    if section.key != "training":
        return [section]
    groups = groupby(section.results, key=lambda result: result.figures[0].quantity)
    return [replace(section, results=list(rows)) for _, rows in groups]


def goal_table(sections: Iterable[Section]) -> Table:
    title = f"Goals, on {processor()}"
    goals = Table(title=title, title_justify="left", title_style="bold", show_lines=True)
    for name in ("goal", "bound", "measured"):
        goals.add_column(name)
    for row in goal_rows(sections, GOALS):
        style = "green" if row.met else "bold red"
        goals.add_row(row.text, row.requirement, Text(row.measured, style))
    return goals


def write_json(path: Path, settings: dict[str, Any], sections: list[Section]) -> None:
    content = {
        "machine": machine(),
        "settings": settings,
        "goals": {key: asdict(goal) for key, goal in GOALS.items()},
        "sections": [asdict(section) for section in sections],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def plot_rules(folder: Path, section: Section) -> str:
    """Draw bars of time over the floor, on a logarithmic axis; a sentence about the result."""
    path = folder / "bench.png"
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return "There is no plot: matplotlib is not installed."
    shown = [name for name in COLORS if any(name in r.seconds for r in section.results)]
    height = 0.8 / len(shown)
    lowest = 0.5
    canvas = Canvas(figsize=(9, 1.4 + 0.42 * len(section.results)), layout="constrained")
    axes = canvas.subplots()
    for k, name in enumerate(shown):
        bars = [
            (row + (k - (len(shown) - 1) / 2) * height, r.seconds[name] / r.seconds["floor"])
            for row, r in enumerate(section.results)
            if name in r.seconds
        ]
        places, ratios = [place for place, _ in bars], [ratio for _, ratio in bars]
        lowest = min([lowest, *(0.8 * ratio for ratio in ratios)])
        drawn = axes.barh(places, ratios, height, label=name, color=COLORS[name])
        labels = [f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}" for ratio in ratios]
        axes.bar_label(drawn, labels, padding=2, fontsize=6, color="#444444")
    axes.axvline(1, color="#222222", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.06, y=0.01)
    axes.set_xlim(left=lowest)
    axes.set_yticks(range(len(section.results)), [r.name for r in section.results], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("time over the floor (1 = the least work there is)")
    canvas.suptitle(f"{section.title}\n{processor()}", fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    canvas.savefig(path, dpi=150, facecolor="white")
    return f"Written: {path}"


def plot_growth(folder: Path, section: Section) -> str:
    """Draw time over d, with a panel for each rule, and lines of each n and of the model."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        return "There is no plot: matplotlib is not installed."
    path = folder / "growth.png"
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for result in section.results:
        rule, n, width = result.name.split(", ")
        place = (float(width.removeprefix("d = ")), result.seconds["ours"], result.seconds["model"])
        found.setdefault(rule, {}).setdefault(n, []).append(place)
    across = 3
    down = -(-len(found) // across)
    canvas = Canvas(figsize=(11, 3 * down + 0.8), layout="constrained")
    panels = canvas.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat
    for axes, (rule, lines) in zip(panels, found.items(), strict=False):
        for k, (n, places) in enumerate(lines.items()):
            d, ours, model = zip(*places, strict=True)
            color = SHADES[k % len(SHADES)]
            axes.plot(d, ours, "o-", color=color, label=n, markersize=3, linewidth=1.2)
            axes.plot(d, model, ":", color=color, linewidth=1)
        axes.set_title(rule, fontsize=9)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels):
        axes.set_axis_off()
    canvas.supxlabel("d", fontsize=9)
    canvas.supylabel("seconds (dotted: the model)", fontsize=9)
    labels = canvas.axes[0].get_legend_handles_labels()
    canvas.legend(*labels, frameon=False, loc="outside lower right", ncols=5, fontsize=8)
    canvas.suptitle(f"{section.title}\n{processor()}", fontsize=10)
    canvas.savefig(path, dpi=150, facecolor="white")
    return f"Written: {path}"


PLOTS = {"rules": plot_rules, "growth": plot_growth}


def show(console: Console, section: Section) -> None:
    for part in parts(section):
        console.print(table(part))
    console.file.flush()
