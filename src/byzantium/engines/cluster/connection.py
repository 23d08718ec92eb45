"""The connection to a Ray cluster, and the check of its nodes before any work begins."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from byzantium import __version__
from byzantium.core import ByzantiumError, files
from byzantium.runs import INTERRUPTS

# Seconds in which the head must answer.
CONNECT_TIMEOUT = 10.0
# Seconds in which each node must answer whether it can take part.
REPLY_TIMEOUT = 60.0
# Bytes of the token that a node must read and write in a shared folder.
TOKEN_BYTES = 16

# Why a node cannot take part; "" if it can. The last arguments are the probe file, the reply file
# and the version of the driver.
CheckNode = Callable[..., str]


@contextmanager
def connected(address: str) -> Iterator[None]:
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
        f"there is no Ray cluster {where} (`ray start --head` starts one): {last_line(error)}"
    )


def last_line(error: Exception) -> str:
    """The last line of what an error says."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


# -- on the nodes -------------------------------------------------------------------------------


def wrong_version(version: str) -> str:
    """That this node has another version of Byzantium; "" if it has the same."""
    if version == __version__:
        return ""
    return f"it has byzantium {__version__}, and the command was started with {version}"


def answer_probe(what: str, probe: Path, reply: Path, version: str) -> str:
    """Copy the probe file to the reply file; why this node cannot do that, or "".

    - `what`: what the folder of these files is, in words.
    - `version`: the version of Byzantium of the driver.
    """
    if trouble := wrong_version(version):
        return trouble
    try:
        files.write(reply, files.read(probe, TOKEN_BYTES))
    except OSError as error:
        return not_shared(what, probe, str(error))
    return ""


def not_shared(what: str, probe: Path, reason: str) -> str:
    """The predicate of a node that does not share a folder."""
    return f"it does not share {what}, {probe.parent} ({reason})"


# -- in the driver ------------------------------------------------------------------------------


class Probe:
    """A file in a folder that shows which nodes share this folder.

    - `root`: the folder.
    - `what`: what it is, in words.
    """

    def __init__(self, root: Path, what: str) -> None:
        self.root, self.what, self.token = root, what, secrets.token_bytes(TOKEN_BYTES)

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
                    reason = "the driver reads something else"
                    trouble = not_shared(self.what, self.path, reason)
                reply.unlink()
            except OSError as error:
                reason = f"the driver cannot read its file: {error}"
                trouble = not_shared(self.what, self.path, reason)
        if trouble:
            raise ByzantiumError(f"{node} of the cluster cannot take part: {trouble}")

    def check_every_node(self, check: CheckNode, *arguments: Any) -> None:
        """Raise an error if a node with processors cannot take part.

        - `check`: what each node calls, after `arguments`.
        """
        answers = ask_every_node(
            check, lambda: (*arguments, self.path, self.new_reply(), __version__)
        )
        for node, (*_, reply, _), trouble in answers:
            self.check_reply(node, reply, trouble)


def ask_every_node(
    check: CheckNode, arguments: Callable[[], tuple[Any, ...]]
) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """Each node with processors, what it was called with, and why it cannot take part, or "".

    - `check`: what each node calls.
    - `arguments`: returns the arguments for a node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    calls, task = [], ray.remote(num_cpus=0, max_retries=0)(check)
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            on_node = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            call, remote = arguments(), task.options(scheduling_strategy=on_node).remote
            calls.append((node, call, remote(*call)))
    for node, call, answer in calls:
        try:
            trouble = ray.get(answer, timeout=REPLY_TIMEOUT)
        except ray.exceptions.GetTimeoutError:
            trouble = f"it has not answered for {REPLY_TIMEOUT:.0f} s"
        except ray.exceptions.RayError as error:
            trouble = last_line(error)
        yield f"the node {node['NodeManagerAddress']}", call, trouble
