"""The tasks of a cluster in this process: what Ray would do with them, without Ray."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from byzantium.core import ByzantiumError
from byzantium.engines.cluster.merging import ClusterMerging
from byzantium.engines.cluster.tasks import Tasks, Trouble
from byzantium.engines.files import Files


class SerialTasks(Tasks):
    """Each task gets copies of its arguments, and is done twice, as after a death.

    - `before`: called with the function of a task before it is done.
    """

    def __init__(self, before: Callable[[Callable[..., Any]], None] = lambda function: None) -> None:
        super().__init__()
        self.before, self.count = before, 0

    def share(self, value: Any) -> Any:
        return value

    def carry(self, cls: type) -> None:
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
            function(*pickle.loads(raw))
            results[place] = pickle.loads(pickle.dumps(function(*pickle.loads(raw))))
            if isinstance(results[place], Trouble):
                raise ByzantiumError(results[place].reason)
            self.count += 1
            watch(place)
        return results


class Serial:
    """An engine for `merge`."""

    def __init__(self, **options: Any) -> None:
        self.tasks = SerialTasks(**options)

    def merging(self, source: Files, output: Path) -> AbstractContextManager[ClusterMerging]:
        return nullcontext(ClusterMerging(source, self.tasks))
