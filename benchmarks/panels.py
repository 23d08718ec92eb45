"""A row of panels that share an axis of test accuracies: the figures of sweeps in docs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from byzantium.runs import Store

DOCS = Path(__file__).parents[1] / "docs"


def named_results(description: str | None) -> Store:
    """The folder of results that the command line names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("results", type=Path)
    return Store(parser.parse_args().results)


def panels(count: int, size: tuple[float, float], **style: Any) -> Sequence[Axes]:
    """The axes of a figure of this size, in inches, to draw on before it is saved.

    - `style`: further settings of Matplotlib.
    """
    settings: Any = {"font.size": 9.5, "svg.hashsalt": "byzantium", **style}
    plt.rcParams.update(settings)
    return plt.subplots(1, count, figsize=size, sharey=True, layout="tight", squeeze=False)[1][0]


def save(axes: Sequence[Axes], titles: Iterable[str], label: str, name: str) -> None:
    """Label the panels, and save the figure in docs.

    - `titles`: the titles of the panels.
    - `label`: what the horizontal axes are.
    - `name`: the name of the file.
    """
    for axis, title in zip(axes, titles, strict=True):
        axis.set(title=title, ylim=(0, 100))
        axis.spines[["top", "right"]].set_visible(False)
    axes[len(axes) // 2].set_xlabel(label)
    axes[0].set_ylabel("test accuracy (%)")
    axes[0].legend(frameon=False, loc="lower right")
    plt.savefig(DOCS / name, metadata={"Date": None})
