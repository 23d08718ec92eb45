"""Recommendation of a pipeline, by proved bounds and by measured accuracies."""

from __future__ import annotations

from dataclasses import dataclass

from byzantium.core import ByzantiumError
from byzantium.guarantees.guarantee import Guarantee, guarantee
from byzantium.guarantees.heterogeneity import largest_heterogeneity
from byzantium.rules import Aggregator, parse_rule

# The worst accuracy under the attacks of the benchmark's suite, in percent, by how many of 25
# workers are Byzantine: digits sorted by label, momentum 0.9, three seeds (docs/benchmark.md).
ACCURACIES = {
    "Krum()": {1: 1.4, 3: 1.8, 5: 1.2},
    "Bucketing(s=2) >> Krum()": {1: 62.7, 3: 12.4, 5: 10.0},
    "Median()": {1: 57.8, 3: 18.9, 5: 7.0},
    "Bucketing(s=2) >> Median()": {1: 66.5, 3: 10.7, 5: 5.4},
    "GeometricMedian()": {1: 90.3, 3: 77.9, 5: 10.0},
    "Bucketing(s=2) >> GeometricMedian()": {1: 93.3, 3: 55.8, 5: 10.1},
    "CenteredClipping(radius=1, steps=3)": {1: 93.1, 3: 83.8, 5: 10.0},
    "Bucketing(s=2) >> CenteredClipping(radius=1, steps=3)": {1: 94.5, 3: 54.7, 5: 10.0},
    "AgnosticClipping(b=0.6)": {1: 94.2, 3: 84.8, 5: 10.1},
    "TrimmedMean()": {1: 92.6, 3: 17.2, 5: 4.7},
    "NearestNeighborMixing() >> TrimmedMean()": {1: 89.4, 3: 18.6, 5: 10.0},
    "AdaptiveClipping() >> SpectralFilter()": {1: 92.3, 3: 82.9, 5: 66.4},
    "RankClipping() >> SpectralFilter()": {1: 89.4, 3: 71.2, 5: 71.1},
    "Bucketing(s=2) >> SpectralFilter()": {1: 94.7, 3: 82.1, 5: 10.1},
}
# The worst c that a search found for 25 vectors, by how many are Byzantine (certification.md).
CERTIFICATES = {
    "AgnosticClipping(b=0.6)": {1: 0.833, 3: 0.978, 5: 1.18},
    "Bucketing(s=2) >> GeometricMedian()": {1: 4.48, 3: 1.77, 5: 1.76},
    "TrimmedMean()": {1: 0.521, 3: 0.628, 5: 0.792, 8: 1.31, 10: 2.33},
    "GeometricMedian()": {1: 12.0, 3: 4.77, 5: 3.56, 8: 3.53, 10: 4.67},
}
# Measured with benchmarks/root-digits.toml and root-honest.toml.
WITH_ROOT = (
    "Its result is, up to a small term, never farther from the honest mean than the root gradient "
    "is. On digits sorted by label, with ten root images of each class, its accuracy under the "
    "worst of ten attacks was 89, 87 and 87 % with 5, 10 and 12 of 25 workers Byzantine, and at "
    "least 94 % under those other than Adaptive; on MNIST it was 87 and 79 % with 5 and 12 under "
    "Adaptive. Training on the root images alone gave 90 % on both (docs/do/root.md). Compare "
    "with root alone, RootOnly(), on your data."
)
# The numbers of Byzantine workers in ACCURACIES.
MEASURED = (1, 3, 5)
# Three seeds are too few to distinguish accuracies that differ by less than this: it is about twice
# the standard error of a difference.
NOISE = 1.5
# Percent; a model below it counts as damaged.
DAMAGED = 50.0


