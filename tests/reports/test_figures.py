"""Figures show what was measured, say what is missing, and are the same every time."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, pstdev, stdev

import folders
import numpy as np
import pytest
from folders import comparison, made
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from byzantium.papers import MAKERS
from byzantium.reports import palette
from byzantium.reports.figures import KINDS, draw
from byzantium.runs import Run, Store
from byzantium.tables import ResultTable, Version, pivots, terms

ONE = Version(seeds=1)
CHEAP = Version(seeds=2, rounds=60, model="mlp", data="digits")
CURVES = [name for name in MAKERS if made(name, ONE).picture.kind == "curves"]


def figure(compared: ResultTable) -> Figure:
    return KINDS[compared.artifact.picture.kind](compared)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Figure]:
    """An artifact of which every other cell is there; drawn once for all tests."""
    store = Store(tmp_path_factory.mktemp("half"))

    @functools.cache
    def drawn(name: str) -> Figure:
        whole = made(name, ONE)
        cells = dataclasses.replace(whole, cells=whole.cells[::2])
        folders.fill(store, cells, lambda cell, seed: 50.0)
        return figure(comparison(name, store, ONE))

    return drawn


def texts(drawn: Figure) -> list[str]:
    return [t.get_text() for t in drawn.findobj(Text) if isinstance(t, Text) and t.get_text()]


def thick(axes: Axes) -> list[Line2D]:
    """The lines of ours; the published ones are thin."""
    return [line for line in axes.get_lines() if line.get_linewidth() > 1 and points(line)]


def points(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def keys(drawn: Figure) -> list[Line2D]:
    """The lines in all legends of a figure."""
    legends = [*drawn.legends, *filter(None, (axes.get_legend() for axes in drawn.axes))]
    return [line for legend in legends for line in legend.get_lines()]


# -- every artifact -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_every_artifact_is_drawn_without_any_result(tmp_path: Path, name: str) -> None:
    compared = comparison(name, Store(tmp_path / "none"), ONE)
    png, pdf = draw(compared, tmp_path / "new" / "folder", dpi=30)
    stem = compared.artifact.stem
    assert (png.name, pdf.name) == (f"{stem}.png", f"{stem}.pdf")
    assert pdf.read_bytes().startswith(b"%PDF")
    image = imread(png)
    assert image.ndim == 3
    assert image[..., :3].std() > 0.01  # not blank


@pytest.mark.parametrize("name", MAKERS)
def test_half_of_an_artifact_is_drawn_and_the_rest_named(
    half: Callable[[str], Figure], name: str
) -> None:
    said = texts(half(name))
    assert made(name, ONE).title in said
    assert any("missing" in text for text in said)


@pytest.mark.parametrize("name", CURVES)
def test_lines_of_a_panel_can_be_told_apart_and_are_in_the_legend(
    half: Callable[[str], Figure], name: str
) -> None:
    drawn = half(name)
    legend = [_look(line) for line in keys(drawn)]
    assert len(set(legend)) == len(legend)
    looks = [[_look(line) for line in thick(axes)] for axes in drawn.axes]
    for panel in looks:
        assert len(set(panel)) == len(panel)
        assert set(panel) <= set(legend)
    # Several cells may be made of the same runs: without momentum all radii are one.
    assert sum(map(len, looks)) >= len(made(name, ONE).cells[::2])


def _look(line: Line2D) -> tuple[str, str]:
    # matplotlib scales dashes by the width of the line; the pattern before that is what we set.
    return to_hex(line.get_color()), str(line._unscaled_dash_pattern)  # type: ignore[attr-defined]


def test_s_has_one_colour_in_all_figures(half: Callable[[str], Figure]) -> None:
    colours: dict[str, set[str]] = {}
    for name in ("figure-main", "figure-clipping-radius", "figure-hyperparameters"):
        for key in keys(half(name)):
            label = str(key.get_label()).partition(",")[0]
            colours.setdefault(label, set()).add(to_hex(key.get_color()))
    each = [colours[label] for label in ("s = 1", "s = 2", "s = 5")]
    assert [len(colour) for colour in each] == [1, 1, 1]
    assert len(set.union(*each)) == 3


def test_colours_and_names_are_named_in_one_place_alone() -> None:
    """The page has them among its data, and no other file names one."""
    folders = Path(palette.__file__).parent, Path(terms.__file__).parent
    own = [c.light for values in palette.LINES.values() for c in values.values()]
    own += [c.light for c in (*palette.OTHER_RULES, *palette.OTHER_LINES)]
    own += [term.full for term in terms.TERMS if term.words]
    own = [text for text in set(own) if text != palette.BLACK.light]
    assert len(own) > 12
    paths = [path for folder in folders for path in folder.rglob("*.*")]
    for path in (p for p in paths if p.suffix in (".py", ".js", ".css", ".html")):
        if path not in (Path(palette.__file__), Path(terms.__file__)):
            found = [text for text in own if text.lower() in path.read_text().lower()]
            assert found == [], path
    page = palette.for_page()
    named = {*page["rules"].values(), *page["other_rules"], page["honest"], page["attacker"]}
    named |= {c.name for values in palette.LINES.values() for c in values.values()}
    assert named | {c.name for c in palette.OTHER_LINES} == set(page["colors"])


@pytest.mark.parametrize("name", CURVES)
def test_losses_are_logarithmic_and_accuracies_within_0_to_100(
    half: Callable[[str], Figure], name: str
) -> None:
    for axes in half(name).axes:
        if made(name, ONE).picture.y == "accuracy":
            low, high = axes.get_ylim()
            assert axes.get_yscale() == "linear"
            # All of it, or zoomed to where the lines differ.
            assert (low, high) == (0, 100) or 0 <= high - low <= 25
            assert low >= 0
            assert high <= 100
        else:
            assert axes.get_yscale() == "log"
        assert axes.get_xlim() == (0, max(run.rounds for run in runs(name)))


def runs(name: str) -> list[Run]:
    return [job for job in made(name, ONE).jobs if isinstance(job, Run)]


# -- what is drawn ------------------------------------------------------------------------------


def test_a_line_is_the_mean_over_seeds_with_a_band(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2, only="krum mimic s=2 momentum=0.0")
    (cell,) = made("figure-main", version).cells
    seeds = [[10.0, 30.0, 50.0], [20.0, 50.0, 60.0]]
    for job, values in zip(cell.jobs, seeds, strict=True):
        folders.write(store, job, folders.evaluations(job, values), folders.completed(50.0))
    (axes,) = figure(comparison("figure-main", store, version)).axes
    (line,) = thick(axes)
    assert points(line) == [(30, 15), (60, 40), (90, 55)]
    (band,) = [c for c in axes.collections if isinstance(c, PolyCollection)]
    edges = np.asarray(band.get_paths()[0].vertices)
    for at, pair in zip((30, 60, 90), zip(*seeds, strict=True), strict=True):
        for edge in (fmean(pair) - stdev(pair), fmean(pair) + stdev(pair)):
            assert abs(edges - [at, edge]).sum(axis=1).min() < 1e-9


def test_published_curves_are_behind_as_they_were_published(tmp_path: Path) -> None:
    version = Version(seeds=1, only="krum mimic s=2 momentum=0.0")
    (axes,) = figure(comparison("figure-main", Store(tmp_path), version)).axes
    wanted = {"aggregator": "krum", "attack": "mimic", "momentum": "0.0", "s": "2"}
    rows = [
        row
        for row in folders.published("figure-main", "published_curves.csv")
        if all(row[name] == value for name, value in wanted.items())
    ]
    seeds = sorted({row["seed"] for row in rows})
    assert len(axes.get_lines()) == len(seeds) == 3
    for line, seed in zip(axes.get_lines(), seeds, strict=True):
        assert line.get_linewidth() < 1
        assert points(line) == [
            (int(row["iteration"]), float(row["accuracy"])) for row in rows if row["seed"] == seed
        ]


def test_norms_are_ratios_to_those_without_momentum(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2, only="ipm")
    for cell in made("figure-gradient-norms", version).cells:
        for seed, job in enumerate(cell.jobs):
            lines = folders.evaluations(job, [50, 50, 50], norm=(1 + cell.labels["momentum"]))
            for k, line in enumerate(lines):
                line["norm"] *= 1 + seed + k  # the same for all momenta: it cancels
            folders.write(store, job, lines, folders.completed(50.0))
    (axes,) = figure(comparison("figure-gradient-norms", store, version)).axes
    for momentum, ratio in zip((0.0, 0.5, 0.9, 0.99), thick(axes), strict=True):
        assert [x for x, _ in points(ratio)] == [30, 60, 90]
        assert [y for _, y in points(ratio)] == pytest.approx([1 + momentum] * 3)
    assert axes.get_yscale() == "log"


def test_bars_are_mean_weights_and_attackers_are_hatched(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2, only="s=2")
    (cell,) = made("figure-krum-selections", version).cells
    weights = [[k / 190 for k in range(20)], [1 / 20] * 20]
    for seed, job in enumerate(cell.jobs):
        lines = folders.evaluations(job, [50, 50])
        lines[1]["weights"] = weights[seed]  # the first line has them even
        folders.write(store, job, lines, folders.completed(50.0))
    (axes,) = figure(comparison("figure-krum-selections", store, version)).axes
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    expected = [((k / 190 + 1 / 20) / 2 + 1 / 20) / 2 for k in range(20)]
    assert [bar.get_height() for bar in bars] == pytest.approx(expected)
    assert [k for k, bar in enumerate(bars) if bar.get_hatch()] == [18, 19]
    assert len({to_hex(bar.get_facecolor()) for bar in bars}) == 2
    assert f"s = 2: {sum(expected[18:]):.0%} on attackers" in axes.get_title()


def test_points_have_the_deviation_of_the_draws(tmp_path: Path) -> None:
    store = Store(tmp_path)
    draws = [4.0, 6.0, 11.0]
    for cell in made("figure-mimic-demo", ONE).cells:
        line = {"round": 20, "error": fmean(draws), "deviation": pstdev(draws)}
        done = {"status": "completed", "error": fmean(draws)}
        folders.write(store, cell.jobs[0], [line], done)
    share, dimension = figure(comparison("figure-mimic-demo", store, ONE)).axes
    assert (share.get_xscale(), dimension.get_xscale()) == ("linear", "log")
    assert len(share.containers) == len(dimension.containers) == 4
    errors = dimension.containers[0]
    assert isinstance(errors, ErrorbarContainer)
    (drawn, _, (bars,)) = errors.lines
    assert points(drawn) == [(d, fmean(draws)) for d in (10, 30, 100, 300, 1000)]
    for (_, low), (_, high) in bars.get_segments():
        assert (high - low) / 2 == pytest.approx(pstdev(draws))


def test_a_table_says_ours_theirs_and_the_verdict(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folders.fill(store, made("table2", ONE), lambda cell, seed: 92.0)
    said = texts(figure(comparison("table2", store, ONE)))
    assert said.count("92.00") == 10
    theirs = [
        f"published {float(row['mean_accuracy']):.2f} ± {float(row['std_accuracy']):.2f}, "
        + ("agrees" if abs(92 - float(row["mean_accuracy"])) <= 1.5 else "differs")
        + " (1 seed)"
        for row in folders.published("table2")
        if 2 * float(row["std_accuracy"]) < 1.5
    ]
    assert len(theirs) == 7
    assert set(theirs) <= set(said)
    cheap = texts(figure(comparison("table2", store, CHEAP)))
    assert not any("agrees" in text or "differs" in text for text in cheap)


# -- what is said -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table2", "figure-resampling", "figure-krum-selections"])
def test_a_cheaper_version_is_said(tmp_path: Path, name: str) -> None:
    compared = comparison(name, Store(tmp_path), CHEAP)
    said = " ".join(texts(figure(compared)))
    words = "2 seeds instead of 3, 60 rounds, model mlp, data set digits"
    assert f"cheaper version: {words}" in said
    assert "cheaper" not in " ".join(texts(figure(comparison(name, Store(tmp_path)))))


def test_unfinished_diverged_and_missing_lines_are_named(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2, only="krum mimic")
    cells = {
        (c.labels["s"], c.labels["momentum"]): c.jobs for c in made("figure-main", version).cells
    }
    write = folders.write
    for seed, job in enumerate(cells[1, 0.0]):  # one goes on, one is missing
        if seed == 0:
            write(store, job, folders.evaluations(job, [10, 20]))
    for job in cells[2, 0.0]:
        write(store, job, folders.evaluations(job, [30, 40, 50]), folders.diverged(95))
    for job in cells[2, 0.9]:
        write(store, job, folders.evaluations(job, [60]), folders.completed(60.0))
    drawn = figure(comparison("figure-main", store, version))
    (note,) = [text for text in texts(drawn) if "unfinished" in text]
    assert sorted(note.splitlines()) == [
        "s = 1, momentum 0 (unfinished)",
        "s = 1, momentum 0.9 (missing)",
        "s = 2, momentum 0 (diverged)",
    ]
    found = sorted(points(line) for line in thick(drawn.axes[0]))
    assert found == [
        [(30, 10), (60, 20)],
        [(30, 30), (60, 40), (90, 50)],
        [(30, 60)],
    ]


def test_a_line_that_failed_is_named(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=2, only="krum mimic s=1")
    plain, other = made("figure-main", version).cells
    for job in plain.jobs:
        folders.write(store, job, folders.evaluations(job, [60]), folders.completed(60.0))
    folders.fail(store, other.jobs[0], "OSError: no space")
    drawn = figure(comparison("figure-main", store, version))
    assert "momentum 0.9 (failed)" in texts(drawn)


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    store, version = Store(tmp_path), Version(seeds=1, only="ipm s=1 scale=1")
    (job,) = made("figure-overparameterization", version).jobs
    lines = folders.evaluations(job, [10, 20, 30])
    lines[1]["train_loss"] = float("nan")
    lines[2]["train_loss"] = float("inf")
    folders.write(store, job, lines, folders.diverged())
    (axes,) = figure(comparison("figure-overparameterization", store, version)).axes
    (line,) = thick(axes)
    assert points(line) == [(30, 2.2)]


def test_curves_over_time_are_means_at_the_same_times_until_the_first_ends(
    tmp_path: Path,
) -> None:
    """Steps of two seeds come at different times; without a clock a round takes the time 1."""
    store, base = Store(tmp_path), Run(n=7, f=1, rounds=90, evaluate_every=30)
    clocked = base.varied(clock="FedBuff(size=5, times='exponential')")
    for seed, pace in ((0, 0.5), (1, 1.0)):
        lines = folders.evaluations(clocked, [10, 20, 30])
        timed = [line | {"time": pace * line["round"]} for line in lines]
        folders.write(store, clocked.varied(seed=seed), timed, folders.completed(30.0))
    folders.write(store, base, folders.evaluations(base, [40, 50, 60]), folders.completed(60.0))
    (table,) = pivots(store, ["clock"], "attack", over="time")
    (axes,) = figure(table).axes
    assert axes.get_xlabel() == "simulated time"
    assert axes.get_xlim() == (0, 45)
    curves = sorted(points(line) for line in thick(axes))
    # At 30 the fast seed, at 0.5 a round, is at 20, and the other at 10; at 45 at 30 and 15.
    assert curves[0] == [(30, 15), (37.5, pytest.approx(18.75)), (45, pytest.approx(22.5))]
    assert curves[1] == [(30, 40), (60, 50), (90, 60)]
    (plain,) = pivots(store, ["clock"], "attack")
    assert figure(plain).axes[0].get_xlabel() == "round"


# -- files --------------------------------------------------------------------------------------


def test_equal_results_are_equal_files_also_from_threads(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    names = ("figure-krum-selections", "figure-mimic-demo")
    for name in names:
        folders.fill(store, made(name, ONE), lambda cell, seed: 50.0)
    compared = [comparison(name, store, ONE) for name in names]
    alone = [path.read_bytes() for c in compared for path in draw(c, tmp_path / "alone", dpi=40)]
    with ThreadPoolExecutor(2) as pool:
        together = pool.map(lambda c: draw(c, tmp_path / "together", dpi=40), compared)
    assert [path.read_bytes() for paths in together for path in paths] == alone


def test_without_matplotlib_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[report\]'"):
        draw(comparison("table2", Store(tmp_path), ONE), tmp_path)
