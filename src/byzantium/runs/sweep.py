"""Sweeps: the jobs that a file describes, and the execution of many jobs."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from byzantium.core import ByzantiumError
from byzantium.core.options import present_names
from byzantium.runs import plugins
from byzantium.runs.job import Job, Stop
from byzantium.runs.pool import Engine, Event, Listen
from byzantium.runs.processes import Processes
from byzantium.runs.records import read
from byzantium.runs.run import Run
from byzantium.runs.store import Result, Store


def product(fixed: Mapping[str, Any], varies: Mapping[str, Sequence[Any]]) -> list[Run]:
    """The runs for all combinations of settings; equal runs come once.

    - `fixed`: the fields that all runs share, and their values.
    - `varies`: the fields that differ, and for each the list of its values. The last one varies
      fastest.

    >>> runs = product({"rounds": 10}, {"rule": ["Mean()", "Median()"], "seed": [0, 1]})
    >>> [(run.rule, run.seed) for run in runs]
    [('Mean()', 0), ('Mean()', 1), ('Median()', 0), ('Median()', 1)]
    """
    fixed, varies = present_names(Run, fixed), present_names(Run, varies)
    for name, values in varies.items():
        if not isinstance(values, (list, tuple)) or not values:
            raise ByzantiumError(f"what varies needs a list of values, got {name} = {values!r}")
        if name in fixed:
            raise ByzantiumError(f"{name} is both fixed and varied")
    combinations = itertools.product(*varies.values())
    runs = (Run.of({**fixed, **dict(zip(varies, values, strict=True))}) for values in combinations)
    return list(dict.fromkeys(runs))


def load(path: Path) -> list[Run]:
    r"""The runs that the file of a sweep describes.

    It is a TOML or JSON file with two parts: `fixed` has the fields that all runs share, `varies`
    has lists of values. Above them, `plugin = ["my_rules.py"]` may name Python files; their code is
    run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.toml")
    ...     _ = path.write_text("[fixed]\nrounds = 10\n[varies]\nseed = [0, 1, 2]")
    ...     [run.seed for run in load(path)]
    [0, 1, 2]
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


def execute(
    jobs: Iterable[Job],
    store: Store,
    engine: Engine = Processes(1),  # noqa: B008
    listen: Listen = lambda event: None,
    stop: Stop = lambda: False,
    results: Iterable[Result] = (),
) -> list[Result]:
    """Execute all jobs that are not finished, and return the results of all.

    A job that fails does not stop the others; its result has the status "failed", and the reason.
    What cannot be promised of the rules of runs is logged before the first one begins.

    - `store`: the folder of results.
    - `engine`: who does the work: by default this process; `Processes(4)` are four at a time, and
      `byzantium.engines.Ray` is a cluster.
    - `listen`: called with an `Event` whenever something happens to a job.
    - `stop`: asked now and then; once it answers True, the jobs under way save themselves, and no
      other is begun.
    - `results`: results of some of the jobs that were read before, and are not read again.

    Returns a result for each job, in their order.

    >>> import tempfile
    >>> from byzantium.runs import Mimicry
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results = execute([Mimicry(rule="Mean()"), Mimicry(rule="Median()")], Store(folder))
    >>> [result.status for result in results]
    ['completed', 'completed']
    """
    jobs = list(jobs)
    different = dict.fromkeys(jobs)
    current = {result.job: result for result in results}
    current |= {r.job: r for r in store.results(job for job in different if job not in current)}
    waiting = [job for job in different if not current[job].done]
    ends: dict[Job, Event] = {}

    def hear(event: Event) -> None:
        ends[event.job] = event
        listen(event)

    for job in waiting:
        if isinstance(job, Run):  # here, because a log of its own hides it from the console
            job.announce()
    if waiting:
        _method(engine)(waiting, store, hear, stop)
        current |= {result.job: result for result in store.results(waiting)}
    return [_ended(current[job], ends.get(job)) for job in jobs]


def _method(engine: Engine) -> Callable[[Sequence[Job], Store, Listen, Stop], None]:
    """The method of an engine; its name was `carry_out` in version 0.2."""
    if hasattr(engine, "execute") or not hasattr(engine, "carry_out"):
        return engine.execute
    warnings.warn(
        "the method carry_out of an engine is now execute", DeprecationWarning, stacklevel=3
    )
    former: Callable[[Sequence[Job], Store, Listen, Stop], None] = engine.carry_out
    return former


def _ended(result: Result, end: Event | None) -> Result:
    """What the store has of a job; why it is not done, where that could not be written there."""
    if result.done or result.reason or end is None:
        return result
    if end.kind == "failed":
        return dataclasses.replace(result, status="failed", reason=end.note)
    return dataclasses.replace(result, reason=end.note) if end.kind == "busy" else result
