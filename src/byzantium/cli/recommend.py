"""`recommend`: the rule to use for n workers of which f may be Byzantine."""

from __future__ import annotations

import shlex
from typing import Any

import click

from byzantium import guarantees
from byzantium.cli import options as opt
from byzantium.cli.check import TRAINING, check_data, honest_run, measure_heterogeneity
from byzantium.cli.main import main
from byzantium.cli.terminal import out

# The worker momentum of all measurements that a recommendation rests on.
MOMENTUM = 0.9


@main.command()
@opt.plugin_option
@opt.n_option
@opt.f_option
@click.option(
    "--root",
    type=click.IntRange(min=0),
    default=0,
    help="How many samples of each class the server can hold.  [default: none]",
)
@click.option("--iid", is_flag=True, help="The workers hold similar data; B² was not measured.")
@click.option(
    "--data",
    help="Measure B² on this data set: a name from `byzantium list data`, or a file of your own "
    "(.npz or .safetensors). The options below describe the training.",
    shell_complete=opt.COMPLETIONS["data"],
)
@opt.field_options(TRAINING)
@opt.data_option
def recommend(n: int, f: int, root: int, iid: bool, data: str | None, **options: Any) -> None:
    """Recommend a rule for n workers of which f may be Byzantine.

    It prints the line to paste, what the rule promises, and what it was chosen by. B² is how
    different honest vectors are: their variance over the square of their mean. With --data it is
    measured in the first rounds of an honest training, and decides what can be promised.

    \b
    byzantium recommend --n 25 --f 3
    byzantium recommend --n 25 --f 5 --root 10
    byzantium recommend --n 25 --f 5 --data digits --partition "dirichlet(1)"
    """  # noqa: D301
    training = {name: value for name, value in options.items() if value is not None}
    check_data(data, training)
    if iid and data is not None:
        raise click.UsageError("--iid is for unmeasured data; --data measures them")
    b2 = None
    if data is not None:
        b2 = measure_heterogeneity(honest_run(n, data, {"momentum": MOMENTUM, **training}))
    choice = guarantees.recommend(n, f, heterogeneous=not iid, b2=b2, root=bool(root))
    momentum = training.get("momentum", MOMENTUM)
    words = ["byzantium", "run", "--n", n, "--f", f, "--rule", repr(choice.pipeline)]
    words += ["--root", root] if choice.pipeline.needs_root else []
    words += ["--data", data] if data is not None else []
    for name, value in ({"momentum": momentum} | training).items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, value] if value is not False else []
    command = shlex.join(map(str, words))
    lines = [f"rule = {choice.code}  # with worker momentum {momentum:g}", command, "", str(choice)]
    if b2 is not None:
        need = f"; {guarantees.describe_limit(n, f, {'': [b2]})}" if 0 < 2 * f < n else ""
        lines.append(f"Measured on {data}: B² = {b2:.3g}{need}.")
    out.print("\n".join(lines), soft_wrap=True, highlight=False)
