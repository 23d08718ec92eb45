"""What the page says of a run: the command that makes it, and Theorems 2 and 4 in numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache

from byzantium.core import ByzantiumError
from byzantium.core.options import options_of
from byzantium.guarantees import Guarantee, guarantee
from byzantium.learning import metrics
from byzantium.rules import parse_rule
from byzantium.runs import LAST, Job, Metrics, Result, Run, plugins


def command(run: Run) -> str:
    """The command that makes a run, with the options that differ from their defaults.

    >>> command(Run(rule="Krum", heavy_ball=True, record=("distance", "norm")))
    "byzantium run --rule 'Krum(f=5)' --heavy-ball --record distance,norm"
    """
    words = ["byzantium", "run"]
    for name in changed(run):
        value = getattr(run, name)
        if name == "plugin":  # installed plugins need no option
            names = (text.partition(" sha256:")[0] for text in value)
            words += [word for file in names if file.endswith(".py") for word in ("--plugin", file)]
            continue
        if name == "data":
            value = value.partition(" sha256:")[0]
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(",".join(value) if isinstance(value, tuple) else str(value))
    return shlex.join(words)


def changed(run: Job) -> list[str]:
    """The names of the options of a job that differ from their defaults."""
    options = options_of(type(run))
    return [option.name for option in options if getattr(run, option.name) != option.default]


def promises(run: Run, lines: Sequence[Metrics], others: Sequence[Result] = ()) -> dict[str, str]:
    """What theory promises a run, beside what was measured: sentences by title.

    The theorems are Theorems 2 and 4 of the bucketing paper. They need a run that recorded its
    heterogeneity. A constant factor is left out of Theorem 2; the condition of Theorem 4 is as
    printed.

    For a rule with root data, "root alone" is the result of a training on these data alone, or the
    command that makes it; "root data" warns where the result stayed too far from their gradient.

    - `others`: other results, among which that training may be.
    """
    if plugins.missing(run.plugin):
        return {}
    sentences = _theorems(run, lines)
    if (alone := run.root_alone()) is not None:
        sentences["root alone"] = root_alone(alone, others)
    if metrics.root_is_doubtful(run.aggregator(), lines[-LAST:]):
        sentences["root data"] = f"rounds up to {lines[-1]['round']}: {metrics.ROOT_DOUBTED}"
    return sentences


def root_alone(alone: Run, others: Sequence[Result]) -> str:
    """The result of a training on root data alone, or the command that makes it, in words.

    - `others`: results among which it, or an equal one, may be.
    """
    for result in others:
        if result.done and isinstance(result.job, Run) and result.job.same_root_training(alone):
            number = f"{result.ending},"
            if result.accuracy is not None:
                number = f"accuracy {result.accuracy:.2f} %"
            elif result.measured is not None:
                number = f"test loss {result.measured:.4g}"
            return f"{number} with the same root data and no workers"
    return f"not measured; {command(alone)} measures it"


def _theorems(run: Run, lines: Sequence[Metrics]) -> dict[str, str]:
    if run.topology is not None:
        return {"promise": "not covered: our bounds are those of a server's rule"}
    promise = _guarantee(run.rule, run.vectors, run.attacker_count or run.f)
    if not isinstance(promise, Guarantee):
        return {"promise": f"not covered: {promise}"}
    sentences = {"promise": str(promise).splitlines()[-1]}
    measured = metrics.heterogeneity(lines[-LAST:])
    plateau, most = promise.plateau(measured[0] if measured else 0), promise.most_relative
    if measured is None or plateau is None or most is None:
        return sentences
    spread, relative, gradient = measured
    sentences["Theorem 2"] = (
        f"‖∇f‖² falls to the order of c δ ζ² = {plateau:.3g} (ζ² = {spread:.3g}); "
        f"measured {gradient:.3g}"
    )
    sentences["Theorem 4"] = (
        f"‖∇f‖² goes to 0 if B² < 1/(60 c δ) = {most:.3g}; at the end, where ‖∇f‖ is small and B² "
        f"is large on any data, measured B² = {relative:.3g}, "
        f"so it {'does' if relative < most else 'says nothing here'}"
    )
    return sentences


@cache
def _guarantee(rule: str, n: int, f: int) -> Guarantee | str:
    try:
        return guarantee(parse_rule(rule), n, f)
    except ByzantiumError as error:
        return str(error)
