"""The ranking of the benchmark: in Markdown, on the HTML page, as figures, for the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from byzantium.core import files, import_optional
from byzantium.papers.benchmarks import FINALISTS
from byzantium.reports.escaping import in_markdown
from byzantium.reports.formats import markdown_table
from byzantium.reports.style import BLACK, CENTERED, GREY, SMALL, USUAL, render
from byzantium.reports.text_tables import BOLD, Entry, TextTable
from byzantium.tables import Ranking, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the level "full" adds.
FURTHER = {
    "mnist": "MNIST sorted by label, with a convolutional network",
    "fifty": "50 workers, data sorted by label",
    "sampled": "25 of 50 workers in each round, data sorted by label",
    "local-steps": "five local steps, data sorted by label",
}
SPLITS = {
    "noniid": "data sorted by label",
    "dirichlet-0.1": "Dirichlet(0.1)",
    "dirichlet-1": "Dirichlet(1)",
    "iid": "iid data",
    **FURTHER,
}
# The splits that are less heterogeneous than the first, and the further settings, in a sentence.
WHERE = {
    "dirichlet-0.1": "on Dirichlet(0.1)",
    "dirichlet-1": "on Dirichlet(1)",
    "iid": "on iid data",
    "mnist": "on MNIST",
    "fifty": "with 50 workers",
    "sampled": "where workers are sampled",
    "local-steps": "with local steps",
}
# Marks a pipeline of the user.
OWN = "*"
# The size of text in the heat map, which a page shows at about its own width.
READABLE = 9.0
# A pipeline that keeps less than this, in percent, counts as broken.
BROKEN = 50.0


def rule_text(row: Row) -> str:
    """A pipeline in our notation, with its root data and a mark if it is the user's own."""
    root = f", {row.root} root images per class" if row.root else ""
    return f"{row.rule}{root}{'' if row.commit else ' ' + OWN}"


def entry(ranking: Ranking, row: Row, split: str, f: int) -> str:
    """A cell of the ranking: the worst accuracy, and the attack that it is of."""
    worst = row.worst(split, f, ranking.attacks)
    if worst is None:
        return "-"
    spread = "" if math.isnan(worst.deviation) else f" ± {worst.deviation:.1f}"
    return f"{worst.mean:.1f}{spread} ({worst.attack})"


def table(ranking: Ranking, split: str) -> TextTable:
    """The table of one split, the best pipeline first; the best of each column are marked."""
    counts = ranking.attackers(split)
    best = {f: ranking.best(split, f) for f in counts}
    rows = []
    for row in ranking.sorted(split):
        values = [row.undisturbed(split, f) for f in counts]
        known = [value for value in values if value is not None]
        free = f"{fmean(known):.1f}" if known else "-"
        cells = (
            Entry(entry(ranking, row, split, f), "best" if row in best[f] else "") for f in counts
        )
        rows.append((Entry(rule_text(row)), *cells, Entry(free)))
    head = ("pipeline", *(f"f = {f}" for f in counts), "nobody attacks")
    return TextTable(head, tuple(rows), 1)


def splits_of(ranking: Ranking) -> list[str]:
    """The splits of a ranking, the most heterogeneous first."""
    there = dict.fromkeys(split for split, _ in ranking.settings)
    return [*(name for name in SPLITS if name in there), *(s for s in there if s not in SPLITS)]


def write_page(path: Path, ranking: Ranking) -> list[Path]:
    """Write the ranking as a page of Markdown, with two figures beside it.

    Returns the files that were written.
    """
    import_optional("matplotlib", "report", "a figure")
    figures = {
        path.with_name(f"{path.stem}-attacks.svg"): _heat_map(ranking),
        path.with_name(f"{path.stem}-price.svg"): _scatter(ranking),
    }
    for file, figure in figures.items():
        files.write(file, render(figure, "svg", 100, metadata={"Date": None}))
    heat, price = (file.name for file in figures)
    files.write(path, "\n".join(_page(ranking, heat, price)))
    return [path, *figures]


