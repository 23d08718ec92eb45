"""The rows of the published results."""

from __future__ import annotations

import itertools


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of the Markdown table whose head begins so."""
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {head} |"))
    table = list(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert len({len(row) for row in cells}) == 1
    return cells[2:]
