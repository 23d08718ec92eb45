"""Sweeps on a Ray cluster: the same jobs in the same folders, done by processes of its nodes."""

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

# Seconds after which a process that has nothing to tell answers all the same.
SILENCE = 10.0
# Seconds in which the head must answer.
REACH = 10.0
# Seconds in which each node must say whether it sees the results.
ANSWER = 60.0
# Seconds between two looks at how many processors the cluster has.
COUNT = 5.0
# Bytes of the word by which nodes show what they see.
WORD = 16


@dataclass(frozen=True)
class Ray:
    """The engine that carries out jobs on a Ray cluster, one on each of its processors.

    All nodes must see the folder of results under the same path, and have this version of
    Byzantium; that is checked before anything is begun. A cluster is never started: Ray listens on
    all addresses of a machine, and that is for its owner to decide.

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
                "Ray on this machine alone does what local processes do: leave out the engine, "
                "or start a cluster with `ray start --head`"
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
        with _connected(self.address), _Sign(store.root) as sign:
            sign.ask_every_node()
            _Cluster(store, listen, stop, sign, self.most).execute(jobs)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """As a driver of the cluster, unless this process is one already."""
    import ray

    if ray.is_initialized():
        yield
        return
    _check_reach(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in INTERRUPTS} if here else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about accelerators
            ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise _no_cluster(address, error) from error
    finally:
        for number, handler in before.items():  # Ray takes SIGTERM for itself
            signal.signal(number, handler)
    try:
        yield
    finally:
        ray.shutdown()


def _check_reach(address: str) -> None:
    """Raise a sentence where nothing listens: Ray would try it for minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH).close()
        except (OSError, ValueError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ByzantiumError:
    where = "on this machine" if address == "auto" else f"at {address}"
    return ByzantiumError(
        f"there is no Ray cluster {where} (`ray start --head` starts one): {_last_line(error)}"
    )


# -- on the nodes -------------------------------------------------------------------------------


def look(sign: Path, reply: Path, version: str) -> str:
    """Copy the sign, which is locked, and say what is in the way of taking part, if anything is."""
    if version != __version__:
        return f"it has byzantium {__version__}, and the sweep was started with {version}"
    try:
        files.write(reply, files.read(sign, WORD))
        if files.in_use(sign):
            return ""
    except OSError as error:
        return _not_shared(sign, str(error))
    return f"locks in {sign.parent} do not hold on all nodes, so that two could work on one job"


def _not_shared(sign: Path, why: str) -> str:
    return f"it does not share the folder of results, {sign.parent} ({why})"


class Remote:
    """A process of the cluster that takes one job after the other, in a thread beside others.

    It does not call anybody: it is asked what there is to tell.
    """

    def __init__(self, root: Path, data: str | None) -> None:
        import torch

        torch.set_num_threads(1)
        if data is not None:
            os.environ["BYZANTIUM_DATA"] = data
        self.root, self.stopped = root, threading.Event()
        self.told: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def look(self, sign: Path, reply: Path, version: str) -> str:
        return look(sign, reply, version)

    def perform(self, job: Job) -> None:
        perform_with_events(job, self.root, self.told.put, self.stopped.is_set)

    def events(self) -> list[Event]:
        """What happened since it was asked last; it waits a while for the first."""
        found = []
        with suppress(queue.Empty):
            found.append(self.told.get(timeout=SILENCE))
            while True:
                found.append(self.told.get_nowait())
        return found

    def stop(self) -> None:
        self.stopped.set()


# -- here ---------------------------------------------------------------------------------------


class _Sign:
    """A file among the results, by which it is found out who sees them."""

    def __init__(self, root: Path) -> None:
        self.root, self.word = root, secrets.token_bytes(WORD)

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        files.clear_abandoned(self.root / ".ray")
        self.path, self.descriptor = files.create_beside(self.root / ".ray")
        os.write(self.descriptor, self.word)
        os.fsync(self.descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink(missing_ok=True)

    def question(self) -> tuple[Path, Path, str]:
        """What to ask one who is to `look`."""
        reply = self.path.with_name(f"{self.path.name}-{secrets.token_hex(8)}")
        return self.path, reply, __version__

    def judge(self, node: str, reply: Path, trouble: str) -> None:
        """Raise a sentence unless what a node wrote is seen here."""
        if not trouble:
            try:
                if files.read(reply, WORD) != self.word:
                    trouble = _not_shared(self.path, "what it wrote is something else here")
                reply.unlink()
            except OSError as error:
                trouble = _not_shared(self.path, f"here, what it wrote is not seen: {error}")
        if trouble:
            raise ByzantiumError(f"{node} of the cluster cannot take part: {trouble}")

    def ask_every_node(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        asked, task = [], ray.remote(num_cpus=0, max_retries=0)(look)
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                question = self.question()
                answer = task.options(scheduling_strategy=there).remote(*question)
                asked.append((node, question[1], answer))
        for node, reply, answer in asked:
            try:
                trouble = ray.get(answer, timeout=ANSWER)
            except ray.exceptions.GetTimeoutError:
                trouble = f"it has not answered for {ANSWER:.0f} s"
            except ray.exceptions.RayError as error:
                trouble = _last_line(error)
            self.judge(f"the node {node['NodeManagerAddress']}", reply, trouble)


class _Member(Worker):
    """A process of the cluster, seen from here.

    It is asked for news all the time; the first is whether it sees the results.
    """

    def __init__(self, actor: Any, sign: _Sign) -> None:
        self.actor, self.ready, question = actor, False, sign.question()
        self.reply, self.news = question[1], self.actor.look.remote(*question)

    def send(self, job: Job) -> None:
        self.actor.perform.remote(job)

    def stop(self) -> None:
        self.actor.stop.remote()

    def end(self, seconds: float) -> None:
        import ray

        ray.kill(self.actor)


class _Cluster(Pool[_Member]):
    retries: ClassVar[int] = 3

    def __init__(
        self, store: Store, listen: Listen, stop: Stop, sign: _Sign, most: int | None
    ) -> None:
        import ray

        super().__init__(store, listen, stop)
        self.sign, self.most, self.cores, self.counted = sign, most, 1, -math.inf
        # While it works on a job, it can be asked for news and told to stop.
        kind = ray.remote(num_cpus=1, max_concurrency=3, scheduling_strategy="SPREAD")(Remote)
        data = os.environ.get("BYZANTIUM_DATA")
        self.actor = partial(kind.remote, store.root, data and os.path.abspath(data))

    @property
    def size(self) -> int:
        import ray

        if self.most is None and time.monotonic() - self.counted > COUNT:
            self.cores = max(1, int(ray.cluster_resources().get("CPU", 0)))
            self.counted = time.monotonic()
        return self.most or self.cores

    def start(self) -> _Member:
        return _Member(self.actor(), self.sign)

    def hear(self, seconds: float) -> Iterable[tuple[_Member, Event | Gone]]:
        import ray

        asked = {member.news: member for member in self.workers}
        if not asked:
            time.sleep(seconds)
            return
        ray.wait(list(asked), timeout=seconds)
        told, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0)
        for news in told:
            yield from self._news_of(asked[news])

    def _news_of(self, member: _Member) -> Iterator[tuple[_Member, Event | Gone]]:
        import ray

        try:
            news = ray.get(member.news)
        except ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False) and not self.closing:
                raise ByzantiumError(
                    f"a process of the cluster cannot begin: {_last_line(error)}"
                ) from error
            member.end(0)  # it may be out of reach and alive
            yield member, Gone(_death(error))
            return
        if not member.ready:
            if not self.closing:
                self.sign.judge("a node that came later", member.reply, news)
            member.ready, news = True, []
        member.news = member.actor.events.remote()
        for event in news:
            yield member, event


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _death(error: Exception) -> str:
    """What a process died of, from the many lines that Ray has for it."""
    found = re.search(r"\bits (?:node|worker process) has died", str(error))
    return found[0] if found else f"its process is lost: {type(error).__name__}"
