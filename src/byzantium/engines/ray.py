"""Sweeps on a Ray cluster: processes of its nodes do the same jobs in the same folders."""

from __future__ import annotations

import math
import os
import queue
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from byzantium import __version__
from byzantium.core import ByzantiumError, files, import_optional
from byzantium.engines.cluster.connection import (
    Probe,
    answer_probe,
    connected,
    last_line,
    not_shared,
)
from byzantium.runs import (
    Event,
    Gone,
    Job,
    Listen,
    Pool,
    Stop,
    Store,
    Worker,
    perform_with_events,
)

if TYPE_CHECKING:
    from byzantium.engines.files.adapter_merging import AdapterMerging
    from byzantium.engines.files.adapters import Adapters
    from byzantium.engines.files.merging import Merging
    from byzantium.engines.files.source import Files

# Seconds after which a process answers even if it has no events.
EVENT_TIMEOUT = 10.0
# Seconds between two counts of the processors of the cluster.
COUNT_INTERVAL = 5.0
# What all nodes of a sweep share.
RESULTS = "the folder of results"


@dataclass(frozen=True)
class Ray:
    """The engine that carries out jobs on a Ray cluster, one on each of its processors.

    Jobs are those of a sweep; or the tasks of merging checkpoints, each for some columns. All nodes
    must share the folder of results under the same path (and see the checkpoints, for merging), and
    have this version of Byzantium; this is checked before any job starts. The engine never starts a
    cluster: Ray listens on all addresses of a machine, and its owner must decide that.

    - `address`: the head of the cluster, as host:port; "auto" is what the environment variable
      RAY_ADDRESS names, or else the cluster that runs on this machine.
    - `most`: how many jobs run at a time; by default as many as the cluster has processors.

    On the command line it is `byzantium sweep FILE --engine ray`; in Python::

        from byzantium.engines import Ray
        from byzantium.runs import Store, execute, product

        runs = product({"rounds": 600}, {"seed": [0, 1, 2]})
        results = execute(runs, Store("/shared/results"), Ray("head:6379"))

    and `byzantium aggregate --engine ray`, or `merge(..., engine=Ray("head:6379"))`.
    """

    address: str = "auto"
    most: int | None = None

    def __post_init__(self) -> None:
        if self.address == "local":
            raise ByzantiumError(
                "Ray on this machine alone does what local processes do: omit the engine, or "
                "start a cluster with `ray start --head`"
            )
        if "://" in self.address:
            raise ByzantiumError(
                f"the address of Ray must be host:port, got {self.address!r}: start the command "
                "on a node of the cluster, where the files are"
            )
        import_optional("ray", "ray", "the engine Ray")

    def execute(self, jobs: Sequence[Job], store: Store, listen: Listen, stop: Stop) -> None:
        """Carry out jobs, as every `byzantium.runs.Engine` does."""
        store = Store(store.root.absolute())
        with connected(self.address), Probe(store.root, RESULTS) as probe:
            probe.check_every_node(check_node)
            _Cluster(store, listen, stop, probe, self.most).execute(jobs)

    def merging(self, source: Files, output: Path) -> AbstractContextManager[Merging]:
        """A context in which the nodes merge checkpoints, see `byzantium.engines.merge`."""
        from byzantium.engines.cluster.merging import merging_on_ray

        return merging_on_ray(self.address, self.most, source, output)

    def merging_adapters(self, source: Adapters) -> AbstractContextManager[AdapterMerging]:
        """The same for adapters, see `byzantium.engines.merge_adapters`."""
        from byzantium.engines.cluster.adapters import merging_adapters_on_ray

        return merging_adapters_on_ray(self.address, self.most, source)


# -- on the nodes -------------------------------------------------------------------------------


def check_node(probe: Path, reply: Path, version: str) -> str:
    """Why this node cannot take part; "" if it can.

    It copies the probe file, which the driver has locked, to the reply file.
    """
    if trouble := answer_probe(RESULTS, probe, reply, version):
        return trouble
    try:
        if files.in_use(probe):
            return ""
    except OSError as error:
        return not_shared(RESULTS, probe, str(error))
    return f"locks in {probe.parent} do not hold on all nodes, so that two could work on one job"


