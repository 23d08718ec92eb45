"""Draws the pictures of the documentation: `python scripts/pictures.py [name ...]`.

Writes each to docs/pictures/NAME.svg, and prints the numbers in it. A picture that is drawn again
is the same file, byte by byte. `python scripts/pictures.py --alt` prints the alternative texts.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch, Patch
from torch import Tensor

import byzantium as bz
from byzantium.data import by_label, iid, load
from byzantium.learning import Settings, Simulation, linear, mlp, simulate
from byzantium.reports.palette import ATTACKER, BY_CLASS, HONEST, LINES, SCALE
from byzantium.reports.style import BLACK, GREY

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
# Inches: 720 pixels of a page, where a point is a pixel and a third.
WIDTH = 7.5
LOOK = {
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.edgecolor": GREY,
    "axes.labelcolor": BLACK,
    "text.color": BLACK,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "byzantium",
}
PALE = "#C9C9C9"
HEAT = LinearSegmentedColormap.from_list("scale", SCALE)
STAR: dict[str, Any] = {"marker": "*", "s": 210, "color": "#FFD60A", "edgecolor": BLACK, "lw": 0.8}
NAMES = {
    "Mean": "mean",
    "Krum": "Krum",
    "Median": "median",
    "GeometricMedian": "geometric median",
}
RULES = {"Krum": bz.Krum(f=5), "Median": bz.Median(), "GeometricMedian": bz.GeometricMedian()}


@dataclass(frozen=True)
class Picture:
    """A function that draws it and returns its numbers in a sentence, and an alternative text."""

    draw: Callable[[], tuple[Figure, str]]
    alt: str


PICTURES: dict[str, Picture] = {}


def picture(alt: str) -> Callable[[Callable[[], tuple[Figure, str]]], Any]:
    def register(draw: Callable[[], tuple[Figure, str]]) -> Callable[[], tuple[Figure, str]]:
        PICTURES[draw.__name__] = Picture(draw, alt)
        return draw

    return register


# -- shared parts ---------------------------------------------------------------------------------


def sheet(title: str, height: float) -> Figure:
    """An empty figure with a title."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    figure.suptitle(title, x=0.015, ha="left", fontsize=12, weight="bold")
    return figure