def _page(ranking: Ranking, heat: str, price: str) -> Iterator[str]:
    first, count = splits_of(ranking)[0], len(ranking.attacks)
    yield "# Benchmark of rules\n"
    yield (
        f"Every pipeline meets the same {count} attacks (suite {ranking.suite}), and counts by "
        "the one that hurts it most. The data are handwritten digits, which 25 workers hold; f = "
        "1, 3 or 5 of them attack, and the rule is told this number. The tables are sorted by the "
        "mean of the worst accuracies.\n"
    )
    yield (
        f"![Accuracy of each pipeline under each attack, {SPLITS.get(first, first)}, "
        f"{ranking.attackers(first)[-1]} of 25 attack]({heat})\n"
    )
    for split in splits_of(ranking):
        shown = table(ranking, split)
        if shown.rows:
            yield f"## {_title(split)}\n"
            yield markdown_table(shown)
            yield from _missing(ranking, split)
    yield _about_root(ranking)
    yield "## The price of robustness\n"
    yield (
        f"![Accuracy under the worst attack against accuracy without attackers]({price})\n\n"
        "To the right: accurate where nobody attacks. Above: accurate under the worst attack. "
        "Named are the pipelines than which no other is better in both.\n"
    )
    yield "## One sentence for each pipeline\n"
    for row in ranking.sorted(first):
        yield f"- `{rule_text(row)}` {_sentence(ranking, row, first)}"
    yield "\n## How to read it, and how to add a rule\n"
    yield (
        "- A cell has the mean test accuracy (%) over three seeds, its standard deviation, and the "
        f"attack. A run that diverged counts as 0 %. {BOLD}\n"
        '- "Nobody attacks" has the same rule, with the same f, and 25 honest workers; it is the '
        "mean over the numbers f.\n"
        "- Data sorted by label: a worker holds one or two of the ten classes. Dirichlet(a): each "
        "class is divided in random shares, which differ the more the smaller a is.\n"
        f"- `byzantium benchmark --jobs 2` makes the runs: 200 rounds, momentum 0.9, `mlp`, "
        f"learning rate 0.2. The numbers here were computed on {ranking.machine}, at these "
        f"commits: {_commits(ranking)}.\n"
        '- `byzantium benchmark --plugin mine.py --rule "Mine()" --jobs 2` runs a rule of your own '
        f"under the same attacks, and shows it in this ranking, marked {in_markdown(OWN)}.\n"
        "- `byzantium benchmark --level full --jobs 2` runs the best three pipelines in four "
        "further settings: on MNIST with `convnet`, with 50 workers, with 25 of 50 sampled in each "
        "round, and with five local steps. The data are sorted by label, where pipelines differ "
        "most, and 12 and 20 % attack; on MNIST only 20 %, because a run takes two minutes of a "
        "core. For each pipeline MNIST takes 45 minutes on two cores, the other three settings "
        "together ten, the four splits of digits ten: three and a quarter hours for all. An "
        f"interrupted command goes on where it stopped.{_further(ranking)}\n"
        "- The attacks: " + ", ".join(f"`{attack}`" for attack in ranking.attacks) + "; "
        "[their definitions](reference/attacks.md) are in the reference.\n"
    )


def _further(ranking: Ranking) -> str:
    """That the level "full" was not run, if it was not."""
    there = [split for split in FURTHER if ranking.sorted(split)]
    return "" if there else " None of these runs is recorded yet."


def _title(split: str) -> str:
    """The name of a split, as a title."""
    title = SPLITS.get(split, split)
    return f"{title[0].upper()}{title[1:]}"


def _missing(ranking: Ranking, split: str) -> Iterator[str]:
    """Which pipelines were not run in a split; in the further settings, which of the finalists."""
    further = split in FURTHER
    if not further and ranking.attackers(split) != ranking.attackers(splits_of(ranking)[0]):
        return  # a part of a split, for a pipeline of the user
    there = ranking.sorted(split)
    wanted = [row for row in ranking.rows if row.rule != "RootOnly()"]
    wanted = [row for row in wanted if not further or row.name in FINALISTS]
    absent = [row for row in wanted if row not in there]
    if absent:
        yield f"Not run: {', '.join(f'`{rule_text(row)}`' for row in absent)}.\n"


