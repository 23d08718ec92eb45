"""Certification by attack, as data: one search for the input that hurts a pipeline most."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from byzantium import guarantees
from byzantium.core import ByzantiumError, Positive, Seed, files, option, with_options
from byzantium.core.registry import exported
from byzantium.runs import packs, plugins, records, values
from byzantium.runs.job import METRICS, SUMMARY, Job, Stop, Watch
from byzantium.runs.plugins import PLUGINS_USED
from byzantium.runs.run import Run
from byzantium.runs.values import Checks

if TYPE_CHECKING:
    from byzantium.guarantees import Certificate, Finding
    from byzantium.rules import Aggregator
    from byzantium.runs.store import Result

# The input that was found, beside the other files of the job.
INPUT = "input.npy"
# Its most bytes: ten thousand gradients of the linear model need less.
LARGEST_INPUT = 1 << 26
# Of the run whose gradients are among the honest vectors: its rounds, and the most workers.
ROUNDS, MOST = 3, 500


@with_options
@dataclass(frozen=True)
class Certification(Job):
    """One search for the input that leads a pipeline astray most, as data: `guarantees.attack`.

    Beside synthetic ones, the search starts from real gradients of workers who hold data sorted by
    label. The worst input that it found stays in the folder of the job, as `input.npy`.

    >>> Certification(rule="Krum", n=25, f=5).rule
    'Krum(f=5)'
    """

    display_name, measure = "a certification", "c"
    summary_checks: ClassVar[Checks] = {
        **Job.summary_checks,
        **dict.fromkeys(("c", "error"), values.size),
        "how": values.text,
        "tried": values.whole,
    }

    rule: str = option(
        "GeometricMedian()",
        "The rule to attack, with mixings before it if wanted; one that is written without f takes "
        "the f below.",
    )
    n: Positive = option(25, "How many vectors there are, Byzantine ones included.")
    f: Positive = option(5, "How many of them are Byzantine.")
    budget: Positive = option(10_000, "How many inputs the search tries.")
    draws: Positive = option(8, "How often a random mixing is drawn for each input.")
    seed: Seed = option(0, "The seed of the search.")
    plugin: tuple[str, ...] = option((), PLUGINS_USED, later=True)

    def check(self) -> None:
        if plugins.check_recorded(self, ["rule"]):
            return
        from byzantium.guarantees import certification

        rule = self.aggregator()
        certification.check(rule, self.n, self.f)
        object.__setattr__(self, "rule", repr(rule))
        plugins.record_plugins(self, ["rule"])

    @property
    def workers(self) -> int:
        return self.n

    @property
    def metric_checks(self) -> Checks:
        return dict.fromkeys(("c", "error"), values.measured)

    def aggregator(self) -> Aggregator:
        """The rule that is attacked, with the mixings before it."""
        from byzantium.runs import builders

        plugins.load_required(self)
        return builders.read_rule(self.rule, self.f)

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
        line = {"round": finding.tried, "c": finding.c, "error": finding.error}
        files.write(folder / METRICS, json.dumps(line) + "\n")
        found = {name: getattr(finding, name) for name in ("c", "error", "how", "tried")}
        return {"status": "completed", **found}


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
    """All rules, alone and behind mixings, that are defined for n vectors of which f are Byzantine.

    Returns their texts, without f.

    >>> pipelines(n=25, f=12)[:3]
    ['AgnosticClipping()', 'CenteredClipping(radius=1)', 'GeometricMedian()']
    """
    from byzantium import rules

    texts = [
        f"{name}({argument.format(m=n - f)})"
        for name, rule in exported(rules, rules.Aggregator).items()
        if dataclasses.is_dataclass(rule)
        for argument in ARGUMENTS.get(name, ("",))
    ]
    return [text for mixing in MIXINGS for rule in texts if _fits(text := mixing + rule, n, f)]


def _fits(text: str, n: int, f: int) -> bool:
    from byzantium.guarantees import certification
    from byzantium.runs import builders

    try:
        certification.check(builders.read_rule(text, f), n, f)
    except ByzantiumError:
        return False
    return True


def certificates(results: Iterable[Result]) -> list[Certificate]:
    """What the finished searches among some results found: a certificate for each pipeline.

    It has the findings of all seeds. Other results, and unfinished ones, are left out.

    >>> import tempfile
    >>> from byzantium.runs import Store, execute
    >>> search = Certification(rule="Median", n=5, f=1, budget=20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (certificate,) = certificates(execute([search], Store(folder)))
    >>> certificate.rule, certificate.f
    (Median(), 1)
    """
    findings_of: dict[Certification, list[Finding]] = {}
    for result in results:
        if isinstance(result.job, Certification) and result.done:
            findings_of.setdefault(result.job.varied(seed=0), []).append(finding(result))
    listed = []
    for job, findings in findings_of.items():
        rule, n = job.aggregator(), job.n
        broken = guarantees.breakdown(rule, n)
        listed.append(guarantees.Certificate(rule, n, job.f, tuple(findings), broken))
    return listed


def finding(result: Result) -> Finding:
    """What a finished search found; raises an error where its files do not say it."""
    import numpy as np

    job, summary, path = result.job, result.summary, result.folder / INPUT
    assert isinstance(job, Certification)
    for name in ("how", "tried", "error"):
        if name not in summary:
            raise ByzantiumError(f"{result.folder / SUMMARY} has no {name}")
    with records.reading(path, there=True):
        rows = np.load(io.BytesIO(packs.read(path, LARGEST_INPUT)), allow_pickle=False)
    if rows.ndim != 2 or len(rows) != job.n or rows.dtype != np.float64:
        raise ByzantiumError(f"{path} does not hold {job.n} vectors")
    c, error = float(summary["c"]), float(summary["error"])
    return guarantees.Finding(c, error, rows, summary["how"], summary["tried"])
