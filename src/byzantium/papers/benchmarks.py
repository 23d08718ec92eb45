"""The benchmark: which rule to use, by the heterogeneity of the data and the attackers."""

from __future__ import annotations

from typing import Any

from byzantium.papers.versions import in_version
from byzantium.runs import Run
from byzantium.tables import Artifact, Cell, Picture, Version

# The paper's rules, alone and behind buckets of two, and others that are in use.
ALONE = {
    "mean": "Mean()",
    "krum": "Krum()",
    "median": "Median()",
    "rfa": "GeometricMedian()",
    "cclip": "CenteredClipping(radius=1, steps=3)",
}
PIPELINES = {
    **ALONE,
    **{f"bucketing-{name}": f"Bucketing(s=2) >> {ALONE[name]}" for name in ALONE if name != "mean"},
    "agnostic": "AgnosticClipping()",
    "agnostic-small": "AgnosticClipping(b=0.6)",
    "bucketing-agnostic": "Bucketing(s=2) >> AgnosticClipping(b=0.6)",
    "nnm-rfa": "NearestNeighborMixing() >> GeometricMedian()",
    "nnm-trimmed-mean": "NearestNeighborMixing() >> TrimmedMean()",
}
# The paper's five, the two that have a strength with the one that moves the result farthest in each
# round. That may be forwards, so there is one that pushes against the honest mean in all rounds.
ATTACKS = {
    "bit-flip": "BitFlip()",
    "label-flip": "LabelFlip()",
    "mimic": "Mimic(warmup=1)",
    "tuned-ipm": "Tuned(InnerProduct())",
    "tuned-alie": "Tuned(ALittleIsEnough())",
    "strong-ipm": "InnerProduct(epsilon=10)",
}
SPLITS = {
    "iid": "iid()",
    "dirichlet-1": "dirichlet(1)",
    "dirichlet-0.1": "dirichlet(0.1)",
    "noniid": "by_label()",
}
# Of 25 workers.
ATTACKERS = (1, 3, 5)
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


def benchmark(version: Version | None = None) -> Artifact:
    """The benchmark of rules: 14 pipelines under six attacks.

    Workers' data differ in four degrees, from iid to sorted by label, and 1, 3 or 5 of 25 attack:
    3,024 runs with three seeds.

    - `version`: a cheaper version of it; by default all runs.

    >>> len(benchmark(Version(seeds=1, only="nnm-rfa mimic")).jobs)  # of 3,024
    12
    """
    cells = tuple(
        Cell(
            {"aggregator": aggregator, "attack": attack, "split": split, "f": f},
            (Run.of({**SETTINGS, "rule": rule, "attack": sent, "partition": held, "f": f}),),
        )
        for split, held in SPLITS.items()
        for f in ATTACKERS
        for aggregator, rule in PIPELINES.items()
        for attack, sent in ATTACKS.items()
    )
    artifact = Artifact(
        "benchmark",
        "Which rule to use",
        "digits, 25 workers, 200 rounds, momentum 0.9",
        "rule, attack, how the data are split, f in {1, 3, 5}",
        Picture("curves", "split", "attack", ("aggregator",)),
        cells,
        maker="byzantium benchmark",
    )
    return in_version(artifact, version)
