"""Every table and figure of the paper, as a list of jobs and the way it is drawn.

S. P. Karimireddy, L. He, M. Jaggi: Byzantine-Robust Learning on Heterogeneous Datasets via
Bucketing, ICLR 2022. Where text and released runs differ, the presets follow the runs, which made
the published numbers: heavy-ball momentum, Krum with the fourth power of the distance, clipping
with three steps and radius 10 (in the main figure 10 / (1 - momentum)), mimicry with a warm-up of
one round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from byzantium.core import ByzantiumError, notation
from byzantium.papers.published import KEYS
from byzantium.papers.versions import in_version
from byzantium.runs import Mimicry, Run
from byzantium.tables import Artifact, Cell, Picture, Version

ATTACKS = {
    "bit-flip": "BitFlip()",
    "label-flip": "LabelFlip()",
    "mimic": "Mimic(warmup=1)",
    "ipm": "InnerProduct(epsilon=0.1)",
    "alie": "ALittleIsEnough()",
    "none": "NoAttack()",
}
FIVE = tuple(ATTACKS)[:5]
RULES = {
    "mean": "Mean()",
    "krum": "Krum(power=4)",
    "median": "Median()",
    "rfa": "GeometricMedian(steps=8, smoothing=0.1, start='zero')",
    "cclip": "CenteredClipping(radius=10, steps=3)",
}
ROBUST = ("krum", "median", "cclip", "rfa")
SPLITS = {"iid": "iid()", "noniid": "by_label()"}

PUBLISHED_SETTINGS: dict[str, Any] = {
    "data": "mnist",
    "model": "cnn",
    "n": 25,
    "f": 5,
    "heavy_ball": True,
    "learning_rate": 0.01,
    "rounds": 600,
    "batch": 32,
    "momentum": 0.0,
    "reshuffle_every": 30,
    "evaluate_every": 30,
}
# With the long tail a worker has 511 samples, which fill 15 batches: the 150 blocks of the released
# runs have 15 rounds each, and the 4500 rounds of the text count 30.
LONG_TAIL: dict[str, Any] = {
    "n": 24,
    "f": 0,
    "long_tail": 512.0,
    "rounds": 2250,
    "reshuffle_every": 15,
    "evaluate_every": 15,
}
LONG_TAIL_NOTES = (
    "The text of the paper says 4500 rounds; the released logs have 150 blocks of 15 rounds, "
    "because the 511 samples of a worker fill 15 batches."
)


def bucketed(s: int, rule: str, mixing: str = "Bucketing") -> str:
    """A rule behind buckets of s, as a text; the rule itself where s is 1.

    - `mixing`: the mixing that takes `s`: "Bucketing" or "Resampling".

    >>> bucketed(2, "Krum(f=5)"), bucketed(1, "Krum(f=5)")
    ('Bucketing(s=2) >> Krum(f=5)', 'Krum(f=5)')
    """
    return f"{mixing}(s={s}) >> {rule}" if s > 1 else rule


def _cell(labels: dict[str, Any], **changes: Any) -> Cell:
    """The cell of a run with these changes to the published settings; seeds are added later."""
    return Cell(labels, (Run.of({**PUBLISHED_SETTINGS, **changes}),))


def _labels(*values: Any) -> dict[str, Any]:
    """The labels of cells with published numbers."""
    return dict(zip(KEYS, values, strict=True))


def _table(name: str, s: int, attack: str) -> Artifact:
    long_tail = attack == "none"
    setting: dict[str, Any] = LONG_TAIL if long_tail else {}
    cells = tuple(
        _cell(
            _labels(aggregator, attack, 0.0, s, split),
            rule=bucketed(s, RULES[aggregator]),
            attack=ATTACKS[attack],
            partition=SPLITS[split],
            **setting,
        )
        for aggregator in RULES
        for split in SPLITS
    )
    under = "no attackers, long tail (512)" if long_tail else "5 of 25 workers mimic"
    return Artifact(
        name,
        f"Table {name[-1]}: {under}, {'bucketing s = 2' if s > 1 else 'without bucketing'}",
        f"{'n = 24, q = 0, 2250' if long_tail else 'n = 25, q = 5, 600'} rounds, no momentum",
        "rule, iid or sorted by label",
        Picture("table", "aggregator", "split"),
        cells,
        notes=LONG_TAIL_NOTES if long_tail else "",
    )


def _main() -> Artifact:
    cells = tuple(
        _cell(
            _labels(aggregator, attack, momentum, s, "noniid"),
            rule=bucketed(s, {**RULES, "cclip": _clipping(10 / (1 - momentum))}[aggregator]),
            attack=ATTACKS[attack],
            momentum=momentum,
        )
        for aggregator in ROBUST
        for attack in FIVE
        for momentum in (0.0, 0.9)
        for s in (1, 2)
    )
    return Artifact(
        "figure-main",
        "Main figure: four rules under five attacks",
        "n = 25, q = 5, sorted by label, 600 rounds",
        "rule, attack, s in {1, 2}, momentum in {0, 0.9}",
        Picture("curves", "aggregator", "attack", ("s", "momentum")),
        cells,
        notes=(
            "The clipping radius is 10 / (1 - momentum), as in the text of the paper and in the "
            "runs that made the figure: with it CClip under IPM (momentum 0.9, s = 1, seed 0) has "
            "the logged training losses to 4e-5. Each worker draws its dropout anew in each round; "
            "in the released runs all workers and rounds had the same (`--dropout shared`, or "
            "`--released` to repeat these runs)."
        ),
    )


def _hyperparameters() -> Artifact:
    settings = [("s", 5, s) for s in (1, 2, 5)] + [("q", q, 2) for q in (1, 6, 12)]
    cells = tuple(
        _cell(
            {
                "aggregator": "cclip",
                "attack": "ipm",
                "varied": varied,
                "momentum": momentum,
                "s": s,
                "q": q,
            },
            n=53,
            f=q,
            momentum=momentum,
            rule=bucketed(s, _clipping(10 / (1 - momentum))),
            attack=ATTACKS["ipm"],
        )
        for momentum in (0.0, 0.9)
        for varied, q, s in settings
    )
    return Artifact(
        "figure-hyperparameters",
        "How many to a bucket, and how many attackers",
        "n = 53, clipping with radius 10 / (1 - momentum), inner-product attack, 600 rounds",
        "s in {1, 2, 5} with q = 5; q in {1, 6, 12} with s = 2; momentum in {0, 0.9}",
        Picture("curves", "varied", "momentum", ("s", "q")),
        cells,
    )


def _clipping(radius: float) -> str:
    return f"CenteredClipping(radius={round(radius, 6):g}, steps=3)"


def _gradient_norms() -> Artifact:
    cells = tuple(
        _cell(
            {"aggregator": "cclip", "attack": attack, "momentum": momentum},
            momentum=momentum,
            rule=_clipping(10 / (1 - momentum)),
            attack=ATTACKS[attack],
            record=("distance", "spread", "norm", "weights"),
        )
        for attack in FIVE
        for momentum in (0.0, 0.5, 0.9, 0.99)
    )
    return Artifact(
        "figure-gradient-norms",
        "How momentum lengthens what honest workers send",
        "n = 25, q = 5, clipping with radius 10 / (1 - momentum), s = 1, 600 rounds",
        "attack, momentum in {0, 0.5, 0.9, 0.99}",
        Picture(
            "curves", "aggregator", "attack", ("momentum",), "norm", "mean norm, to momentum 0"
        ),
        cells,
    )


RADII: dict[str, Callable[[float], str]] = {
    "fixed": lambda momentum: _clipping(10.0),
    "linear": lambda momentum: _clipping(10 / (1 - momentum)),
    "sqrt": lambda momentum: _clipping(10 / math.sqrt(1 - momentum)),
    "auto": lambda momentum: "AgnosticClipping()",  # not the paper's: its open question
}


def _clipping_radius() -> Artifact:
    cells = tuple(
        _cell(
            {"scaling": scaling, "attack": attack, "momentum": momentum, "s": s},
            momentum=momentum,
            rounds=1200,
            rule=bucketed(s, rule(momentum)),
            attack=ATTACKS[attack],
        )
        for scaling, rule in RADII.items()
        for attack in FIVE
        for momentum in (0.0, 0.5, 0.9, 0.99)
        for s in (1, 2)
    )
    return Artifact(
        "figure-clipping-radius",
        "How the clipping radius should grow with momentum",
        "n = 25, q = 5, clipping, 1200 rounds",
        "radius 10, 10 / (1 - momentum), 10 / sqrt(1 - momentum), or found by itself (auto); "
        "momentum; s in {1, 2}; attack",
        Picture("curves", "scaling", "attack", ("s", "momentum")),
        cells,
    )


def _krum_selections() -> Artifact:
    cells = tuple(
        _cell(
            {"aggregator": "krum", "attack": "label-flip", "s": s},
            n=20,
            f=2,
            rounds=1200,
            rule=bucketed(s, RULES["krum"]),
            attack=ATTACKS["label-flip"],
        )
        for s in (1, 2, 3)
    )
    return Artifact(
        "figure-krum-selections",
        "Whom Krum selects",
        "n = 20, q = 2 (the last two), label flip, 1200 rounds",
        "s in {1, 2, 3}",
        Picture("bars", "aggregator", "s", (), "weights", "share of rounds selected, over s"),
        cells,
        notes="A worker inside the selected bucket counts 1/s.",
    )


def _scaled(name: str, title: str, y: str) -> Artifact:
    cells = tuple(
        _cell(
            {"attack": attack, "s": s, "scale": scale},
            n=20,
            f=3,
            rounds=3000,
            model=f"cnn(scale={scale})",
            rule=bucketed(s, RULES["rfa"]),
            attack=ATTACKS[attack],
            record=("distance", "spread", "weights", "heterogeneity"),
        )
        for attack in FIVE
        for s in (1, 2, 3)
        for scale in (1, 2, 4, 8)
    )
    return Artifact(
        name,
        title,
        "n = 20, q = 3, geometric median, momentum 0, 3000 rounds",
        "attack, s in {1, 2, 3}, channels of the convolutions times {1, 2, 4, 8}",
        Picture("curves", "s", "attack", ("scale",), y),
        cells,
        notes="Both overparameterization figures are made from the same runs.",
    )


def _resampling() -> Artifact:
    cells = tuple(
        _cell(
            {"aggregator": "rfa", "attack": attack, "mixing": mixing, "s": 2},
            n=24,
            f=3,
            rounds=1200,
            rule=bucketed(2, RULES["rfa"], mixing),
            attack=ATTACKS[attack],
        )
        for attack in FIVE
        for mixing in ("Bucketing", "Resampling")
    )
    return Artifact(
        "figure-resampling",
        "Bucketing beside resampling",
        "n = 24, q = 3, geometric median, s = 2, momentum 0, 1200 rounds",
        "attack, bucketing or resampling",
        Picture("curves", "aggregator", "attack", ("mixing",)),
        cells,
    )


def _mimic_demo() -> Artifact:
    n = 50
    rules = {name: RULES[name] for name in ("mean", "krum", "median")} | {
        "rfa": "GeometricMedian()"
    }
    by_share = [("share of copies", q / n, q, 100) for q in (0, 5, 10, 15, 20)]
    by_size = [("dimension", d, 10, d) for d in (10, 30, 100, 300, 1000)]
    cells = tuple(
        Cell({"aggregator": name, "over": over, "x": x}, (Mimicry(rule, n=n, attackers=q, d=d),))
        for over, x, q, d in by_share + by_size
        for name, rule in rules.items()
    )
    return Artifact(
        "figure-mimic-demo",
        "Mimicry on random vectors",
        f"n = {n} random vectors of +-1; the attackers copy the first",
        "rule; share of copies in dimension 100; dimension with a share of 0.2",
        Picture("points", "artifact", "over", ("aggregator",), "error", "squared error", "x"),
        cells,
        notes="Nothing is trained. The paper does not say how many vectors; these are ours.",
    )


#: The functions that make the tables and figures of the paper, by name.
MAKERS: dict[str, Callable[[], Artifact]] = {
    "table1": lambda: _table("table1", 1, "none"),
    "table2": lambda: _table("table2", 1, "mimic"),
    "table3": lambda: _table("table3", 2, "none"),
    "table4": lambda: _table("table4", 2, "mimic"),
    "figure-main": _main,
    "figure-hyperparameters": _hyperparameters,
    "figure-gradient-norms": _gradient_norms,
    "figure-clipping-radius": _clipping_radius,
    "figure-krum-selections": _krum_selections,
    "figure-overparameterization": lambda: _scaled(
        "figure-overparameterization", "Larger models fit better", "train_loss"
    ),
    "figure-b2": lambda: _scaled("figure-b2", "Larger models disagree less", "b2"),
    "figure-resampling": _resampling,
    "figure-mimic-demo": _mimic_demo,
}


def artifact(name: str, version: Version | None = None) -> Artifact:
    """A table or figure of the paper, by its name.

    - `name`: its name, such as "table2" or "figure-main"; `byzantium list artifacts` lists them.
    - `version`: a cheaper version of it; by default as in the paper.

    >>> len(artifact("table2").jobs)
    30
    >>> artifact("table2", Version(seeds=1, only="krum noniid")).jobs[0].rule
    'Krum(f=5, power=4)'
    """
    if name not in MAKERS:
        raise ByzantiumError(f"there is no artifact {name!r}{notation.hint(name, MAKERS)}")
    artifact = replace(MAKERS[name](), maker=f"byzantium reproduce {name}")
    return in_version(artifact, version)
