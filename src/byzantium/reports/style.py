"""The look of the figures: a sheet of panels with its title and legend.

Sizes are in inches and laid out by hand, so that a figure comes out the same everywhere; nothing
here uses pyplot, whose state is shared by the whole process.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from byzantium.tables import Artifact

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY = "#222222", "#777777"
PATTERNS: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (4, 1.5)),
    "dot": (0, (1, 1)),
    "dashdot": (0, (6, 1, 1, 1)),
    "longdash": (0, (8, 2)),
}
SMALL, USUAL, LARGE = 6.5, 8.0, 10.5
CENTERED: dict[str, Any] = {"ha": "center", "va": "center"}
# The most characters of a label and of a title, which in results of others may have thousands.
MAX_LABEL, MAX_TITLE = 100, 600
# The most pixels of a picture, along a side and in all; matplotlib refuses longer sides.
MAX_SIDE, MAX_PIXELS = 60_000, 40_000_000


def sheet(
    artifact: Artifact,
    shape: tuple[int, int],
    panel: tuple[float, float],
    *,
    share: Any = True,
    gap: tuple[float, float] = (0.12, 0.14),
    left: float = 0.75,
    right: float = 0.2,
    bottom: float = 0.85,
    titled: bool = True,
) -> tuple[Figure, list[list[Axes]]]:
    """Panels in rows and columns, of one size, under a title; in small, how the version is cheaper.

    - `share`: whether panels share their axes; "row" if only those of a row share the vertical one.
    """
    inner = shape[1] * panel[0] + (shape[1] - 1) * gap[0]
    width = left + inner + right
    titles = textwrap.wrap(_cut(artifact.title, MAX_TITLE), int(width * 12))
    below = f"cheaper version: {', '.join(artifact.cheaper)}" if artifact.cheaper else ""
    if not artifact.maker:  # the title of a pivot does not say what its runs are
        below = f"{artifact.fixed}. {artifact.notes}" if artifact.notes else artifact.fixed
    notes = textwrap.wrap(_cut(below, MAX_TITLE), int(width * 15))
    top = (0.4 if titled else 0.2) + 0.19 * len(titles) + 0.14 * len(notes)
    figure, axes = panels(shape, panel, gap, (left, right, bottom, top), share)
    # Over the panels; over the whole where a single one has long names beside it.
    middle = (left + inner / 2) / width if shape[1] > 1 else 0.5
    for k, (text, note) in enumerate([(t, False) for t in titles] + [(n, True) for n in notes]):
        down = 0.2 + 0.19 * min(k, len(titles)) + 0.14 * max(0, k - len(titles)) - 0.03 * note
        size, color = (SMALL + 0.5, GREY) if note else (LARGE, BLACK)
        height = figure.get_size_inches()[1]
        figure.text(middle, 1 - down / height, text, fontsize=size, color=color, **CENTERED)
    return figure, axes


def panels(
    shape: tuple[int, int],
    panel: tuple[float, float],
    gap: tuple[float, float],
    margins: tuple[float, float, float, float],
    share: Any = True,
) -> tuple[Figure, list[list[Axes]]]:
    """Panels of one size, with margins to the left, to the right, below and above."""
    from matplotlib.figure import Figure

    (rows, columns), (left, right, bottom, top) = shape, margins
    width = left + columns * panel[0] + (columns - 1) * gap[0] + right
    height = top + rows * panel[1] + (rows - 1) * gap[1] + bottom
    figure = Figure(figsize=(width, height))
    sides = {"left": left / width, "right": 1 - right / width, "wspace": gap[0] / panel[0]}
    ends = {"bottom": bottom / height, "top": 1 - top / height, "hspace": gap[1] / panel[1]}
    axes = figure.subplots(
        *shape, sharex=bool(share), sharey=share, squeeze=False, gridspec_kw={**sides, **ends}
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(GREY)
        axis.tick_params(labelsize=SMALL + 0.5, length=2.5, color=GREY)
        axis.grid(color="#ECECEC", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, [list(row) for row in axes]


def render(figure: Figure, form: str, dpi: int, **options: Any) -> bytes:
    """The bytes of a figure; its texts, which others may have written, are shown as they are.

    matplotlib would read text between dollar signs as a formula, and fail if it is not one. A
    picture that would be too large is drawn with fewer pixels.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_parse_math(False)
        text.set_usetex(False)
    # A character that the font lacks is drawn as a box.
    warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning, r"byzantium\.reports\.")
    width, height = figure.get_size_inches()
    most = min(MAX_SIDE / max(width, height), math.sqrt(MAX_PIXELS / (width * height)))
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=min(dpi, most), facecolor="white", **options)
    return content.getvalue()


def caption(text: str) -> str:
    """The label of a line or a tick, from a text that others may have written.

    matplotlib leaves labels that begin with an underscore out of legends.

    >>> caption("_mine"), len(caption("x" * 1000))
    (' _mine', 100)
    """
    return _cut(f" {text}" if text.startswith("_") else text, MAX_LABEL)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def inches(figure: Figure, x: float, y: float) -> tuple[float, float]:
    width, height = figure.get_size_inches()
    return x / width, y / height


def legend(figure: Figure, handles: Sequence[Any], columns: int) -> None:
    figure.legend(
        handles=list(handles),
        loc="lower center",
        ncols=columns,
        frameon=False,
        fontsize=USUAL,
        bbox_to_anchor=(0.5, inches(figure, 0, 0.03)[1]),
        handlelength=2.6,
        columnspacing=1.6,
    )


def note(axis: Axes, text: str, y: float = 0.04, align: str = "bottom") -> None:
    """Write a small gray text into a corner, readable over lines."""
    from matplotlib.patheffects import withStroke

    axis.text(
        0.97,
        y,
        text,
        transform=axis.transAxes,
        ha="right",
        va=align,
        fontsize=SMALL,
        color=GREY,
        linespacing=1.1,
        zorder=5,
        path_effects=[withStroke(linewidth=1.5, foreground="white")],
    )


def missing(axis: Axes) -> None:
    place = {"transform": axis.transAxes, **CENTERED}
    axis.text(0.5, 0.5, "missing", fontsize=USUAL, color=GREY, **place)
