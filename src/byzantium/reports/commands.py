"""The command that makes a run."""

from __future__ import annotations

import shlex

from byzantium.core.options import options_of
from byzantium.runs import Job, Run


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
