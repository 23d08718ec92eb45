"""Tasks on a Ray cluster that anybody may do again: their results, in order, or one clear error."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from byzantium.core import ByzantiumError
from byzantium.engines.cluster.connection import last_line
from byzantium.rules import Aggregator

# How many times a task is done again after its process or node has died.
RETRIES = 3


class Trouble(NamedTuple):
    """Why a task cannot be done, and the address of its node."""

    reason: str
    node: str


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function; a `Trouble` if a file prevents it."""
    import ray
    import torch

    torch.set_num_threads(1)
    try:
        return function(*arguments)
    except (ByzantiumError, OSError) as error:
        return Trouble(describe(error), ray.util.get_node_ip_address())


def describe(error: Exception) -> str:
    """What an error says, and about which file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


class Tasks:
    """The tasks of one driver, one on each processor of the cluster at a time.

    - `most`: how many run at a time; by default as many as there are processors.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most

    def share(self, value: Any) -> Any:
        """A reference to a value, to pass in its place to tasks."""
        import ray

        return ray.put(value)

    def carry(self, rule: Aggregator) -> None:
        """Let the classes of a rule from a plugin travel with it: nodes have not loaded them."""
        from ray import cloudpickle

        for module in {type(stage).__module__ for stage in rule.stages}:
            if module.partition(".")[0] not in ("byzantium", "__main__"):
                cloudpickle.register_pickle_by_value(sys.modules[module])

    def run(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        watch: Callable[[int], None] = lambda k: None,
    ) -> list[Any]:
        """The results of a function, in the order of the calls.

        - `function`: the function.
        - `calls`: the arguments of each call.
        - `watch`: called with the place of each call that is done.
        """
        import ray

        options = {"num_cpus": 1, "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        task = ray.remote(**options)(attempt)
        results: list[Any] = [None] * len(calls)
        todo, running = deque(enumerate(calls)), dict[Any, int]()
        try:
            while todo or running:
                while todo and (self.most is None or len(running) < self.most):
                    place, arguments = todo.popleft()
                    running[task.remote(function, *arguments)] = place
                (ready, *_), _ = ray.wait(list(running))
                place = running.pop(ready)
                results[place] = _result(ready)
                watch(place)
        finally:
            for reference in running:
                ray.cancel(reference)
        return results


def _result(reference: Any) -> Any:
    """The result of a task that has ended."""
    import ray

    try:
        result = ray.get(reference)
    except ray.exceptions.OutOfMemoryError as error:
        raise ByzantiumError(
            f"a node has too little memory for a task: {last_line(error)}"
        ) from error
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise ByzantiumError(
            f"the processes of a task have died {1 + RETRIES} times: {last_line(error)}"
        ) from error
    except ray.exceptions.RayTaskError:  # an error in code, whose traceback says where
        raise
    except ray.exceptions.RayError as error:
        raise ByzantiumError(f"the cluster has lost a task: {last_line(error)}") from error
    if isinstance(result, Trouble):
        raise ByzantiumError(f"{result.reason}, on the node {result.node} of the cluster")
    return result