class Remote:
    """A process of the cluster that does one job at a time, while other threads answer calls.

    It calls nobody: the driver asks it for events.
    """

    def __init__(self, root: Path, data: str | None) -> None:
        import torch

        torch.set_num_threads(1)
        if data is not None:
            os.environ["BYZANTIUM_DATA"] = data
        self.root, self.stopped = root, threading.Event()
        self.queue: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def check_node(self, probe: Path, reply: Path, version: str) -> str:
        return check_node(probe, reply, version)

    def perform(self, job: Job) -> None:
        perform_with_events(job, self.root, self.queue.put, self.stopped.is_set)

    def events(self) -> list[Event]:
        """The events since the last call; it waits a while for the first."""
        events = []
        with suppress(queue.Empty):
            events.append(self.queue.get(timeout=EVENT_TIMEOUT))
            while True:
                events.append(self.queue.get_nowait())
        return events

    def stop(self) -> None:
        self.stopped.set()


# -- in the driver ------------------------------------------------------------------------------


class _RemoteWorker(Worker):
    """The driver's handle of a process of the cluster.

    There is always a call to it under way: first `check_node`, then `events` again and again.
    """

    def __init__(self, actor: Any, probe: Probe) -> None:
        self.actor, self.ready, self.reply = actor, False, probe.new_reply()
        self.call = self.actor.check_node.remote(probe.path, self.reply, __version__)

    def send(self, job: Job) -> None:
        self.actor.perform.remote(job)

    def stop(self) -> None:
        self.actor.stop.remote()

    def end(self, seconds: float) -> None:
        import ray

        ray.kill(self.actor)


class _Cluster(Pool[_RemoteWorker]):
    retries: ClassVar[int] = 3

    def __init__(
        self, store: Store, listen: Listen, stop: Stop, probe: Probe, most: int | None
    ) -> None:
        import ray

        super().__init__(store, listen, stop)
        self.probe, self.most, self.cores, self.counted = probe, most, 1, -math.inf
        # While it works on a job, it answers `events` and `stop`.
        actor = ray.remote(num_cpus=1, max_concurrency=3, scheduling_strategy="SPREAD")(Remote)
        data = os.environ.get("BYZANTIUM_DATA")
        self.actor = partial(actor.remote, store.root, data and os.path.abspath(data))

    @property
    def size(self) -> int:
        import ray

        if self.most is None and time.monotonic() - self.counted > COUNT_INTERVAL:
            self.cores = max(1, int(ray.cluster_resources().get("CPU", 0)))
            self.counted = time.monotonic()
        return self.most or self.cores

    def start(self) -> _RemoteWorker:
        return _RemoteWorker(self.actor(), self.probe)

    def hear(self, seconds: float) -> Iterable[tuple[_RemoteWorker, Event | Gone]]:
        import ray

        calls = {worker.call: worker for worker in self.workers}
        if not calls:
            time.sleep(seconds)
            return
        ray.wait(list(calls), timeout=seconds)
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in ready:
            yield from self._events_of(calls[call])

    def _events_of(self, worker: _RemoteWorker) -> Iterator[tuple[_RemoteWorker, Event | Gone]]:
        import ray

        try:
            answer = ray.get(worker.call)
        except ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False) and not self.closing:
                raise ByzantiumError(
                    f"a process of the cluster cannot begin: {last_line(error)}"
                ) from error
            worker.end(0)  # it may be unreachable and alive
            yield worker, Gone(_death(error))
            return
        if not worker.ready:
            if not self.closing:
                self.probe.check_reply("a node that came later", worker.reply, answer)
            worker.ready, answer = True, []
        worker.call = worker.actor.events.remote()
        for event in answer:
            yield worker, event


def _death(error: Exception) -> str:
    """The cause of death of a process, from Ray's many lines."""
    match = re.search(r"\bits (?:node|worker process) has died", str(error))
    return match[0] if match else f"its process is lost: {type(error).__name__}"
