"""Artifacts as static figures, in the paper's layout: PNG and PDF."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from byzantium.core import files, import_optional
from byzantium.learning import metrics
from byzantium.reports import measurements, palette, text_tables
from byzantium.reports.palette import Labels, Look, Looks, line_of, looks
from byzantium.reports.style import (
    BLACK,
    CENTERED,
    GREY,
    PATTERNS,
    SMALL,
    USUAL,
    caption,
    inches,
    legend,
    missing,
    note,
    render,
    sheet,
)
from byzantium.reports.text_tables import namer
from byzantium.runs import Run
from byzantium.tables import CRITERION, MeasuredCell, ResultTable, terms
from byzantium.tables.results import grouped
from byzantium.tables.terms import full_name, short_name

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Style = dict[str, Any]
BAND = 0.2  # how opaque the band of a standard deviation is
THIN = 1.5  # the width of our curves
BELOW: Style = {"lw": 3.5, "alpha": 0.3}  # a published curve that ours is to cover
OVER = {"time": metrics.TABLE["time"].title}  # what curves are drawn over, beside rounds
NEUTRAL = "#F5F5F5"  # of cells without a number, or with one that has no scale


def draw(table: ResultTable, folder: Path, dpi: int = 150) -> list[Path]:
    """Draw an artifact, or a table of runs, as a figure; it needs matplotlib.

    Returns the paths of a PNG and a PDF file, which are named after the artifact.
    """
    import_optional("matplotlib", "report", "a figure")
    figure = KINDS[table.artifact.picture.kind](table)
    # Without the time of day, equal results are equal files.
    forms: dict[str, Style] = {"png": {}, "pdf": {"metadata": {"CreationDate": None}}}
    paths = []
    for ending, options in forms.items():
        paths.append(folder / f"{table.artifact.stem}.{ending}")
        files.write(paths[-1], render(figure, ending, dpi, **options))
    return paths


def _remark(cell: MeasuredCell) -> str:
    """A remark on a cell whose results are not all completed; else empty."""
    if cell.failed:
        return "failed"
    if any(result.status in ("unfinished", "running") for result in cell.results):
        return "unfinished"
    if cell.missing:
        return "missing" if cell.missing == len(cell.results) else "fewer seeds"
    return "diverged" if cell.diverged else ""


def _values(table: ResultTable, name: str) -> list[Any]:
    """The values of a label in the order of the cells; [None] if no cell has it."""
    return list(dict.fromkeys(cell.labels.get(name) for cell in table.cells))


# -- curves -------------------------------------------------------------------------------------


def _curves(table: ResultTable) -> Figure:
    """A grid of panels that share their axes; a legend for all, or for each row if they differ."""
    picture = table.artifact.picture
    rows, columns = _values(table, picture.rows), _values(table, picture.columns)
    name_of = namer(table)
    places = grouped(table.cells, [picture.rows, picture.columns])
    cells = [[places.get((row, column), []) for column in columns] for row in rows]
    shown = [looks([c for panel in row for c in panel], picture.lines) for row in cells]
    shared = all(look == shown[0] for look in shown)
    ranges = [measurements.zoom(table, [c for panel in row for c in panel]) for row in cells]
    keys = [_keys(table, look) for look in shown]
    panel = (1.95, 1.45) if len(columns) > 2 else (3.0, 2.0)
    across = _across(keys[0], 0.85 + len(columns) * (panel[0] + 0.12))
    figure, axes = sheet(
        table.artifact,
        (len(rows), len(columns)),
        panel,
        share="row",
        left=0.85 if len(rows) > 1 else 0.65,
        right=0.2 if shared else 1.2,
        bottom=0.5 + (0.2 * math.ceil(len(keys[0]) / across) if shared else 0),
    )
    for r, row in enumerate(rows):
        for c in range(len(columns)):
            _panel(axes[r][c], table, cells[r][c], shown[r])
        _scales(axes[r], table, ranges[r])
        if len(rows) > 1:
            title = ", ".join([short_name(picture.rows, row), *_fixed(shown, r, cells[r][0])])
            axes[r][0].set_ylabel(title, fontsize=USUAL + 0.5, weight="bold")
        if not shared:
            beside: Style = {"loc": "center left", "bbox_to_anchor": (1.03, 0.5)}
            axes[r][-1].legend(handles=keys[r], frameon=False, fontsize=USUAL, **beside)
    for top, below, column in zip(axes[0], axes[-1], columns, strict=True):
        top.set_title(_label_caption(name_of, picture.columns, column), fontsize=USUAL, pad=5)
        below.set_xlabel(OVER.get(picture.x, "round"), fontsize=USUAL)
    if len(rows) > 1:
        x, _ = inches(figure, 0.2, 0)
        y = (axes[0][0].get_position().y1 + axes[-1][0].get_position().y0) / 2
        figure.text(x, y, picture.title, rotation=90, fontsize=USUAL, **CENTERED)
    else:
        axes[0][0].set_ylabel(picture.title, fontsize=USUAL)
    if shared:
        legend(figure, keys[0], across)
    return figure


def _label_caption(name_of: Callable[[str, Any], str], name: str, value: Any) -> str:
    """The value of a label with the paper's words, if it has any; else as brief as possible."""
    return caption(full_name(name, value) if value in terms.BY_LABEL else name_of(name, value))


