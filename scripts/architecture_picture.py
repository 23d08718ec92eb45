"""Draws the picture of docs/architecture.md: `python scripts/architecture_picture.py`.

Rows are the packages, each above those that it may import. The line is the path of a vector. The
script raises an error if `src/byzantium` has a package that the picture lacks.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
ALT = (
    "The packages of Byzantium in the order of imports, core at the bottom and cli at the top, "
    "and the path of a vector: from data through learning, attacks, vectors, kernels and rules "
    "back to learning, and as numbers through runs and tables to reports."
)
# The packages, from the last of the import order to the first, and what each holds.
PACKAGES = {
    "cli": "the commands of `byzantium`",
    "reports": "tables, figures and the page, drawn",
    "papers": "the bucketing paper, the benchmark",
    "tables": "cells over seeds, tables of them",
    "engines": "Flower, torch.distributed, files, Ray",
    "runs": "trainings as data, in folders",
    "related": "systems of related work",
    "learning": "workers, server, simulation",
    "data": "data sets, partitions, batches",
    "guarantees": "proved bounds, search for bad inputs",
    "attacks": "what attackers send",
    "rules": "rules and mixings: n vectors to one",
    "vectors": "where vectors are stored, geometry",
    "_kernels": "the passes over vectors, compiled",
    "core": "parameters, notation, errors, files",
}


class Stop(NamedTuple):
    """One stop of the path: its package, its place in pixels, and its label."""

    package: str
    x: int
    label: str
    dx: int  # from the stop to its label
    dy: int = 0
    anchor: str = "start"


PATH = [
    Stop("data", 312, "batches", -24, 26),
    Stop("learning", 352, "gradient, momentum: row of X", 17),
    Stop("attacks", 400, "attackers' rows are replaced", 17),
    Stop("vectors", 442, "rows: admitted, rejected", -15, anchor="end"),
    Stop("_kernels", 490, "X is read: G = X Xᵀ, n x n", -15, anchor="end"),
    Stop("rules", 545, "P G Pᵀ, weights w", 0, -19, "middle"),
    Stop("_kernels", 600, "X is read: w P X, length d", 0, 25, "middle"),
    Stop("learning", 655, "the server's step", 17),
    Stop("runs", 685, "a line of metrics.jsonl", -15, anchor="end"),
    Stop("tables", 715, "mean and deviation over seeds", -15, anchor="end"),
    Stop("reports", 745, "a number in a table, a point of a curve", -15, anchor="end"),
]
# What is said beside packages, and where.
NOTES = {
    "engines": (286, "only cli imports them; in a federation, 1, 2 and 8 are theirs"),
    "guarantees": (412, "bound the error of what 6 decides"),
}
WIDTH, TOP, STEP, BOX = 800, 50, 46, (40, 232, 38)  # the boxes: left, width, height
HEIGHT = TOP + STEP * len(PACKAGES) + 22
STYLE = """
svg { font: 12px system-ui, sans-serif; --paper: #fff; --ink: #1c1e21; --faint: #5f6670;
  --box: #f1f4f8; --edge: #b9c2ce; --line: #b8430b }
@media (prefers-color-scheme: dark) {
  svg { --paper: #17191c; --ink: #e8eaed; --faint: #a3abb5; --box: #24282d; --edge: #4b535d;
    --line: #ff9d5c } }
text { fill: var(--ink) }
.paper { fill: var(--paper) }
.box { fill: var(--box); stroke: var(--edge) }
.name { font: 600 13px ui-monospace, monospace }
.faint { fill: var(--faint); font-size: 11.5px }
.rule { stroke: var(--edge); stroke-dasharray: 2 5 }
.path { fill: none; stroke: var(--line); stroke-width: 2.5 }
.stop { fill: var(--line) }
.number { fill: var(--paper); font-weight: 700; font-size: 11px; text-anchor: middle }
.label { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round }
.imports { fill: none; stroke: var(--faint); stroke-width: 1.5 }
.head { fill: var(--faint) }
"""


def main() -> None:
    PICTURE.write_text(draw(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT))


def draw() -> str:
    """The picture as SVG. It is the same text each time."""
    found = {path.parent.name for path in (ROOT / "src" / "byzantium").glob("*/__init__.py")}
    if missing := found - PACKAGES.keys():
        raise SystemExit(f"the picture lacks {', '.join(sorted(missing))}: add it to PACKAGES")
    height = {name: TOP + STEP * row + BOX[2] // 2 for row, name in enumerate(PACKAGES)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(ALT)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        _text(BOX[0], 30, "The packages", "name"),
        _text(300, 30, "The path of a vector", "name"),
        *_imports(height),
    ]
    for name, content in PACKAGES.items():
        parts += _package(name, content, height[name])
    places = [(stop.x, height[stop.package]) for stop in PATH]
    parts.append(f'<path class="path" d="{_curve(places)}"/>')
    for number, (stop, (x, y)) in enumerate(zip(PATH, places, strict=True), start=1):
        parts += [
            _text(x + stop.dx, y + stop.dy + 4, stop.label, "label", stop.anchor),
            f'<circle class="stop" cx="{x}" cy="{y}" r="10"/>',
            _text(x, y + 4, str(number), "number"),
        ]
    return "\n".join([*parts, "</svg>", ""])


def _package(name: str, content: str, y: int) -> list[str]:
    left, width, height = BOX
    end = left + width
    parts = [
        f'<line class="rule" x1="{end}" x2="{WIDTH - 16}" y1="{y}" y2="{y}"/>',
        f'<rect class="box" x="{left}" y="{y - height // 2}" width="{width}" height="{height}" '
        'rx="6"/>',
        _text(left + 10, y - 3, name, "name"),
        _text(left + 10, y + 13, content.replace("`", ""), "faint"),
    ]
    if name in NOTES:
        x, note = NOTES[name]
        parts.append(_text(x, y + 4, note, "faint label"))
    return parts


def _imports(height: dict[str, int]) -> list[str]:
    """The arrow at the left: a package imports those below it."""
    x, top, bottom = 22, height["cli"], height["core"]
    middle = (top + bottom) // 2
    return [
        f'<path class="imports" d="M{x} {top}V{bottom - 6}"/>',
        f'<path class="head" d="M{x - 5} {bottom - 8}h10l-5 10z"/>',
        f'<g transform="translate({x} {middle}) rotate(-90)">'
        + _text(0, 4, "imports", "faint label", "middle")
        + "</g>",
    ]


def _curve(places: list[tuple[int, int]]) -> str:
    """A smooth line through all places, upright between two of them."""
    (x, y), *others = places
    parts = [f"M{x} {y}"]
    for ahead in others:
        middle = (y + ahead[1]) // 2
        parts.append(f"C{x} {middle} {ahead[0]} {middle} {ahead[0]} {ahead[1]}")
        x, y = ahead
    return "".join(parts)


def _text(x: int, y: int, text: str, style: str, anchor: str = "") -> str:
    place = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{style}" x="{x}" y="{y}"{place}>{escape(text)}</text>'


if __name__ == "__main__":
    main()
