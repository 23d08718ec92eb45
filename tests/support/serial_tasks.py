"""The tasks of a cluster in this process: what Ray would do with them, without Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from byzantium.engines.cluster.adapters import ClusterAdapterMerging
from byzantium.engines.cluster.merging import ClusterMerging
from byzantium.engines.cluster.tasks import Tasks
from byzantium.engines.files import Adapters, Files
from byzantium.rules import Aggregator

# The place of the phase among the arguments of a task.
PHASE = 3


class SerialTasks(Tasks):
    """Each task gets copies of its arguments, and is done twice, as after a death.

    The first time it reads its columns wherever the rule does, and not only in one phase, which
    must change nothing.

    - `before`: called with the function of a task before it is done.
    - `twice`: whether it is done twice.
    """

    def __init__(
        self,
        before: Callable[[Callable[..., Any]], None] = lambda function: None,
        twice: bool = True,
    ) -> None:
        super().__init__()
        self.before, self.twice = before, twice

    def share(self, value: Any) -> Any:
        return value

    def carry(self, rule: Aggregator) -> None:
        pass

    def run(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        watch: Callable[[int], None] = lambda k: None,
    ) -> list[Any]:
        results: list[Any] = [None] * len(calls)
        for place, arguments in reversed(list(enumerate(calls))):
            self.before(function)
            raw = pickle.dumps(arguments)
            everything = list(pickle.loads(raw))
            phased = function.__name__ in ("_partial_sum", "_write")
            if phased:
                everything[PHASE] = None
            states = []
            for given in (everything, pickle.loads(raw))[not self.twice :]:
                results[place] = pickle.loads(pickle.dumps(function(*given)))
                written = [one.read_bytes() for one in given if isinstance(one, Path)]
                states.append(pickle.dumps((results[place], written)))
            assert states[0] == states[-1] or not phased
            watch(place)
        return results


class Serial:
    """An engine for `merge` and `merge_adapters`."""

    def __init__(self, **options: Any) -> None:
        self.tasks = SerialTasks(**options)

    def merging(self, source: Files, output: Path) -> AbstractContextManager[ClusterMerging]:
        return nullcontext(ClusterMerging(source, self.tasks))

    def merging_adapters(self, source: Adapters) -> AbstractContextManager[ClusterAdapterMerging]:
        return nullcontext(ClusterAdapterMerging(source, self.tasks))
