"""Many jobs: which ones, and what there is of each when they were carried out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from byzantium.core import ByzantiumError
from byzantium.runs import plugins
from byzantium.runs.job import Job, Stop, read
from byzantium.runs.pool import Engine, Event, Listen
from byzantium.runs.processes import Processes
from byzantium.runs.run import Run
from byzantium.runs.store import Result, Store

# -- which --------------------------------------------------------------------------------------


def product(fixed: Mapping[str, Any], varies: Mapping[str, Sequence[Any]]) -> list[Run]:
    """All combinations of what varies, the last name fastest; equal runs once.

    >>> [run.seed for run in product({"rounds": 10}, {"seed": [0, 1]})]
    [0, 1]
    """
    for name, values in varies.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise ByzantiumError(f"what varies must be a list of values, got {name} = {values!r}")
        if name in fixed:
            raise ByzantiumError(f"{name} is both fixed and varied")
    combinations = itertools.product(*varies.values())
    runs = (Run.of({**fixed, **dict(zip(varies, values, strict=True))}) for values in combinations)
    return list(dict.fromkeys(runs))


def load(path: Path) -> list[Run]:
    """The runs of a sweep file, which has two parts, [fixed] and [varies].

    Above them it may name plugins, Python files whose code is run: plugin = ["my_rules.py"].
    """
    values = read(path)
    _load_plugins(path, values.pop("plugin", []))
    if unknown := set(values) - {"fixed", "varies"}:
        raise ByzantiumError(
            f"{path} has a part {sorted(unknown)[0]!r}; a sweep has [fixed] and [varies]"
        )
    fixed, varies = values.get("fixed", {}), values.get("varies", {})
    for name, part in (("fixed", fixed), ("varies", varies)):
        if not isinstance(part, dict):
            raise ByzantiumError(f"{path}: [{name}] must hold names and values, got {part!r}")
    try:
        return product(fixed, varies)
    except ValueError as error:
        raise ByzantiumError(f"{path}: {error}") from error


def _load_plugins(path: Path, names: Any) -> None:
    """Load the files that a sweep names; their paths are relative to it."""
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ByzantiumError(f"{path}: plugin must be a list of files, got {names!r}")
    for name in names:
        plugins.load_plugin(path.parent / Path(name).expanduser())


# -- carrying them out --------------------------------------------------------------------------


def execute(
    jobs: Iterable[Job],
    store: Store,
    engine: Engine = Processes(1),  # noqa: B008
    listen: Listen = lambda event: None,
    stop: Stop = lambda: False,
) -> list[Result]:
    """Carry out the jobs that are not done, in this process or where an engine has them done.

    Returns for each job, in their order, what there is of it then. One that failed does not stop
    the others; its result has the status "failed", and the reason.
    """
    jobs = list(jobs)
    waiting = [result.job for result in store.results(dict.fromkeys(jobs)) if not result.done]
    ends: dict[Job, Event] = {}

    def hear(event: Event) -> None:
        ends[event.job] = event
        listen(event)

    if waiting:
        engine.carry_out(waiting, store, hear, stop)
    return [_ended(result, ends.get(result.job)) for result in store.results(jobs)]


def _ended(result: Result, end: Event | None) -> Result:
    """What the store has of a job; why it is not done, where that could not be written there."""
    if result.done or result.reason or end is None:
        return result
    if end.kind == "failed":
        return dataclasses.replace(result, status="failed", reason=end.note)
    return dataclasses.replace(result, reason=end.note) if end.kind == "busy" else result