def _commits(ranking: Ranking) -> str:
    """The commits of most rows, then those of others after their names."""
    of = {row.name: row.commit for row in ranking.rows if row.commit}
    (usual, _), *others = Counter(of.values()).most_common() or [("unknown", 0)]
    named = [", ".join(n for n in of if of[n] == commit) for commit, _ in others]
    return "; ".join([usual, *(f"{n}: {c}" for (c, _), n in zip(others, named, strict=True))])


def _about_root(ranking: Ranking) -> str:
    """What the root images alone give, beside the pipelines that use them."""
    split = splits_of(ranking)[0]
    alone = {
        row.root: value
        for row in ranking.rows
        if row.rule == "RootOnly()"
        for f in ranking.attackers(split)[-1:]
        if (value := row.undisturbed(split, f)) is not None
    }
    if not alone:
        return ""
    listed = " and ".join(f"{value:.1f} % with {k} images" for k, value in sorted(alone.items()))
    return (
        f"Pipelines with root images ([root data](do/root.md)) must beat training on these images "
        f"alone, which no attacker disturbs: {listed} per class.\n"
    )


def _sentence(ranking: Ranking, row: Row, split: str) -> str:
    """What the benchmark says about a pipeline, in one sentence."""
    counts = ranking.attackers(split)
    worst = {f: row.worst(split, f, ranking.attacks) for f in counts}
    broken = [f for f, one in worst.items() if one is not None and one.mean < BROKEN]
    kept = [f for f in counts if f < min(broken, default=math.inf)]
    above, title = f"stays above {BROKEN:.0f} %", SPLITS.get(split, split)
    if kept:
        up_to = "up to " if len(kept) > 1 else ""
        text = f"{above} on {title} with {up_to}{kept[-1]} of 25 attackers"
    else:
        text = f"falls below {BROKEN:.0f} % on {title} with {counts[0]} of 25 attackers"
    last = worst[counts[-1]]
    assert last is not None
    text += f" ({last.attack} leaves {last.mean:.1f} % with {counts[-1]})"
    held = [
        WHERE.get(other, f"on {other}")
        for other in splits_of(ranking)[1:]
        if _holds(ranking, row, other)
    ]
    if not held:
        return f"{text}."
    listed = " and ".join(filter(None, (", ".join(held[:-1]), held[-1])))
    return f"{text}; with a fifth of attackers it {'does so' if kept else above} {listed}."


def _holds(ranking: Ranking, row: Row, split: str) -> bool:
    """Whether a pipeline is not broken by the largest number of attackers of a split."""
    worst = row.worst(split, ranking.attackers(split)[-1], ranking.attacks)
    return worst is not None and worst.mean >= BROKEN


def for_page(ranking: Ranking) -> dict[str, Any]:
    """The ranking as values for the HTML page: its tables, its two figures and its sentences.

    >>> rows = [Row(name, name, 0, {("iid", 1): {"none": (96.0,), "ipm": (value,)}}, "abc")
    ...         for name, value in (("a", 10.0), ("b", 90.0))]
    >>> for rule, sentence in for_page(Ranking("1", ("ipm",), tuple(rows)))["sentences"]:
    ...     print(rule, sentence)
    b stays above 50 % on iid data with 1 of 25 attackers (ipm leaves 90.0 % with 1).
    a falls below 50 % on iid data with 1 of 25 attackers (ipm leaves 10.0 % with 1).
    """
    splits = splits_of(ranking)
    tables = {_title(split): table(ranking, split) for split in splits}
    f, rows, attacks, values = _by_attack(ranking)
    return {
        "suite": ranking.suite,
        "attacks": len(ranking.attacks),
        "tables": [
            {
                "title": title,
                "head": shown.head,
                "rows": [[(entry.text, entry.tone) for entry in line] for line in shown.rows],
            }
            for title, shown in tables.items()
            if shown.rows
        ],
        "heat": {
            "title": _heat_title(ranking, f),
            "columns": attacks,
            "rows": [
                (rule_text(row), [None if math.isnan(value) else value for value in line])
                for row, line in zip(rows, values, strict=True)
            ],
        },
        "price": [
            {"title": f"{f} of 25 attack", "points": list(_points(ranking, f))}
            for f in ranking.attackers(splits[0])
        ],
        "sentences": [(rule_text(row), _sentence(ranking, row, splits[0])) for row in rows],
    }