def _across(keys: Sequence[Artist], width: float) -> int:
    """How many entries of a legend fit into one line of a width in inches, in even lines."""
    longest = max(len(str(key.get_label())) for key in keys)
    fit = max(1, int(width / (0.065 * longest + 0.6)))
    return math.ceil(len(keys) / math.ceil(len(keys) / fit))


def _style(look: Look) -> Style:
    """A look as arguments of matplotlib."""
    return {"color": look.color.light, "linestyle": PATTERNS[look.dashes]}


def _below(look: Look) -> Style:
    """A look for a published curve below ours, with dashes as long as those of ours."""
    pattern = PATTERNS[look.dashes]
    if not isinstance(pattern, str):
        start, lengths = pattern
        pattern = (start, tuple(length * THIN / BELOW["lw"] for length in lengths))
    return {"color": look.color.light, "linestyle": pattern, "dash_capstyle": "butt"} | BELOW


def _fixed(shown: Sequence[Looks], row: int, cells: Sequence[MeasuredCell]) -> list[str]:
    """The labels that vary among the lines of other rows, and are fixed in this one."""
    varying = [{name for values in look for name, _ in values} for look in shown]
    names = sorted(set[str]().union(*varying) - varying[row])
    return [full_name(name, cells[0].cell.labels[name]) for name in names]


def _keys(table: ResultTable, shown: Looks) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    name = _line_names(table)
    keys: list[Artist] = [
        Line2D([], [], label=name(values), lw=1.8, **_style(look)) for values, look in shown.items()
    ]
    released = table.artifact.version.released
    if any(measurements.published_curves(table, cell) for cell in table.cells):
        label = "published, each seed" if table.comparable else "published, paper's setting"
        look: Style = {"lw": 0.8, "alpha": 0.7}
        if released:
            keys.append(Line2D([], [], color=GREY, label="thin: ours", lw=THIN))
            label, look = "wide and pale: published, same seed", BELOW
        keys.append(Line2D([], [], color=GREY, label=label, **look))
    if not released and any(len(cell.results) > 1 for cell in table.cells):
        keys.append(Patch(facecolor=GREY, alpha=BAND, lw=0, label="± std over seeds"))
    return keys


def _line_names(table: ResultTable) -> Callable[[Labels], str]:
    name_of = namer(table)
    return lambda values: caption(", ".join(_label_caption(name_of, *label) for label in values))


def _panel(axis: Axes, table: ResultTable, cells: Sequence[MeasuredCell], shown: Looks) -> None:
    remarks: dict[str, list[str]] = {}
    drawn, name = False, _line_names(table)
    for cell in cells:
        values, look = line_of(shown, cell)
        style = _style(look)
        released = table.artifact.version.released
        theirs: Style = _below(look) if released else {"lw": 0.6, "alpha": 0.45} | style
        for seed in measurements.published_curves(table, cell):
            axis.plot(*zip(*seed, strict=True), zorder=2, **theirs)
        seeds = measurements.curves(table, cell)
        # Each repeated run is compared with that of its seed, so there is no mean.
        for curves in [[seed] for seed in seeds] if released else [seeds]:
            drawn |= _line(axis, curves, style)
        if what := _remark(cell):
            remarks.setdefault(what, []).append(name(values))
    if not drawn:
        missing(axis)
    else:
        few = {k: v[0] if len(v) == 1 else f"{len(v)} lines" for k, v in remarks.items()}
        note(axis, "\n".join(f"{who} ({what})" for what, who in few.items()))


