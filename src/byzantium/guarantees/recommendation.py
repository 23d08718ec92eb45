"""Which pipeline to take, by what is proved and by what was trained."""

from __future__ import annotations

from dataclasses import dataclass

from byzantium.aggregation import Aggregator, parse_rule
from byzantium.core import ByzantiumError
from byzantium.guarantees.guarantee import Guarantee, guarantee

# The worst accuracy (%) of each pipeline over six attacks and momentum 0 and 0.9: the last column
# of the table in docs/guarantees.md, digits sorted by label, 5 of 25 workers bad.
TRAINED = {
    "AgnosticClipping(b=1.6)": 88.3,
    "Bucketing(s=2) >> AgnosticClipping()": 87.1,
    "AgnosticClipping(b=2)": 85.3,
    "AgnosticClipping()": 83.4,
    "Bucketing(s=2) >> GeometricMedian()": 81.1,
    "Bucketing(s=2) >> AgnosticClipping(b=2)": 71.2,
    "TrimmedMean()": 15.4,
}
# Accuracies that differ by less are not told apart by three seeds.
ALIKE = 2.0


@dataclass(frozen=True)
class Recommendation:
    """What the recommended pipeline promises, and why it is the one."""

    promise: Guarantee
    why: str

    @property
    def pipeline(self) -> Aggregator:
        return self.promise.pipeline

    def __str__(self) -> str:
        return f"{self.promise}\n{self.why}"


def recommend(n: int, f: int, heterogeneous: bool = True) -> Recommendation:
    """A pipeline for n workers of which f may be bad: rather one too many than one too few.

    heterogeneous: whether the honest workers hold different data. Where they do, what is proved is
    not enough to choose by: the trimmed mean promises the most of all, and bit flips destroy it on
    data sorted by label. So of the pipelines that promise something for n and f, those count whose
    worst accuracy in training was within two points of the best; of these the one that promises
    most. Where workers hold alike data, the one that promises most of all.

    >>> recommend(25, 5).pipeline, recommend(25, 5, heterogeneous=False).pipeline
    (AgnosticClipping(f=5, b=1.6), TrimmedMean(f=5))
    """
    if not heterogeneous:
        promise = guarantee(parse_rule("TrimmedMean()", f=f), n, f)
        return Recommendation(
            promise, "No rule promises more; where workers hold alike data, that is what counts."
        )
    promised = {text: found for text in TRAINED if (found := _promised(text, n, f)) is not None}
    if not promised:
        raise ByzantiumError(f"no pipeline that was trained promises anything for n={n}, f={f}")
    best = max(TRAINED[text] for text in promised)
    alike = [text for text in promised if TRAINED[text] > best - ALIKE]
    text = min(alike, key=lambda text: promised[text].kappa or 0.0)
    return Recommendation(
        promised[text],
        f"Its worst accuracy under six attacks on data sorted by label was {TRAINED[text]:.1f} %, "
        f"the best {best:.1f} % (docs/guarantees.md: digits, 5 of 25); of those within {ALIKE:g} "
        "points it promises most.",
    )


def _promised(text: str, n: int, f: int) -> Guarantee | None:
    try:
        found = guarantee(parse_rule(text, f=f), n, f)
    except ByzantiumError:
        return None
    return found if found.covered else None