def _by_attack(ranking: Ranking) -> tuple[int, list[Row], list[str], list[list[float]]]:
    """The hardest setting: how many attack, the pipelines, the attacks, and the accuracies."""
    split = splits_of(ranking)[0]
    f, rows = ranking.attackers(split)[-1], ranking.sorted(split)
    attacks = ["none", *ranking.attacks]
    values = [
        [fmean(row.scores[split, f].get(name) or (math.nan,)) for name in attacks] for row in rows
    ]
    return f, rows, attacks, values


def _heat_title(ranking: Ranking, f: int) -> str:
    split = splits_of(ranking)[0]
    return f"test accuracy (%), {SPLITS.get(split, split)}, {f} of 25 attack"


def _points(ranking: Ranking, f: int) -> Iterator[tuple[str, float, float, bool]]:
    """Pipelines on the hardest split: accuracies without attackers and under the worst attack.

    The last is whether no other pipeline is better in both.
    """
    split = splits_of(ranking)[0]
    points = {
        rule_text(row): (free, worst.mean)
        for row in ranking.sorted(split)
        if (worst := row.worst(split, f, ranking.attacks)) is not None
        and (free := row.undisturbed(split, f)) is not None
    }
    for name, (x, y) in points.items():
        yield name, x, y, not any(a > x and b > y for a, b in points.values())


def _heat_map(ranking: Ranking) -> Figure:
    """Accuracies by pipeline and attack, for the hardest setting."""
    from matplotlib.figure import Figure

    f, rows, attacks, values = _by_attack(ranking)
    figure = Figure(figsize=(3.6 + 0.33 * len(attacks), 1.3 + 0.26 * len(rows)), layout="tight")
    figure.patch.set_alpha(0)
    axis = figure.subplots()
    axis.imshow(values, cmap="RdYlGn", vmin=0, vmax=100, aspect="auto", alpha=0.85)
    for y, line in enumerate(values):
        for x, value in enumerate(line):
            text = "" if math.isnan(value) else f"{value:.0f}"
            axis.text(x, y, text, fontsize=READABLE, color=BLACK, **CENTERED)
    axis.set_xticks(range(len(attacks)), attacks, rotation=40, ha="right", fontsize=READABLE)
    axis.set_yticks(range(len(rows)), [rule_text(row) for row in rows], fontsize=READABLE)
    axis.tick_params(length=0, colors=GREY)
    axis.spines[:].set_visible(False)
    axis.set_title(_heat_title(ranking, f), fontsize=USUAL, color=GREY)
    return figure


def _scatter(ranking: Ranking) -> Figure:
    """Accuracy under the worst attack against accuracy without attackers, and the best of both."""
    from matplotlib.figure import Figure

    counts = ranking.attackers(splits_of(ranking)[0])
    figure = Figure(figsize=(3.1 * len(counts), 4.4), layout="tight")
    figure.patch.set_alpha(0)
    axes = figure.subplots(1, len(counts), sharex=True, sharey=True, squeeze=False)[0]
    for axis, f in zip(axes, counts, strict=True):
        axis.patch.set_alpha(0)
        for name, x, y, undominated in _points(ranking, f):
            if undominated:
                axis.plot(x, y, "o", ms=5, label=name)
            else:
                axis.plot(x, y, "o", ms=3, color=GREY)
        axis.set_title(f"{f} of 25 attack", fontsize=USUAL, color=GREY)
        axis.set_xlabel("accuracy, nobody attacks (%)", fontsize=SMALL, color=GREY)
        axis.tick_params(labelsize=SMALL, colors=GREY)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2)}
        axis.legend(fontsize=SMALL - 1, labelcolor=GREY, frameon=False, **place)
        axis.spines[:].set_color(GREY)
    axes[0].set_ylabel("accuracy, worst attack (%)", fontsize=SMALL, color=GREY)
    return figure
