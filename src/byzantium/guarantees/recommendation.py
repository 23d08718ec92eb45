"""Which pipeline to take, by what is proved and by what was trained."""

from __future__ import annotations

from dataclasses import dataclass

from byzantium.aggregation import Aggregator, parse_rule
from byzantium.core import ByzantiumError
from byzantium.guarantees.guarantee import Guarantee, guarantee

# The worst accuracy (%) of each pipeline over six attacks and momentum 0 and 0.9: the last column
# of the table in docs/guarantees.md, digits sorted by label, 5 of 25 workers bad.
TRAINED: dict[str, float] = {}
# Accuracies that differ by less are not told apart by three seeds.
ALIKE = 2.0


@dataclass(frozen=True)
class Recommendation:
    """A pipeline, what it promises, and why it is the one."""

    pipeline: Aggregator
    promise: Guarantee
    why: str

    def __str__(self) -> str:
        return f"{self.promise}\n{self.why}"


def recommend(n: int, f: int, heterogeneous: bool = True) -> Recommendation:
    """A pipeline for n workers of which f may be bad: rather one too many than one too few.

    heterogeneous: whether the honest workers hold different data. Where they do, what is proved is
    not enough to choose by: the trimmed mean promises the most of all, and bit flips destroy it on
    data sorted by label. So of the pipelines that promise something for n and f, those count whose
    worst accuracy in training was within two points of the best; of these the one that promises
    most. Where workers hold alike data, the one that promises most of all.

    >>> recommend(25, 5, heterogeneous=False).pipeline
    TrimmedMean(f=5)
    """
    if not heterogeneous:
        rule = parse_rule("TrimmedMean()", f=f)
        return Recommendation(
            rule,
            guarantee(rule, n, f),
            "No rule promises more; where workers hold alike data, that is what counts.",
        )
    possible = [(rule, found) for rule in TRAINED if (found := _promised(rule, n, f)) is not None]
    if not possible:
        raise ByzantiumError(f"no pipeline that was trained promises anything for n={n}, f={f}")
    best = max(TRAINED[rule] for rule, _ in possible)
    alike = [(rule, found) for rule, found in possible if TRAINED[rule] > best - ALIKE]
    rule, found = min(alike, key=lambda pair: pair[1].kappa or 0.0)
    return Recommendation(
        found.pipeline,
        found,
        f"Its worst accuracy under six attacks on data sorted by label was {TRAINED[rule]:.1f} %, "
        f"the best {best:.1f} % (docs/guarantees.md: digits, 5 of 25); of those within {ALIKE:g} "
        "points it promises most.",
    )


def _promised(text: str, n: int, f: int) -> Guarantee | None:
    try:
        found = guarantee(parse_rule(text, f=f), n, f)
    except ByzantiumError:
        return None
    return found if found.covered else None