def _line(axis: Axes, seeds: Sequence[measurements.Curve], look: Style) -> bool:
    """Draw the mean over seeds with a band of a standard deviation; False if there is none."""
    rounds = sorted({at for seed in seeds for at in seed})
    if not rounds:
        return False
    there = [[seed[at] for seed in seeds if at in seed] for at in rounds]
    means = [fmean(values) for values in there]
    axis.plot(rounds, means, lw=THIN, zorder=4, **look)
    spread = [stdev(values) if len(values) > 1 else 0.0 for values in there]
    if any(spread):
        low = [mean - s for mean, s in zip(means, spread, strict=True)]
        high = [mean + s for mean, s in zip(means, spread, strict=True)]
        axis.fill_between(rounds, low, high, color=look["color"], alpha=BAND, lw=0, zorder=3)
    return True


def _scales(row: Sequence[Axes], table: ResultTable, zoom: tuple[float, float] | None) -> None:
    """Set the axes of the panels of a row, which share them."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axis, scale = row[0], metrics.scale(table.artifact.picture.y)
    if scale == "percent":
        axis.set_ylim(zoom or (0, 100))
        if zoom:
            note(row[-1], f"zoomed: {zoom[0]:g} to {zoom[1]:g}", 0.97, "top")
    elif scale == "log":
        axis.set_yscale("log", nonpositive="clip")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_locator(NullLocator())
    if table.artifact.picture.x == "time":
        axis.set_xlim(0, measurements.first_end(table))
    else:
        axis.set_xlim(0, max(job.rounds for job in table.artifact.jobs if isinstance(job, Run)))
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True, prune="upper"))


# -- tables, bars, points -----------------------------------------------------------------------


def _table(table: ResultTable) -> Figure:
    """A table with our numbers, and the published ones in small below them."""
    from matplotlib.patches import Rectangle

    names, across = text_tables.axes(table)
    name_of, columns = namer(table), _values(table, across)
    keys = [tuple((n, c.labels[n]) for n in names) for c in table.cells]
    rows = list(dict.fromkeys(keys))
    titles = [caption(", ".join(_label_caption(name_of, *label) for label in key)) for key in rows]
    size = (2.2 * len(columns), 0.48 * len(rows))
    left = 0.3 + 0.066 * max(map(len, titles))
    has_verdicts = table.is_published and table.comparable
    bottom = 0.5 if has_verdicts else 0.2
    figure, axes = sheet(table.artifact, (1, 1), size, left=left, bottom=bottom)
    axis = axes[0][0]
    for key, cell in zip(keys, table.cells, strict=True):
        row, column = rows.index(key), columns.index(cell.labels[across])
        face = NEUTRAL
        if cell.value is not None and metrics.scale(table.artifact.picture.y) == "percent":
            face = palette.scale(cell.value / 100)
        square: Style = {"facecolor": face, "edgecolor": "white", "lw": 2}
        axis.add_patch(Rectangle((column, row), 1, 1, **square))
        color = GREY if cell.value is None else palette.readable(face)
        below = _theirs(table, cell)
        middle = row + (0.36 if below else 0.5)
        axis.text(column + 0.5, middle, _ours(cell), fontsize=9, color=color, **CENTERED)
        axis.text(column + 0.5, row + 0.73, below, fontsize=SMALL, color=color, **CENTERED)
    axis.set_xlim(0, len(columns))
    axis.set_ylim(len(rows), 0)
    axis.xaxis.tick_top()
    heads = [_label_caption(name_of, across, value) for value in columns]
    axis.set_xticks([k + 0.5 for k in range(len(heads))], heads, fontsize=USUAL)
    axis.set_yticks([k + 0.5 for k in range(len(titles))], titles, fontsize=USUAL)
    if has_verdicts:
        text = "\n".join(textwrap.wrap(f"agrees: {CRITERION}", 15 * int(size[0] + 1.9)))
        figure.text(0.5, inches(figure, 0, 0.25)[1], text, fontsize=SMALL, **CENTERED)
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    return figure


def _ours(cell: MeasuredCell) -> str:
    if cell.value is None:
        return text_tables.state(cell)
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.2f}"
    aside = text_tables.other_seeds(cell)
    return f"{cell.value:.2f}{spread}" + (f" ({aside})" if aside else "")


def _theirs(table: ResultTable, cell: MeasuredCell) -> str:
    if cell.published is None:
        return ""
    text = f"published {cell.published.mean:.2f} ± {cell.published.deviation:.2f}"
    verdict, seeds = text_tables.verdict(table, cell).text, len(cell.values)
    judged = verdict in ("agrees", "differs")
    return text + (f", {verdict} ({seeds} seed{'s' * (seeds > 1)})" if judged else "")


def _bars(table: ResultTable) -> Figure:
    """Bars of the mean weight of each worker; those of attackers are hatched."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    picture = table.artifact.picture
    columns = _values(table, picture.columns)
    figure, axes = sheet(table.artifact, (1, len(columns)), (2.7, 1.9), bottom=0.7)
    kinds: dict[str, Style] = {
        "honest": {"facecolor": palette.HONEST.light},
        "attacker": {"facecolor": palette.ATTACKER.light, "hatch": "////"},
    }
    for column, axis in zip(columns, axes[0], strict=True):
        (cell, *_) = [c for c in table.cells if c.labels[picture.columns] == column]
        title = full_name(picture.columns, column)
        axis.set_title(title, fontsize=USUAL, pad=5)
        axis.set_xlabel("worker", fontsize=USUAL)
        axis.grid(visible=False, axis="x")
        seeds, job = measurements.weights(cell), cell.jobs[0]
        assert isinstance(job, Run)
        axis.set_xlim(-0.8, job.n - 0.2)
        axis.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        if not seeds:
            missing(axis)
            continue
        means = measurements.means(seeds)
        spread = [stdev(worker) for worker in zip(*seeds, strict=True)] if len(seeds) > 1 else None
        axis.axhline(1 / job.n, color=GREY, lw=0.8, ls=(0, (4, 2)), zorder=1)
        first = job.n - job.attacker_count
        look: Style = {"error_kw": {"lw": 0.7, "ecolor": BLACK}, "edgecolor": "white", "lw": 0.3}
        for kind, part in (("honest", slice(first)), ("attacker", slice(first, job.n))):
            error = spread[part] if spread else None
            axis.bar(range(job.n)[part], means[part], 0.8, yerr=error, **look, **kinds[kind])
        remark = f" ({_remark(cell)})" if _remark(cell) else ""
        share = measurements.share(means, job.attacker_count)
        axis.set_title(f"{title}: {share:.0%} on attackers{remark}", fontsize=USUAL, pad=5)
    axes[0][0].set_ylim(bottom=0)
    axes[0][0].set_ylabel(picture.title, fontsize=USUAL)
    even = Line2D([], [], color=GREY, lw=0.8, ls=(0, (4, 2)), label="even share, 1/n")
    patches = [Patch(label=label, edgecolor="white", **look) for label, look in kinds.items()]
    legend(figure, [*patches, even], 3)
    return figure


