"""Certification by attack, as data: one search for the input that hurts a pipeline most."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byzantium import aggregation, guarantees, runs
from byzantium.core import ByzantiumError, Positive, Seed, files
from byzantium.runs import plugins
from byzantium.runs.job import METRICS, Job, Stop, Watch, append, option
from byzantium.runs.run import Run

if TYPE_CHECKING:
    from byzantium.aggregation import Aggregator
    from byzantium.guarantees import Certificate, Finding
    from byzantium.runs.store import Result

# The input that was found, beside the other files of the job.
INPUT = "input.npy"
# Of the run whose gradients are among the honest vectors: its rounds, and the most workers.
ROUNDS, MOST = 3, 500


@dataclass(frozen=True)
class Certification(Job):
    """One search of `guarantees.attack`, with gradients of a label-sorted run among the families.

    >>> Certification(rule="Krum", n=25, f=5).rule
    'Krum(f=5)'
    """

    called, measure = "a certification", "c"

    rule: str = option("GeometricMedian()", "The rule; written without its f, it has this one.")
    n: Positive = option(25, "Vectors.")
    f: Positive = option(5, "How many of them are bad.")
    budget: Positive = option(10_000, "How many inputs are tried.")
    draws: Positive = option(8, "Of random mixings, for each input.")
    seed: Seed = option(0, "Of the search.")
    plugin: tuple[str, ...] = option((), "Whose the rule is, where it does not ship.", later=True)

    def check(self) -> None:
        if plugins.unread(self, ["rule"]):
            return
        rule = self.aggregator()
        guarantees.certification.check(rule, self.n, self.f)
        object.__setattr__(self, "rule", repr(rule))
        plugins.settle(self, ["rule"])

    @property
    def workers(self) -> int:
        return self.n

    def aggregator(self) -> Aggregator:
        plugins.need(self)
        return runs.parts.rule_of(self.rule, self.f)

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        import numpy as np

        finding = guarantees.attack(
            self.aggregator(),
            self.n,
            self.f,
            budget=self.budget,
            draws=self.draws,
            seed=self.seed,
            honest=_gradients(self.n, self.seed),
            watch=watch,
            stop=stop,
        )
        if finding is None:
            return None
        content = io.BytesIO()
        np.save(content, finding.rows, allow_pickle=False)
        files.write(folder / INPUT, content.getvalue())
        files.write(folder / METRICS, "")
        append(folder / METRICS, {"round": finding.tried, "c": finding.c, "error": finding.error})
        return {
            "status": "completed",
            "c": finding.c,
            "error": finding.error,
            "how": finding.how,
            "tried": finding.tried,
        }


@functools.lru_cache(maxsize=4)
def _gradients(n: int, seed: int) -> dict[str, Any]:
    """What n workers send who hold digits sorted by label; nothing where there are too many."""
    if n > MOST:
        return {}
    run = Run(n=n, f=0, rule="Mean()", model="linear", rounds=ROUNDS, seed=seed, record=())
    training = run.simulation()
    for _ in training:
        pass
    return {"gradients": training.sent.double().numpy()}


# Parameters that have no default, and those that a rule is worth being tried with, too.
ARGUMENTS = {"CenteredClipping": ("radius=1",), "Krum": ("", "m={m}")}
MIXINGS = ("", "Bucketing(s=2) >> ", "NearestNeighborMixing() >> ")


def pipelines(n: int, f: int) -> list[str]:
    """All rules, alone and behind mixings, that are defined for n vectors of which f are bad."""
    exported = ((name, getattr(aggregation, name)) for name in aggregation.__all__)
    rules = [
        f"{name}({argument.format(m=n - f)})"
        for name, rule in exported
        if inspect.isclass(rule) and issubclass(rule, aggregation.Aggregator)
        if dataclasses.is_dataclass(rule)
        for argument in ARGUMENTS.get(name, ("",))
    ]
    return [text for mixing in MIXINGS for rule in rules if _fits(text := mixing + rule, n, f)]


def _fits(text: str, n: int, f: int) -> bool:
    try:
        guarantees.certification.check(runs.parts.rule_of(text, f), n, f)
    except ByzantiumError:
        return False
    return True


def certificates(results: Iterable[Result]) -> list[Certificate]:
    """What the searches that are done say of each pipeline, in their order."""
    found: dict[Certification, list[Finding]] = {}
    for result in results:
        if isinstance(result.job, Certification) and result.done:
            found.setdefault(result.job.varied(seed=0), []).append(finding(result))
    return [
        guarantees.Certificate(
            job.aggregator(),
            job.n,
            job.f,
            tuple(findings),
            guarantees.breakdown(job.aggregator(), job.n),
        )
        for job, findings in found.items()
    ]


def finding(result: Result) -> Finding:
    """What a search that is done has found; a sentence where its files do not say it."""
    import numpy as np

    job, summary, path = result.job, result.summary, result.folder / INPUT
    assert isinstance(job, Certification)
    how, tried, error = (summary.get(name) for name in ("how", "tried", "error"))
    if not isinstance(how, str) or not isinstance(tried, int) or not isinstance(error, float):
        raise ByzantiumError(f"{result.folder} does not say what the search did")
    try:
        rows = np.load(io.BytesIO(files.read(path)), allow_pickle=False)
    except (OSError, ValueError, EOFError) as wrong:
        raise ByzantiumError(f"{path} cannot be read: {runs.records.why(wrong)}") from wrong
    if rows.ndim != 2 or len(rows) != job.n or rows.dtype != np.float64:
        raise ByzantiumError(f"{path} does not hold {job.n} vectors")
    return guarantees.Finding(summary["c"], error, rows, how, tried)
