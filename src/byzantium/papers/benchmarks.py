"""The benchmark: which rule to use, by the worst attack of a fixed, versioned suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any, Literal, get_args

from byzantium.core import ByzantiumError
from byzantium.papers.versions import in_version
from byzantium.runs import Run
from byzantium.tables import Artifact, Cell, Picture, Ranking, Version

#: The suites of attacks by their version: every pipeline meets the same ones. A suite never
#: changes; a stronger attack makes a new suite.
SUITES = {
    "2026.1": {
        "bit-flip": "BitFlip()",
        "label-flip": "LabelFlip()",
        "mimic": "Mimic(warmup=1)",
        "ipm": "InnerProduct()",
        "alie": "ALittleIsEnough()",
        "strong-ipm": "InnerProduct(epsilon=10)",
        "alignment": "Adaptive()",
        "distance": "Adaptive('distance')",
        "loss": "Adaptive('loss')",
        "collapse": "Adaptive('collapse')",
        "rop": "RelocatedPerturbation()",
        "fang-krum": "Fang('krum')",
        "fang-trim": "Fang('trim')",
        "byzmean": "ByzMean()",
    }
}
#: The present suite.
SUITE = "2026.1"
#: What honest accuracy costs a rule is seen where nobody attacks.
NOBODY = {"none": "NoAttack()"}
#: Attacks outside the suite, which none of them should beat: they are run where it would matter
#: most, with 3 and 5 attackers on data sorted by label.
CHALLENGERS = {
    "tuned-ipm": "Tuned(InnerProduct())",
    "tuned-alie": "Tuned(ALittleIsEnough())",
    "min-max": "MinMax()",
    "min-sum": "MinSum()",
    "noise": "GaussianNoise()",
}
#: The pipelines of the library that the benchmark compares, by their short names: the paper's rules
#: alone and behind buckets of two, and the best of a first stage (benchmarks/first-stage.toml).
PIPELINES = {
    "mean": "Mean()",
    "krum": "Krum()",
    "bucketing-krum": "Bucketing(s=2) >> Krum()",
    "median": "Median()",
    "bucketing-median": "Bucketing(s=2) >> Median()",
    "rfa": "GeometricMedian()",
    "bucketing-rfa": "Bucketing(s=2) >> GeometricMedian()",
    "cclip": "CenteredClipping(radius=1, steps=3)",
    "bucketing-cclip": "Bucketing(s=2) >> CenteredClipping(radius=1, steps=3)",
    "agnostic": "AgnosticClipping(b=0.6)",
    "trimmed-mean": "TrimmedMean()",
    "nnm-trimmed-mean": "NearestNeighborMixing() >> TrimmedMean()",
    "arc-spectral": "AdaptiveClipping() >> SpectralFilter()",
    "rank-spectral": "RankClipping() >> SpectralFilter()",
    "bucketing-spectral": "Bucketing(s=2) >> SpectralFilter()",
}
#: Pipelines with root data at the server: a rule, and how many images of each class it has.
WITH_ROOT = {
    f"{name}-{root}": (rule, root)
    for name, rule in {
        "root-matching": "RootMatching()",
        "fltrust": "FLTrust()",
        "root-only": "RootOnly()",
    }.items()
    for root in (10, 2)
}
SPLITS = {
    "iid": "iid()",
    "dirichlet-1": "dirichlet(1)",
    "dirichlet-0.1": "dirichlet(0.1)",
    "noniid": "by_label()",
}
# Of 25 workers; in the further settings, shares of the workers. A run on MNIST takes two minutes of
# a core, so there only the larger share is run.
ATTACKERS, SHARES, SHARES_ON_MNIST = (1, 3, 5), (0.12, 0.2), (0.2,)
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "n": 25,
    "momentum": 0.9,
    "rounds": 200,
    "learning_rate": 0.2,
    "evaluate_every": 10,
    "record": (),
}
#: The pipelines of the library that the level "full" has: the best three on data sorted by label.
FINALISTS = ("root-matching-10", "arc-spectral", "rank-spectral")
# What the level "full" adds, beside the standard setting.
FURTHER: dict[str, dict[str, Any]] = {
    "mnist": {"data": "mnist", "model": "convnet", "learning_rate": 0.1},
    "fifty": {"n": 50},
    "sampled": {"n": 50, "participants": 25},
    "local-steps": {"local_steps": 5, "local_rate": 0.05, "momentum": 0.0},
}
Level = Literal["standard", "full"]
LEVELS: tuple[Level, ...] = get_args(Level)


def benchmark(
    version: Version | None = None, level: Level = "standard", rules: Sequence[str] = ()
) -> Artifact:
    """The benchmark of rules, under all attacks of the suite.

    Workers' data differ in four degrees, from iid to sorted by label, and 1, 3 or 5 of 25 attack.

    - `version`: a cheaper version of it; by default all runs.
    - `level`: "standard", or "full", which adds MNIST with a convolutional network, 50 workers,
      sampled workers and local steps, on data sorted by label, where a rule accepts so many
      Byzantine workers. Of the library's pipelines it has the finalists only.
    - `rules`: pipelines to compare instead of those of the library.

    >>> len(benchmark(Version(seeds=1, only="rfa mimic")).jobs)
    12
    >>> benchmark(rules=["Krum(m=3)"]).cells[0].name
    'Krum(m=3) bit-flip iid f=1'
    """
    named: dict[str, tuple[str, int]] = (
        {rule: (rule, 0) for rule in rules}
        if rules
        else {**{name: (rule, 0) for name, rule in PIPELINES.items()}, **WITH_ROOT}
    )
    full = level == "full"
    cells = tuple(
        cell
        for name, (rule, root) in named.items()
        if rules or not full or name in FINALISTS
        for cell in _cells(name, rule, root, further=full)
    )
    artifact = Artifact(
        "benchmark",
        f"Benchmark of rules, suite {SUITE}",
        "digits, 25 workers, 200 rounds, momentum 0.9",
        "rule, attack, how the data are split, f in {1, 3, 5}",
        Picture("curves", "split", "attack", ("aggregator",)),
        cells,
        maker="byzantium benchmark",
    )
    return in_version(artifact, version)


def _cells(name: str, rule: str, root: int, further: bool) -> Iterator[Cell]:
    """The cells of one pipeline."""
    # No attacker disturbs a rule that ignores the workers.
    suite = NOBODY if rule == "RootOnly()" else {**SUITES[SUITE], **NOBODY}
    fields: dict[str, Any] = {**SETTINGS, "rule": rule, "root": root}
    settings = {split: {**fields, "partition": text} for split, text in SPLITS.items()}
    if further:
        by_label = {**fields, "partition": "by_label()"}
        settings |= {more: {**by_label, **changes} for more, changes in FURTHER.items()}
    for split, setting in settings.items():
        shares = SHARES_ON_MNIST if split == "mnist" else SHARES
        counts = ATTACKERS if split in SPLITS else [round(k * setting["n"]) for k in shares]
        for f in counts:
            challenged = split == "noniid" and f > 1 and suite is not NOBODY
            for attack, sent in {**suite, **(CHALLENGERS if challenged else {})}.items():
                labels = {"aggregator": name, "attack": attack, "split": split, "f": f}
                try:
                    run = Run.of({**setting, "attack": sent, "f": f})
                except ByzantiumError:
                    if split in SPLITS:
                        raise
                    continue  # too many Byzantine workers for it
                yield Cell(labels, (run,))


def recorded_ranking() -> Ranking:
    """The ranking of the library's pipelines, from runs that were recorded.

    >>> recorded_ranking().suite == SUITE
    True
    """
    path = resources.files("byzantium.papers").joinpath("reference", "benchmark.json")
    with resources.as_file(path) as file:
        return Ranking.read(file)