def _points(table: ResultTable) -> Figure:
    """Points of errors over a size, with the deviation over draws."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogFormatter

    picture = table.artifact.picture
    columns, names = _values(table, picture.columns), _values(table, picture.lines[0])
    shape = (1, len(columns))
    figure, axes = sheet(
        table.artifact, shape, (3.1, 2.3), share=False, gap=(0.5, 0), bottom=0.7, titled=False
    )
    for column, axis in zip(columns, axes[0], strict=True):
        here = [c for c in table.cells if c.labels[picture.columns] == column]
        axis.set_xlabel(str(column), fontsize=USUAL)
        drawn = [_errors(axis, name, here, picture.lines[0], picture.x) for name in names]
        if not any(drawn):
            missing(axis)
        elif absent := sum(cell.value is None for cell in here):
            note(axis, f"{absent} of {len(here)} points (missing)", 0.97, "top")
        if column == "dimension":
            axis.set_xscale("log")
            axis.set_yscale("log", nonpositive="clip")
            for way in (axis.xaxis, axis.yaxis):
                way.set_major_formatter("{x:g}")
                way.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
        else:
            axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel(picture.title, fontsize=USUAL)
    keys = [
        Line2D([], [], label=full_name(picture.lines[0], name), ms=4, lw=1.4, **_point(name))
        for name in names
    ]
    legend(figure, keys, len(keys))
    return figure


def _errors(axis: Axes, name: str, cells: Sequence[MeasuredCell], label: str, x: str) -> bool:
    there = [c for c in cells if c.labels[label] == name and c.value is not None]
    # Over seeds, variances are averaged: each is of as many draws.
    spread = [
        math.sqrt(fmean(measurements.deviation(r) ** 2 for r in c.results if r.done)) for c in there
    ]
    if there:
        places = [c.labels[x] for c in there], [c.value or 0.0 for c in there]
        look: Style = {"ms": 4, "lw": 1.4, "elinewidth": 0.8, "capsize": 2, **_point(name)}
        axis.errorbar(*places, yerr=spread, **look)
    return bool(there)


def _point(rule: str) -> Style:
    """The color and the marker of a rule."""
    style = palette.RULE_STYLES[rule]
    return {"color": style.color.light, "marker": style.marker}


KINDS: dict[str, Callable[[ResultTable], Figure]] = {
    "table": _table,
    "grid": _table,
    "curves": _curves,
    "bars": _bars,
    "points": _points,
}