@dataclass(frozen=True)
class Recommendation:
    """A recommended pipeline, its guarantee, and the reasons for it. `print` shows all of it.

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

    @property
    def code(self) -> str:
        """The pipeline as a Python expression, where `bz` is `byzantium`.

        >>> recommend(25, 5).code
        'bz.RankClipping(f=5) >> bz.SpectralFilter(f=5)'
        """
        return " >> ".join(f"bz.{stage!r}" for stage in self.pipeline.stages)

    def __str__(self) -> str:
        return f"{self.promise}\n{self.why}"


def recommend(
    n: int, f: int, heterogeneous: bool = True, *, b2: float | None = None, root: bool = False
) -> Recommendation:
    """Recommend a pipeline for n workers of which f may be Byzantine.

    - `n`: how many workers there are.
    - `f`: how many of them may be Byzantine, less than half (less than n, with root data); if in
      doubt, one more.
    - `heterogeneous`: whether the honest workers hold different data; B^2 decides where it is
      known.
    - `b2`: the B^2 of the first rounds, which `byzantium check --data` measures.
    - `root`: whether the server holds root data, such as ten samples of each class.

    With root data, `RootMatching` is recommended where no rule without them promises anything: if
    half of the workers or more may be Byzantine, or if B^2 is at least (n - 2f) / f.

    If workers hold similar data, the rule with the smallest bound on its error is recommended. If
    they do not, bounds alone mislead: the trimmed mean has the smallest of all, and bit flips
    destroy it on data sorted by label. So, of the pipelines that have a guarantee for n and f, take
    those whose worst accuracy in the benchmark, with at least that share of Byzantine workers, was
    within 1.5 points of the best; and of these, the one with the smallest bound. If none of them
    reached 50 %, take the most accurate pipeline of all, with or without a guarantee.

    >>> recommend(25, 3).pipeline, recommend(25, 3, heterogeneous=False).pipeline
    (AgnosticClipping(f=3, b=0.6), TrimmedMean(f=3))
    >>> recommend(25, 3, b2=4).pipeline, recommend(25, 3, b2=28, root=True).pipeline
    (TrimmedMean(f=3), RootMatching(f=3))
    """
    if 2 * f >= n and not root:
        raise ByzantiumError(
            f"with {f} of {n} workers Byzantine, no rule on the vectors alone can tell who is "
            "honest; with root data at the server (root=True, --root), RootMatching can"
        )
    beyond = 2 * f >= n or (b2 is not None and b2 >= largest_heterogeneity(None, n, f))
    if root and (beyond or (b2 is None and heterogeneous)):
        return Recommendation(guarantee(parse_rule("RootMatching()", f=f), n, f), WITH_ROOT)
    if not beyond and (b2 is not None or not heterogeneous):
        promise = guarantee(parse_rule("TrimmedMean()", f=f), n, f)
        why = "No rule has a smaller bound; where workers hold similar data, that is what counts."
        if b2 is not None:
            why = f"It promises descent at B^2 = {b2:.3g}; no rule does so at a larger B^2 than it."
        return Recommendation(promise, f"{why}{_certificate('TrimmedMean()', n, f)}")
    attackers = min((k for k in MEASURED if n * k >= 25 * f), default=MEASURED[-1])
    candidates = _candidates(n, f, attackers)
    best = max(ACCURACIES[text][attackers] for text in candidates)
    equal = [text for text in candidates if ACCURACIES[text][attackers] > best - NOISE]
    text = min(equal, key=lambda text: candidates[text].kappa or 0.0)
    chosen, accuracy = candidates[text], ACCURACIES[text][attackers]
    why = (
        f"On data sorted by label, with {attackers} of 25 workers Byzantine, its accuracy under "
        f"the worst of 14 attacks was {accuracy:.1f} % (digits: docs/benchmark.md; "
        "MNIST: docs/understand/which-rule.md)."
    )
    if chosen.covered:
        why += " Of the pipelines that did as well it has the smallest bound."
    else:
        why += f" Every pipeline with a bound was below {DAMAGED:.0f} %; this one has none."
    if n * attackers < 25 * f:
        why += " Nothing was measured with as many Byzantine workers as you expect."
    if beyond:
        why += (
            f" But no rule on the vectors alone promises descent at B^2 = {b2:.3g}. Root data at "
            "the server help (docs/do/root.md), and so do fewer attackers or workers whose data "
            "are more alike."
        )
    return Recommendation(chosen, f"{why}{_certificate(text, n, f)}")


def _candidates(n: int, f: int, attackers: int) -> dict[str, Guarantee]:
    """The pipelines to choose from: those with a bound, if one of them still learns."""
    promises = {text: _promise(text, n, f) for text in ACCURACIES}
    possible = {text: promise for text, promise in promises.items() if promise is not None}
    covered = {text: promise for text, promise in possible.items() if promise.covered}
    if any(ACCURACIES[text][attackers] >= DAMAGED for text in covered):
        return covered
    if not possible:
        raise ByzantiumError(f"no pipeline of the benchmark accepts n={n}, f={f}")
    return possible


def _certificate(text: str, n: int, f: int) -> str:
    """The worst c that a search found for a pipeline, with about the same Byzantine share."""
    worst = CERTIFICATES.get(text)
    if not worst or not f:
        return ""
    k = min(worst, key=lambda k: abs(k / 25 - f / n))
    return f" With {k} of 25 Byzantine, attacks found c = {worst[k]:g} (docs/certification.md)."


def _promise(text: str, n: int, f: int) -> Guarantee | None:
    try:
        return guarantee(parse_rule(text, f=f), n, f)
    except ByzantiumError:
        return None