def plain(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#ECECEC", linewidth=0.6)
    axis.set_axisbelow(True)


def empty(axis: Axes) -> None:
    """Remove the ticks of a plane."""
    axis.set(xticks=[], yticks=[], aspect="equal")
    axis.spines[:].set_color(PALE)


def look(rule: str, **more: Any) -> dict[str, Any]:
    """Color, marker and name of one of the paper's rules."""
    shown = BY_CLASS[rule]
    return {
        "color": shown.color.light,
        "marker": shown.marker,
        "label": NAMES[rule],
        **more,
    }


def key(**style: Any) -> Line2D:
    """A point of a legend."""
    return Line2D([], [], **{"linestyle": "none", "markeredgecolor": "white", "ms": 8, **style})


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def groups(honest: int, seed: int) -> Tensor:
    """Workers in the plane with three kinds of data, in turn.

    No side of the triangle is along a coordinate, which would favor the median by coordinate.
    """
    corners = torch.tensor([[0.0, 0.0], [9.4, 3.4], [1.8, 9.7]])[torch.arange(honest) % 3]
    return corners + 0.7 * torch.randn(honest, 2, generator=generator_of(seed))


def attacked(honest: Tensor, attackers: int) -> Tensor:
    """The honest vectors, and those of attackers who copy worker 0."""
    copies = bz.Mimic(target=0)(honest, q=attackers)
    return torch.cat([honest, copies])


def spread(vectors: Tensor) -> float:
    """The unbiased variance over all coordinates, as in Lemma 1."""
    return float(vectors.var(dim=0).sum())


# -- the pictures ---------------------------------------------------------------------------------


@picture(
    "A line from -1 to +1. 12 workers are at -1 and 13 at +1. The mean is near 0; Krum, the "
    "median and the geometric median are all at +1."
)
def camps() -> tuple[Figure, str]:
    """The paper's opening example."""
    updates = torch.tensor([[(-1.0) ** i] for i in range(25)])
    results = {name: rule(updates).item() for name, rule in {"Mean": bz.Mean(), **RULES}.items()}
    figure = sheet("All workers are honest, and robust rules still follow one group only", 2.7)
    axis = figure.subplots()
    axis.axhline(0, color=GREY, lw=1, zorder=1)
    for camp in (-1, 1):
        count = int((updates == camp).sum())
        for k in range(count):
            axis.scatter(camp + 0.06 * (k % 5 - 2), 0.14 + 0.16 * (k // 5), s=52, color=PALE)
        axis.text(camp, 0.62, f"{count} workers send {camp:+d}", ha="center")
    axis.text(0, 0.08, "0", ha="center", color=GREY)
    axis.plot([0, 0], [0, 0.05], color=GREY, lw=1)
    for name, value in results.items():
        y = -0.2 if name == "Mean" else -0.2 * (1 + list(RULES).index(name))
        axis.scatter(value, y, s=90, zorder=3, edgecolor="white", **look(name))
        axis.text(value + 0.07, y, f"{NAMES[name]}: {value:+.2f}", va="center")
    axis.plot([results["Mean"]] * 2, [-0.2, 0], color=GREY, lw=0.8, zorder=2)
    axis.plot([1, 1], [-0.6, 0], color=GREY, lw=0.8, zorder=2)
    axis.set(xlim=(-1.3, 1.75), ylim=(-0.72, 0.75))
    axis.axis("off")
    text = ", ".join(f"{NAMES[name]} {value:+.2f}" for name, value in results.items())
    return figure, text


@picture(
    "Two panels with the same 25 points on a line: 5 at -1, 15 at 0, 5 at +1. In the left panel "
    "the points at -1 are bad, and the honest mean is at +0.25; in the right panel those at +1 "
    "are, and it is at -0.25. The trimmed mean is at 0 in both."
)
def worlds() -> tuple[Figure, str]:
    """The two worlds of Proposition 12, which look the same to a server."""
    n, f = 25, 5
    updates = torch.tensor([[0.0]] * (n - 2 * f) + [[1.0]] * f + [[-1.0]] * f)
    result = bz.TrimmedMean(f=f)(updates).item()
    figure = sheet("The server sees the same vectors, and must step to opposite sides", 2.6)
    axes, numbers = figure.subplots(1, 2, sharex=True, sharey=True), []
    for axis, bad, title in zip(axes, (-1, 1), ("one world", "the other world"), strict=True):
        honest = updates[updates[:, 0] != bad]
        mean = honest.mean().item()
        b2 = float(honest.var(correction=0)) / mean**2
        axis.axhline(0, color=GREY, lw=1, zorder=1)
        for place in (-1, 0, 1):
            count = int((updates == place).sum())
            attacker = {"facecolor": "none", "edgecolor": ATTACKER.light, "lw": 1.6}
            style = attacker if place == bad else {"color": PALE}
            for k in range(count):
                axis.scatter(place + 0.09 * (k % 5 - 2), 0.16 + 0.17 * (k // 5), s=44, **style)
            who = "bad" if place == bad else "honest"
            axis.text(place, 0.72, f"{count} {who}", ha="center")
        axis.scatter(mean, -0.2, zorder=4, **STAR)
        axis.text(mean + 0.1, -0.2, f"honest mean {mean:+.2f}", va="center")
        axis.scatter(result, -0.45, s=70, color=HONEST.light, marker="D", zorder=4)
        axis.text(result + 0.1, -0.45, f"trimmed mean {result:.0f}", va="center")
        axis.set(xlim=(-1.35, 1.35), ylim=(-0.6, 0.85))
        axis.set_title(title, loc="left")
        axis.axis("off")
        numbers.append(f"{title}: mean {mean:+.2f}, B² {b2:.3g}, trimmed mean {result:.2f}")
    return figure, "; ".join(numbers)


@picture(
    "Two panels with three groups of workers; five attackers copy a worker of the lower left "
    "group. Alone, Krum, the median and the geometric median land away from the honest mean, "
    "towards the copied group; behind buckets of two they land nearer to it."
)
def mimic() -> tuple[Figure, str]:
    """The results of rules for three groups of workers and attackers that copy one worker."""
    draws, honest = 100, groups(20, seed=4)
    X, mean = attacked(honest, 5), honest.mean(dim=0)
    figure = sheet("Copies of one worker move robust rules to it; buckets move them back", 4.0)
    axes, numbers = figure.subplots(1, 2, sharex=True, sharey=True), []
    for axis, s in zip(axes, (1, 2), strict=True):
        axis.scatter(*honest.T, s=30, color=PALE)
        axis.scatter(*honest[0], s=170, facecolor="none", edgecolor=ATTACKER.light, lw=1.8)
        axis.scatter(*mean, zorder=4, **STAR)
        for name, rule in RULES.items():
            pipeline, generator = bz.Bucketing(s) >> rule, generator_of(4)
            results = torch.stack([pipeline(X, generator) for _ in range(draws if s > 1 else 1)])
            if s > 1:
                axis.scatter(*results.T, s=7, color=look(name)["color"], alpha=0.25, lw=0)
            axis.scatter(*results.mean(dim=0), s=80, zorder=5, edgecolor="white", **look(name))
            off = float((results - mean).norm(dim=1).mean())
            numbers.append(f"{NAMES[name]}, s = {s}: {off:.1f}")
        axis.margins(0.09)
        empty(axis)
    axes[0].set_title("alone")
    axes[1].set_title(f"behind buckets of two: {draws} rounds, and their mean")
    figure.legend(
        handles=[
            key(marker="o", color=PALE, label="honest worker"),
            key(
                marker="o",
                color="none",
                markeredgecolor=ATTACKER.light,
                markeredgewidth=1.8,
                ms=11,
                label="copied by 5 attackers",
            ),
            key(marker="*", color=STAR["color"], ms=14, markeredgecolor=BLACK, label="honest mean"),
            *(key(**look(name)) for name in RULES),
        ],
        loc="outside lower center",
        ncols=3,
    )
    return figure, "distance to the honest mean, mean over rounds: " + ", ".join(numbers)


@picture(
    "Four panels. 1: 18 honest workers in three groups, and 4 attackers beside one group. 2: all "
    "are joined in random pairs. 3: the means of the pairs lie closer together. 4: the geometric "
    "median lands far from the honest mean alone, and near it behind the buckets."
)
def bucketing() -> tuple[Figure, str]:
    """The steps of Bucketing(s=2), from the report of one call."""
    honest, q, rule = groups(18, seed=1), 4, bz.GeometricMedian()
    # Attackers a little apart, so that all of them are visible.
    around = torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
    X = torch.cat([honest, attacked(honest, q)[-q:] + 0.55 * around])
    mean, pipeline = honest.mean(dim=0), bz.Bucketing(s=2) >> rule
    report, alone = pipeline.explain(X, generator_of(0)), rule(X)
    mixing = report.mixing.float()
    buckets, hit = mixing @ X, (mixing[:, -q:] > 0).any(dim=1)

    figure = sheet("Bucketing, step by step: average random pairs, then apply the rule", 6.6)
    axes = list(figure.subplots(2, 2, sharex=True, sharey=True).flat)
    for axis in axes:
        faint = 0.25 if axis in axes[2:] else 1.0
        axis.scatter(*honest.T, s=34, color=HONEST.light, alpha=faint, lw=0)
        axis.scatter(*X[-q:].T, s=40, marker="X", color=ATTACKER.light, alpha=faint, lw=0)
        axis.margins(0.08)
        empty(axis)
    for row, byzantine in zip(mixing, hit, strict=True):
        axes[1].plot(*X[row > 0].T, color=ATTACKER.light if byzantine else GREY, lw=1, zorder=0)
    axes[2].scatter(*buckets[~hit].T, s=60, color=HONEST.light, edgecolor="white")
    axes[2].scatter(*buckets[hit].T, s=70, marker="X", color=ATTACKER.light, edgecolor="white")
    before, after = spread(honest), spread(buckets[~hit])
    axes[3].scatter(*mean, zorder=4, **STAR)
    style = look("GeometricMedian", s=80, zorder=5)
    off = [float((results - mean).norm()) for results in (alone, report.aggregate)]
    axes[3].scatter(*alone, **{**style, "color": "white", "edgecolor": style["color"], "lw": 1.8})
    axes[3].scatter(*report.aggregate, **style, edgecolor="white")
    notes = {"color": BLACK, "arrowprops": {"arrowstyle": "-", "color": GREY, "shrinkB": 6}}
    axes[3].annotate(f"alone: {off[0]:.1f} away", alone, (-1.2, 5.6), **notes)
    axes[3].annotate(f"behind buckets: {off[1]:.1f}", report.aggregate, (3.0, -1.7), **notes)
    axes[3].annotate("honest mean", mean, (6.5, 5.0), **notes)
    for axis, title in zip(
        axes,
        (
            f"1. {len(honest)} honest workers, {q} attackers (x)",
            f"2. {len(mixing)} random pairs",
            f"3. their means: spread {before:.0f} → {after:.0f} (honest pairs)",
            "4. geometric median, before and after",
        ),
        strict=True,
    ):
        axis.set_title(title, loc="left")
    many = [pipeline.explain(X, generator_of(k)) for k in range(1000)]
    ratios = []
    for each in many:
        P = each.mixing.float()
        ratios.append(spread((P @ X)[(P[:, -q:] == 0).all(dim=1)]) / before)
    usual = fmean(float((each.aggregate - mean).norm()) for each in many)
    return figure, (
        f"spread {before:.1f} -> {after:.1f}, distance to the honest mean {off[0]:.1f} -> "
        f"{off[1]:.1f}; over 1000 draws the spread becomes {fmean(ratios):.2f} of it, and the "
        f"distance {usual:.1f}"
    )


@picture(
    "A wide matrix X of 20 workers by 650 numbers becomes a 20 by 20 matrix G of inner products; "
    "from G come the weights of Krum, one bar, and of the geometric median, twenty bars; the "
    "weights times X are the two results."
)
def gram() -> tuple[Figure, str]:
    """Gradients X of a small federation, their Gram matrix, weights and results."""
    n = 20
    torch.manual_seed(0)
    settings = Settings(n=n, rounds=1)
    training = Simulation(
        settings, load("digits"), linear((1, 8, 8)), bz.Mean(), partition=by_label()
    )
    next(iter(training))
    X = training.sent
    G, d = X @ X.T, X.shape[1]
    rules = {"Krum": bz.Krum(f=4), "GeometricMedian": bz.GeometricMedian()}
    reports = {name: rule.explain(X) for name, rule in rules.items()}

    figure = Figure(figsize=(WIDTH, 4.6))
    title = "n x n numbers are enough for Krum and the geometric median"
    figure.suptitle(title, x=0.015, ha="left", fontsize=12, weight="bold")
    left, right = (0.1, 0.5), (0.73, 0.245)  # where columns begin, and how wide they are
    tall = right[1] * WIDTH / 4.6
    matrix = figure.add_axes((left[0], 0.46, left[1], tall))
    square = figure.add_axes((right[0], 0.46, right[1], tall))
    most = float(X.abs().quantile(0.97))
    colors = {"cmap": HEAT, "interpolation": "nearest"}
    matrix.imshow(X, aspect="auto", vmin=-most, vmax=most, **colors)
    square.imshow(G, **colors)
    matrix.set_title(f"X: {n} workers x {d} numbers", loc="left")
    square.set_title(f"G = X Xᵀ: {n} x {n}", loc="left")
    matrix.set_ylabel("worker")
    for k, (name, report) in enumerate(reports.items()):
        bottom = 0.24 - 0.18 * k
        bars = figure.add_axes((right[0], bottom, right[1], 0.1))
        bars.bar(range(n), report.weights, 0.75, color=look(name)["color"])
        top = float(report.weights.max())
        bars.set(xlim=(-0.5, n - 0.5), ylim=(0, 1.15 * top), xticks=[], yticks=[0, round(top, 2)])
        bars.spines[["top", "right"]].set_visible(False)
        bars.set_title(f"weights, {NAMES[name]}", loc="left", pad=3)
        strip = figure.add_axes((left[0], bottom + 0.02, left[1], 0.06))
        strip.imshow(report.aggregate[None], aspect="auto", vmin=-most, vmax=most, **colors)
        strip.set(xticks=[], yticks=[])
        strip.set_title(f"weights @ X, {NAMES[name]}", loc="left", pad=3)
        _arrow(figure, bars, (-0.19, 0.5), strip, (1.02, 0.5))
    for axis in (matrix, square):
        axis.set(xticks=[], yticks=[])
    _arrow(figure, matrix, (1.03, 0.5), square, (-0.06, 0.5))
    _arrow(figure, square, (0.9, -0.05), square, (0.9, -0.3))
    text = {name: [round(w, 2) for w in r.weights.tolist()] for name, r in reports.items()}
    return figure, f"X is {n} x {d}, G {n} x {n}; weights {text}"


def _arrow(
    figure: Figure, start: Axes, a: tuple[float, float], end: Axes, b: tuple[float, float]
) -> None:
    figure.add_artist(
        ConnectionPatch(
            a,
            b,
            start.transAxes,
            end.transAxes,
            arrowstyle="-|>",
            mutation_scale=14,
            color=GREY,
            lw=1.6,
        )
    )


@picture(
    "Two panels over 600 rounds, for momentum 0, 0.9 and 0.99. Left: the spread of the honest "
    "vectors falls by a factor of ten and more with momentum. Right: under the attack ALIE Krum "
    "fails without momentum and learns with it."
)
def momentum() -> tuple[Figure, str]:
    """The spread of honest vectors, and the accuracy of Krum under ALIE, by momentum."""
    figure = sheet("Momentum averages away the noise in which attackers hide", 3.6)
    calm, hit = figure.subplots(1, 2)
    window, numbers = 20, []
    for beta in (0.0, 0.9, 0.99):
        style = {"color": LINES["momentum"][beta].light, "lw": 1.8, "label": f"momentum {beta:g}"}
        spreads = [record["spread"] for record in _simulate(beta, 0, bz.Mean(), 0).rounds]
        rounds = range(window, len(spreads) + 1, window)
        means = [fmean(spreads[t - window : t]) for t in rounds]
        calm.plot(rounds, means, **style)
        seeds = [_simulate(beta, 5, bz.Krum(f=5), seed).evaluations for seed in range(3)]
        rounds = [at["round"] for at in seeds[0]]
        values = [[at["accuracy"] for at in each] for each in zip(*seeds, strict=True)]
        middle, width = [fmean(v) for v in values], [stdev(v) for v in values]
        hit.plot(rounds, middle, **style)
        low = [m - w for m, w in zip(middle, width, strict=True)]
        high = [m + w for m, w in zip(middle, width, strict=True)]
        hit.fill_between(rounds, low, high, color=style["color"], alpha=0.15, lw=0)
        numbers.append(f"momentum {beta:g}: spread {means[-1]:.2f}, accuracy {middle[-1]:.0f} %")
    calm.set_title("spread of the honest vectors; nobody attacks", loc="left")
    calm.set(yscale="log", ylim=(0.1, 40), xlabel="round")
    calm.yaxis.set_major_formatter("{x:g}")
    calm.legend()
    hit.set_title("Krum, 5 of 25 attack (ALIE): accuracy (%)", loc="left")
    hit.set(ylim=(0, 100), xlabel="round")
    for axis in (calm, hit):
        plain(axis)
        axis.set_xlim(0, 600)
    return figure, "after 600 rounds, " + "; ".join(numbers)


def _simulate(beta: float, q: int, rule: bz.Aggregator, seed: int) -> Any:
    """A training on iid digits, with one image in each batch, so that gradients are noisy."""
    torch.manual_seed(seed)
    settings = Settings(
        n=25,
        attackers=q,
        rounds=600,
        batch=1,
        momentum=beta,
        learning_rate=0.1,
        record=("spread",),
        seed=seed,
    )
    attack = bz.ALittleIsEnough(z=1.5)
    return simulate(settings, load("digits"), mlp((1, 8, 8)), rule, attack, iid(), progress=False)


@picture(
    "Two panels: the error of the geometric median behind buckets of 1, 2, 3 and 5, over the share "
    "of attackers. Left, attackers copy a worker: larger buckets err less. Right, attackers are "
    "far away: each line leaves the panel before s times the share reaches one half."
)
def delta() -> tuple[Figure, str]:
    """The error of Bucketing(s) >> GeometricMedian() by the share of attackers."""
    n, d, draws, top = 60, 100, 40, 0.8
    figure = sheet("Larger buckets resist copies better, and break under fewer attackers", 3.7)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    sends = {
        "attackers copy a worker": lambda honest: honest[0],
        "attackers are far away": lambda honest: torch.full((d,), 1e3),
    }
    numbers = []
    for axis, (title, attack) in zip(axes, sends.items(), strict=True):
        for s, colour in LINES["s"].items():
            style = {"color": colour.light, "lw": 1.8, "label": f"s = {s}" if s > 1 else "alone"}
            errors = {f / n: _error(n, f, d, s, attack, draws) for f in range(n // 2)}
            axis.plot(list(errors), list(errors.values()), **style)
            last = max(share for share, error in errors.items() if error < top)
            numbers.append(f"{title}, s = {s}: {errors[20 / n]:.3g} at 1/3, small up to {last:.2f}")
            if "far" in title:
                axis.axvline(1 / (2 * s), color=colour.light, lw=1, ls=(0, (4, 3)))
        axis.set_title(title, loc="left")
        axis.set(xlabel="share of attackers", ylim=(0, top), xlim=(0, 0.5))
        plain(axis)
    axes[0].set_ylabel("distance to the honest mean\n(1 = that of two honest workers)")
    axes[0].legend(loc="upper left")
    dashed = Line2D([], [], color=GREY, lw=1, ls=(0, (4, 3)), label="s x share = 1/2")
    axes[1].legend(handles=[dashed], loc="lower right")
    return figure, "; ".join(numbers)


def _error(n: int, f: int, d: int, s: int, attack: Callable[[Tensor], Tensor], draws: int) -> float:
    """The mean distance to the honest mean, in units of that between two honest workers."""
    rule, generator, errors = bz.Bucketing(s) >> bz.GeometricMedian(), generator_of(0), []
    for _ in range(draws):
        honest = torch.randint(2, (n - f, d), generator=generator).float() * 2 - 1
        X = torch.cat([honest, attack(honest).expand(f, d)])
        off = rule(X, generator) - honest.mean(dim=0)
        errors.append(float(off.norm()) / (2 * spread(honest)) ** 0.5)
    return fmean(errors)


@picture(
    "Bars of the weights of 25 workers, the last 5 of them attackers, in four panels. Attackers "
    "that are far away have hardly any weight. Attackers that copy worker 0 have the same weight "
    "as worker 0, alone and behind buckets."
)
def weights() -> tuple[Figure, str]:
    """The weights of workers in the geometric median."""
    q, draws, honest = 5, 200, groups(20, seed=4)
    n, rule = len(honest) + q, bz.GeometricMedian()
    sent = {
        "5 attackers far away": torch.cat([honest, torch.full((q, 2), 60.0)]),
        "5 attackers copy worker 0": attacked(honest, q),
    }
    title = "Weights say who counted, not who is bad: a copy counts like its original"
    figure = sheet(title, 4.4)
    axes, numbers = figure.subplots(2, 2, sharex=True, sharey="row"), []
    for column, (name, X) in enumerate(sent.items()):
        for row, s in enumerate((1, 2)):
            axis, generator = axes[row][column], generator_of(0)
            pipeline = bz.Bucketing(s) >> rule
            many = [pipeline.explain(X, generator).weights for _ in range(draws if s > 1 else 1)]
            mean = torch.stack(many).mean(dim=0)
            colors = [BLACK, *[HONEST.light] * (n - q - 1), *[ATTACKER.light] * q]
            hatches = [""] * (n - q) + ["////"] * q
            axis.bar(range(n), mean, 0.8, color=colors, hatch=hatches, edgecolor="white", lw=0.3)
            axis.axhline(1 / n, color=GREY, lw=1, ls=(0, (4, 3)))
            text = "alone" if s == 1 else f"behind buckets of two, mean of {draws} rounds"
            axis.set_title(f"{name}\n{text}" if row == 0 else text, loc="left")
            plain(axis)
            axis.grid(visible=False, axis="x")
            share = float(mean[-q:].sum())
            numbers.append(
                f"{name}, s = {s}: {share:.0%} on attackers, worker 0 {float(mean[0]):.3f}, "
                f"an attacker {float(mean[-1]):.3f}"
            )
        axes[1][column].set_xlabel("worker")
    for row in axes:
        row[0].set_ylabel("weight")
    figure.legend(
        handles=[
            Patch(color=BLACK, label="worker 0"),
            Patch(color=HONEST.light, label="other honest workers"),
            Patch(facecolor=ATTACKER.light, hatch="////", edgecolor="white", label="attacker"),
            Line2D([], [], color=GREY, lw=1, ls=(0, (4, 3)), label="even share, 1/25"),
        ],
        loc="outside lower center",
        ncols=4,
    )
    return figure, "; ".join(numbers)


# -- output ---------------------------------------------------------------------------------------


def write(names: Iterable[str], folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with matplotlib.rc_context(LOOK):
            figure, numbers = PICTURES[name].draw()
            content = io.BytesIO()
            figure.savefig(content, format="svg", facecolor="white", metadata={"Date": None})
        path = folder / f"{name}.svg"
        path.write_bytes(content.getvalue())
        print(f"{path.name} ({len(content.getvalue()) / 1000:.0f} kB): {numbers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(PICTURES))
    parser.add_argument("--alt", action="store_true", help="print the texts instead")
    arguments = parser.parse_args()
    names = arguments.names or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}")
    if arguments.alt:
        print("\n".join(f"{name}: {PICTURES[name].alt}" for name in names))
    else:
        torch.set_num_threads(1)
        write(names)


if __name__ == "__main__":
    main()
