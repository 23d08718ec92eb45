"""`check`: the guarantee of a rule, and how different honest vectors may be and are."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

import byzantium as bz
from byzantium import guarantees
from byzantium.cli import options as opt
from byzantium.cli.execution import FAILED
from byzantium.cli.main import main
from byzantium.cli.terminal import err, out
from byzantium.engines.files import read_weights
from byzantium.runs import Run, check_ready

# The fields of a run that do not change the first rounds of an honest training, or have options of
# their own here.
NOT_OF_TRAINING = {
    *("data", "n", "f", "rule", "attack", "attackers", "plugin", "participants", "root"),
    *("cache", "rounds", "evaluate_every", "record", "randomness", "weights"),
}
TRAINING = [field.name for field in fields(Run) if field.name not in NOT_OF_TRAINING]


@main.command()
@click.argument("rule", shell_complete=opt.COMPLETIONS["rule"])
@opt.plugin_option
@click.option(
    "--n",
    type=click.IntRange(min=1),
    help="How many vectors there are, Byzantine ones included; with --weights as many as it has.",
)
@opt.f_option
@click.option(
    "--weights",
    type=opt.FilePath(exists=True, dir_okay=False),
    help="A TOML or JSON file with a number for each vector that you vouch for, such as the size "
    "of a site: 'site-1 = 190'.  [default: all count the same]",
)
@click.option(
    "--data",
    help="Also measure B², on this data set: a name from `byzantium list data`, or a file of your "
    "own (.npz or .safetensors). The options below describe the training.",
    shell_complete=opt.COMPLETIONS["data"],
)
@opt.field_options(TRAINING)
@opt.data_option
def check(
    rule: str, n: int | None, f: int, weights: Path | None, data: str | None, **options: Any
) -> None:
    """Say what a rule guarantees for n vectors of which f are Byzantine, and on what data.

    RULE is a rule, with mixings before it if wanted; one that is written without f takes that of
    --f. Exit codes: 0 a theorem covers it, 1 no theorem does, 2 impossible: the rule is not defined
    for so many vectors, or half of them or more are Byzantine.

    B² is how different honest vectors are: their variance over the square of their mean. With
    --data, n honest workers train until the one with the fewest samples has seen them all, at least
    25 rounds. The median B² of what they send is printed beside what the rule, and any rule, needs.

    \b
    byzantium check "Bucketing(s=2) >> Krum()" --n 25 --f 5
    byzantium check "TrimmedMean()" --n 25 --f 5 --data digits --partition "by_label()"
    byzantium check "GeometricMedian()" --f 2 --weights sizes.toml
    """  # noqa: D301
    written = {name: value for name, value in options.items() if value is not None}
    check_data(data, written)
    sizes = None if weights is None else list(read_weights(weights).values())
    if sizes is not None and data is not None:
        raise click.UsageError("--data measures workers that count the same; omit --weights")
    n = len(sizes) if n is None and sizes is not None else n
    if n is None:
        raise click.UsageError("Missing option '--n'.")
    promise = guarantees.guarantee(bz.parse_rule(rule, f=f), n, f, sizes)
    lines = [str(promise), _limits(promise)]
    if data is not None:
        run = honest_run(n, data, written)
        lines.append(_measured(promise, run, measure_heterogeneity(run)))
    out.print("\n".join(lines), soft_wrap=True, highlight=False)
    if not promise.covered:
        raise SystemExit(FAILED)


def check_data(data: str | None, training: dict[str, Any]) -> None:
    """Refuse options of a training without data to train on."""
    if training and data is None:
        name = next(iter(training)).replace("_", "-")
        raise click.UsageError(f"--{name} is for --data, which names what to train on")


def honest_run(n: int, data: str, training: dict[str, Any]) -> Run:
    """A training of n honest workers, ready to be measured."""
    run = Run(rule="Mean()", attack="NoAttack()", n=n, f=0, data=data, **training)
    check_ready([run])
    return run


def _limits(promise: guarantees.Guarantee) -> str:
    """What B² must be below: for this pipeline, and for any rule."""
    own = promise.largest_heterogeneity
    if not promise.f:
        return "with no Byzantine vectors the mean descends, however different honest vectors are"
    promised = f"descent is promised if B² < {own:.3g}" if own else "descent is not promised"
    return (
        f"{promised}; no rule promises it unless B² < {promise.limit_of_any:.3g} (Proposition 12)"
    )


def measure_heterogeneity(run: Run) -> float:
    """The B² of the first rounds of an honest training, behind a progress bar."""
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("training honestly")
        return run.heterogeneity(lambda done, total: bar.update(task, completed=done, total=total))


def _measured(promise: guarantees.Guarantee, run: Run, b2: float) -> str:
    n, f = promise.n, promise.f
    most = guarantees.most_attackers(n, b2)
    momentum = f", momentum {run.momentum:g}" if run.momentum else ""
    measured = (
        f"measured: B² = {b2:.3g}, the median of the first rounds of an honest training "
        f"({run.data}, {run.partition}, {run.model}{momentum}, seed {run.seed})"
    )
    verdict = "no rule that sees vectors alone promises descent here"
    if b2 < promise.largest_heterogeneity:
        verdict = f"{promise.pipeline!r} promises descent here"
    elif b2 < promise.limit_of_any:
        verdict = f"some rule promises descent here, {promise.pipeline!r} does not"
    need = guarantees.describe_limit(n, f, {"": [b2]}) + ": " if f else ""
    largest = f"the largest f for which any rule promises descent at this B² is {most}"
    return f"{measured}\n{need}{verdict}; {largest}"
