"""Sweeps on a Ray cluster: processes of its nodes do the same jobs in the same folders."""

from __future__ import annotations

import logging
import math
import os
import queue
import re
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from byzantium import __version__
from byzantium.core import ByzantiumError, files, import_optional
from byzantium.runs import (
    INTERRUPTS,
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

# Seconds after which a process answers even if it has no events.
EVENT_TIMEOUT = 10.0
# Seconds in which the head must answer.
CONNECT_TIMEOUT = 10.0
# Seconds in which each node must answer whether it shares the folder of results.
REPLY_TIMEOUT = 60.0
# Seconds between two counts of the processors of the cluster.
COUNT_INTERVAL = 5.0
# Bytes of the token that a node must read and write in the folder of results.
TOKEN_BYTES = 16


@dataclass(frozen=True)
class Ray:
    """The engine that carries out jobs on a Ray cluster, one on each of its processors.

    All nodes must share the folder of results under the same path, and have this version of
    Byzantium; both are checked before any job starts. The engine never starts a cluster: Ray
    listens on all addresses of a machine, and its owner must decide that.

    - `address`: the head of the cluster, as host:port; "auto" is what the environment variable
      RAY_ADDRESS names, or else the cluster that runs on this machine.
    - `most`: how many jobs run at a time; by default as many as the cluster has processors.

    On the command line it is `byzantium sweep FILE --engine ray`; in Python::

        from byzantium.engines import Ray
        from byzantium.runs import Store, execute, product

        runs = product({"rounds": 600}, {"seed": [0, 1, 2]})
        results = execute(runs, Store("/shared/results"), Ray("head:6379"))
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
                f"the address of Ray must be host:port, got {self.address!r}: start the sweep on a "
                "node of the cluster, where the results are"
            )
        import_optional("ray", "ray", "a sweep on Ray")

    def execute(self, jobs: Sequence[Job], store: Store, listen: Listen, stop: Stop) -> None:
        """Carry out jobs, as every `byzantium.runs.Engine` does."""
        store = Store(store.root.absolute())
        with _connected(self.address), _Probe(store.root) as probe:
            probe.check_every_node()
            _Cluster(store, listen, stop, probe, self.most).execute(jobs)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect this process to the cluster as a driver, unless it is one already."""
    import ray

    if ray.is_initialized():
        yield
        return
    _check_address(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in INTERRUPTS} if main else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about accelerators
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error
    finally:
        for number, handler in handlers.items():  # Ray replaces that of SIGTERM
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise an error if nothing listens at an address: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
        except (OSError, ValueError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ByzantiumError:
    where = "on this machine" if address == "auto" else f"at {address}"
    return ByzantiumError(
        f"there is no Ray cluster {where} (`ray start --head` starts one): {_last_line(error)}"
    )


# -- on the nodes -------------------------------------------------------------------------------


def check_node(probe: Path, reply: Path, version: str) -> str:
    """Why this node cannot take part; "" if it can.

    It copies the probe file, which the driver has locked, to the reply file.
    """
    if version != __version__:
        return f"it has byzantium {__version__}, and the sweep was started with {version}"
    try:
        files.write(reply, files.read(probe, TOKEN_BYTES))
        if files.in_use(probe):
            return ""
    except OSError as error:
        return _not_shared(probe, str(error))
    return f"locks in {probe.parent} do not hold on all nodes, so that two could work on one job"


def _not_shared(probe: Path, reason: str) -> str:
    return f"it does not share the folder of results, {probe.parent} ({reason})"


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


class _Probe:
    """A file in the folder of results that shows which nodes share this folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.token = root, secrets.token_bytes(TOKEN_BYTES)

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        files.clear_abandoned(self.root / ".ray")
        self.path, self.descriptor = files.create_beside(self.root / ".ray")
        os.write(self.descriptor, self.token)
        os.fsync(self.descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink(missing_ok=True)

    def new_reply(self) -> Path:
        return self.path.with_name(f"{self.path.name}-{secrets.token_hex(8)}")

    def check_reply(self, node: str, reply: Path, trouble: str) -> None:
        """Raise an error if a node has trouble, or the driver does not see its reply file."""
        if not trouble:
            try:
                if files.read(reply, TOKEN_BYTES) != self.token:
                    trouble = _not_shared(self.path, "the driver reads something else")
                reply.unlink()
            except OSError as error:
                trouble = _not_shared(self.path, f"the driver cannot read its file: {error}")
        if trouble:
            raise ByzantiumError(f"{node} of the cluster cannot take part: {trouble}")

    def check_every_node(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        calls, task = [], ray.remote(num_cpus=0, max_retries=0)(check_node)
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                reply, remote = self.new_reply(), task.options(scheduling_strategy=on_node).remote
                calls.append((node, reply, remote(self.path, reply, __version__)))
        for node, reply, answer in calls:
            try:
                trouble = ray.get(answer, timeout=REPLY_TIMEOUT)
            except ray.exceptions.GetTimeoutError:
                trouble = f"it has not answered for {REPLY_TIMEOUT:.0f} s"
            except ray.exceptions.RayError as error:
                trouble = _last_line(error)
            self.check_reply(f"the node {node['NodeManagerAddress']}", reply, trouble)


class _RemoteWorker(Worker):
    """The driver's handle of a process of the cluster.

    There is always a call to it under way: first `check_node`, then `events` again and again.
    """

    def __init__(self, actor: Any, probe: _Probe) -> None:
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
        self, store: Store, listen: Listen, stop: Stop, probe: _Probe, most: int | None
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
                    f"a process of the cluster cannot begin: {_last_line(error)}"
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


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _death(error: Exception) -> str:
    """The cause of death of a process, from Ray's many lines."""
    match = re.search(r"\bits (?:node|worker process) has died", str(error))
    return match[0] if match else f"its process is lost: {type(error).__name__}"
