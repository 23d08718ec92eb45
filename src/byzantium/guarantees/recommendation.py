"""Which pipeline to take, by what is proved and by how trainings went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from byzantium.aggregation import Aggregator, parse_rule
from byzantium.core import ByzantiumError
from byzantium.guarantees.guarantee import Guarantee, guarantee


class Trained(NamedTuple):
    """How trainings with a pipeline went under the attacks of a table in docs/guarantees.md.

    - `survived`: under how many attacks the accuracy was at least 50 %, with and without momentum.
    - `worst`: the smallest accuracy, in percent.
    """

    survived: int
    worst: float


# Digits sorted by label, 5 of 25 workers bad, momentum 0 and 0.9.
ATTACKS = 8
TRAINED = {
    "Bucketing(s=2) >> AgnosticClipping(b=0.6)": Trained(8, 82.3),
    "Bucketing(s=2) >> GeometricMedian()": Trained(8, 81.1),
    "AgnosticClipping(b=0.6)": Trained(8, 56.1),
    "TrimmedMean()": Trained(5, 15.4),
    "Bucketing(s=2) >> AgnosticClipping(b=2)": Trained(7, 6.5),
    "Bucketing(s=2) >> AgnosticClipping()": Trained(7, 5.0),
    "AgnosticClipping(b=1.6)": Trained(7, 1.6),
    "AgnosticClipping(b=2)": Trained(7, 1.2),
    "AgnosticClipping()": Trained(7, 0.1),
}
# The worst c that a search found for 25 vectors, by how many of them are bad (certification.md).
CERTIFIED = {
    "Bucketing(s=2) >> GeometricMedian()": {1: 4.48, 3: 1.77, 5: 1.76},
    "TrimmedMean()": {1: 0.521, 3: 0.628, 5: 0.792, 8: 1.31, 10: 2.33},
    "Bucketing(s=2) >> AgnosticClipping()": {1: 0.521, 3: 0.848, 5: 1.48},
    "AgnosticClipping()": {1: 0.533, 3: 0.674, 5: 0.867, 8: 1.53, 10: 3.05},
}
# Three seeds are too few to tell accuracies apart that differ by less than this.
ALIKE = 2.0


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
    those that came through most attacks in training; of these, those whose worst accuracy was
    within two points of the best; and of these, the one with the smallest bound.

    >>> recommend(25, 5).pipeline, recommend(25, 5, heterogeneous=False).pipeline
    (Bucketing(s=2) >> GeometricMedian(), TrimmedMean(f=5))
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
    survived, best = max(TRAINED[text] for text in promised)
    alike = [
        text
        for text in promised
        if TRAINED[text].survived == survived and TRAINED[text].worst > best - ALIKE
    ]
    text = min(alike, key=lambda text: promised[text].kappa or 0.0)
    why = (
        f"On data sorted by label it came through {survived} of {ATTACKS} attacks, and its worst "
        f"accuracy was {TRAINED[text].worst:.1f} % (digits, 5 of 25 workers bad: "
        "docs/guarantees.md). Of the pipelines that did as well it has the smallest bound."
    )
    if survived < ATTACKS:
        why += " No pipeline that promises anything for so many bad workers came through more."
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
