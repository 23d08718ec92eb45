"""Which pipeline to take, by what is proved and by how trainings went."""

from __future__ import annotations

from dataclasses import dataclass

from byzantium.core import ByzantiumError
from byzantium.guarantees.guarantee import Guarantee, guarantee
from byzantium.rules import Aggregator, parse_rule

# The worst accuracy under six attacks, in percent, by how many of 25 workers are bad: digits sorted
# by label, momentum 0.9, three seeds (docs/benchmark.md).
TRAINED = {
    "Krum()": {1: 1.4, 3: 1.8, 5: 1.2},
    "Bucketing(s=2) >> Krum()": {1: 64.7, 3: 52.4, 5: 18.9},
    "Median()": {1: 57.8, 3: 22.8, 5: 7.5},
    "Bucketing(s=2) >> Median()": {1: 66.2, 3: 11.9, 5: 9.3},
    "GeometricMedian()": {1: 90.9, 3: 78.1, 5: 18.8},
    "Bucketing(s=2) >> GeometricMedian()": {1: 93.5, 3: 73.6, 5: 49.3},
    "NearestNeighborMixing() >> GeometricMedian()": {1: 89.4, 3: 12.0, 5: 10.1},
    "AgnosticClipping()": {1: 84.3, 3: 3.2, 5: 1.7},
    "AgnosticClipping(b=0.6)": {1: 94.6, 3: 84.5, 5: 49.3},
    "Bucketing(s=2) >> AgnosticClipping(b=0.6)": {1: 94.9, 3: 75.6, 5: 18.7},
    "NearestNeighborMixing() >> TrimmedMean()": {1: 91.8, 3: 11.5, 5: 10.0},
}
# The worst c that a search found for 25 vectors, by how many of them are bad (certification.md).
CERTIFIED = {
    "AgnosticClipping(b=0.6)": {1: 0.833, 3: 0.978, 5: 1.18},
    "Bucketing(s=2) >> GeometricMedian()": {1: 4.48, 3: 1.77, 5: 1.76},
    "TrimmedMean()": {1: 0.521, 3: 0.628, 5: 0.792, 8: 1.31, 10: 2.33},
    "GeometricMedian()": {1: 12.0, 3: 4.77, 5: 3.56, 8: 3.53, 10: 4.67},
}
WORKERS_BAD = (1, 3, 5)
# Three seeds are too few to tell accuracies apart that differ by less than this.
ALIKE = 2.0
# Percent; below that a model is called damaged.
USELESS = 50.0


@dataclass(frozen=True)
class Recommendation:
    """A recommended pipeline, what it promises, and why it was chosen. `print` shows all of it.

    - `promise`: the guarantee of the pipeline.
    - `why`: the reasons, in sentences.

    >>> recommend(25, 5, heterogeneous=False).pipeline
    TrimmedMean(f=5)
    """

    promise: Guarantee
    why: str

    @property
    def pipeline(self) -> Aggregator:
        """The recommended pipeline, ready to be called."""
        return self.promise.pipeline

    def __str__(self) -> str:
        return f"{self.promise}\n{self.why}"


def recommend(n: int, f: int, heterogeneous: bool = True) -> Recommendation:
    """Recommend a pipeline for n workers of which f may be bad.

    - `n`: how many workers there are.
    - `f`: how many of them may be bad, less than half; rather one too many than one too few.
    - `heterogeneous`: whether the honest workers hold different data.

    Where workers hold similar data, it is the rule with the smallest bound on its error. Where they
    do not, bounds alone are a bad guide: the trimmed mean has the best of all, and bit flips
    destroy it on data sorted by label. So, of the pipelines that promise anything for n and f, take
    those whose worst accuracy in the benchmark, with at least that share of bad workers, was within
    two points of the best; and of these, the one with the smallest bound.

    >>> recommend(25, 3).pipeline, recommend(25, 3, heterogeneous=False).pipeline
    (AgnosticClipping(f=3, b=0.6), TrimmedMean(f=3))
    """
    if not heterogeneous:
        promise = guarantee(parse_rule("TrimmedMean()", f=f), n, f)
        why = "No rule has a smaller bound; where workers hold similar data, that is what counts."
        return Recommendation(promise, f"{why}{_certified('TrimmedMean()', n, f)}")
    promised = {text: found for text in TRAINED if (found := _promised(text, n, f)) is not None}
    if not promised:
        raise ByzantiumError(
            f"none of the pipelines that were tried in training promises anything for n={n}, f={f}"
        )
    bad = min((bad for bad in WORKERS_BAD if n * bad >= 25 * f), default=WORKERS_BAD[-1])
    best = max(TRAINED[text][bad] for text in promised)
    alike = [text for text in promised if TRAINED[text][bad] > best - ALIKE]
    text = min(alike, key=lambda text: promised[text].kappa or 0.0)
    worst = TRAINED[text][bad]
    why = (
        f"On data sorted by label, with {bad} of 25 workers bad, its accuracy under the worst of "
        f"six attacks was {worst:.1f} % (digits: docs/benchmark.md). Of the pipelines that did as "
        "well it has the smallest bound."
    )
    if worst < USELESS:
        why += " No pipeline that promises anything here did better: so many attackers do damage."
    return Recommendation(promised[text], f"{why}{_certified(text, n, f)}")


def _certified(text: str, n: int, f: int) -> str:
    """The worst c that a search found for a pipeline, with about the same share of bad vectors."""
    found = CERTIFIED.get(text)
    if not found or not f:
        return ""
    bad = min(found, key=lambda bad: abs(bad / 25 - f / n))
    return f" With {bad} of 25 bad, attacks found c = {found[bad]:g} (docs/certification.md)."


def _promised(text: str, n: int, f: int) -> Guarantee | None:
    try:
        found = guarantee(parse_rule(text, f=f), n, f)
    except ByzantiumError:
        return None
    return found if found.covered else None
