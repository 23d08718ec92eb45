"""A cluster of Ray, two nodes on loopback, and what happens to it: python cluster.py WHAT FOLDER.

To be run in the jail. The nodes are what `ray start` makes; the sweep is the command line's.
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESS = "127.0.0.1:6399"
# More evaluations than any run has.
ALL = 1000
BESIDE = Path(sys.executable).parent


# A run waits before an evaluation until that many are allowed, or its worker was asked to stop. So
# no run is done, or elsewhere than expected, when something happens to it, on any machine.
GATE = """
import gc, time
from pathlib import Path
import byzantium as bz

ALLOWED = Path(__file__).with_name("allowed")


def told_to_stop():
    for one in gc.get_objects():
        if any(kind.__module__ == "byzantium.engines.ray" and kind.__name__ == "Remote"
               for kind in type(one).__mro__) and one.stopped.is_set():
            return True
    return False


def wait(scene):
    number = len(scene.training.history.evaluations) + 1
    while number > int(ALLOWED.read_text() or 0) and not told_to_stop():
        time.sleep(0.05)
    return number


gate = bz.Metric("gate", "the number of the evaluation", wait)
"""


def sweep_file(folder: Path, evaluations: int = 10, data: str = "digits") -> Path:
    """Two runs, which wait where `allow` says; what is there stays."""
    path = folder / "sweep.toml"
    if not path.exists():
        (folder / "gate.py").write_text(GATE)
        allow(folder, 2)
        size = f"rounds = {100 * evaluations}\nevaluate_every = 100\nn = 7\nf = 1\nbatch = 8"
        words = f'data = "{data}"\nrule = "Median()"\nrecord = ["gate"]'
        whole = f'plugin = ["gate.py"]\n[fixed]\n{size}\n{words}\n[varies]\nseed = [0, 1]\n'
        path.write_text(whole)
    return path


def allow(folder: Path, evaluations: int) -> None:
    """Let each run of the sweep in a folder be evaluated so many times, and not more."""
    beside = folder / "allowed.new"
    beside.write_text(str(evaluations))
    beside.replace(folder / "allowed")


# -- the cluster ----------------------------------------------------------------------------------


def node(*options: str, around: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    ray = [*around, str(BESIDE / "ray"), "start", "--block", "--node-ip-address=127.0.0.1"]
    ray += ["--num-cpus=1", "--object-store-memory=80000000", *options]
    return subprocess.Popen(ray, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextmanager
def cluster(around: tuple[str, ...] = ()) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A head and a second node, which may be started by another command `around` it."""
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets need short names
    os.environ |= {"RAY_AUTH_MODE": "disabled", "HOME": place, "RAY_TMPDIR": place}
    port = f"--port={ADDRESS.rpartition(':')[2]}"
    quiet = ("--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={place}")
    nodes = [node("--head", port, *quiet)]
    try:
        wait_for(lambda: open_port(nodes[0]))
        nodes.append(node(f"--address={ADDRESS}", around=around))
        yield nodes
    finally:
        for one in reversed(nodes):
            kill(family(one.pid))
            one.wait()
        wait_for(lambda: set(processes()) <= {1, os.getpid()})  # the jail, and this one
        shutil.rmtree(place, ignore_errors=True)


def open_port(head: subprocess.Popen[bytes]) -> bool:
    assert head.poll() is None, "the head has ended"
    return ADDRESS in listeners()


def wait_for(met: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, met
        time.sleep(0.05)


def processes() -> dict[int, int]:
    """Those that are alive, and their parents."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                found[int(path.name)] = int(parent)
    return found


def family(ancestor: int) -> list[int]:
    """A process and all that came from it."""
    members, everyone = [ancestor], processes()
    for one in members:
        members += [child for child, parent in everyone.items() if parent == one]
    return members


def kill(victims: list[int]) -> None:
    for victim in victims:
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            continue


def listeners() -> set[str]:
    """The addresses that are listened on."""
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A":
                digits, port = local.split(":")
                words = [bytes.fromhex(digits[k : k + 8])[::-1] for k in range(0, len(digits), 8)]
                address = ipaddress.ip_address(b"".join(words))
                address = getattr(address, "ipv4_mapped", None) or address
                found.add(f"{address}:{int(port, 16)}")
    return found


# -- the sweep ----------------------------------------------------------------------------------


class Sweep:
    """The command, and what it says."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.results = folder, folder / "results"
        command = [str(BESIDE / "byzantium"), "sweep", str(sweep_file(folder)), "--out", "results"]
        command += ["--engine", "ray", "--address", ADDRESS, *options]
        self.log = folder / f"said-{time.monotonic_ns()}"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def lines(self) -> dict[Path, int]:
        """For each run how many evaluations are on the disk."""
        found = self.results.glob("*/metrics.jsonl")
        return {path.parent: path.read_text().count("\n") for path in found}

    def under_way(self, runs: int = 2, evaluations: int = 2) -> list[tuple[Path, int]]:
        """When so many runs are in their midst: their folders and processes."""

        def marked() -> list[tuple[Path, int]]:
            assert self.process.poll() is None, self.log.read_text()
            return [
                (folder, json.loads((folder / ".working").read_text())["process"])
                for folder, count in self.lines().items()
                if count >= evaluations and (folder / ".working").exists()
            ]

        wait_for(lambda: len(marked()) >= runs)
        return marked()

    def ended(self, seconds: float = 600) -> tuple[int, str]:
        """Its exit code, and all it said."""
        return self.process.wait(seconds), self.log.read_text()


def free(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


# -- what happens -------------------------------------------------------------------------------


def worker_killed(folder: Path) -> None:
    """The data are in a folder that only the command knows."""
    sweep_file(folder, data="mnist")
    with cluster():
        sweep = Sweep(folder, "--data-dir", "data")
        victim, process = sweep.under_way(runs=1)[0]
        before, heard = sweep.lines()[victim], listeners()
        os.kill(process, signal.SIGKILL)
        allow(folder, ALL)
        code, said = sweep.ended()
    tell(folder, code=code, said=said, listeners=sorted(heard), before=before)


def lock_kept(folder: Path) -> None:
    """One is killed; its lock goes to somebody who keeps it for a while, as a file server might."""
    with cluster():
        sweep = Sweep(folder)
        victim, process = sweep.under_way(runs=1)[0]
        lock = os.open(victim / ".lock", os.O_RDWR)
        heir = threading.Thread(target=fcntl.flock, args=(lock, fcntl.LOCK_EX))
        heir.start()
        time.sleep(0.1)
        os.kill(process, signal.SIGKILL)
        heir.join()
        wait_for(lambda: "the process that died is released" in sweep.log.read_text())
        os.close(lock)
        allow(folder, ALL)
        code, said = sweep.ended()
    tell(folder, code=code, said=said)


def node_killed(folder: Path) -> None:
    with cluster() as nodes:
        sweep = Sweep(folder)
        processes = sweep.under_way()
        members = family(nodes[1].pid)
        assert sum(process in members for _, process in processes) == 1
        kill(members)
        allow(folder, ALL)
        code, said = sweep.ended()
    tell(folder, code=code, said=said)


def driver_interrupted(folder: Path) -> None:
    """Ctrl-C, `kill`, `kill -9`, and each time the same command again."""
    told = []
    with cluster():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            sweep = Sweep(folder)
            further = 1 + max(sweep.lines().values(), default=0)
            allow(folder, further)
            sweep.under_way(evaluations=further)
            sweep.process.send_signal(number)
            told.append((*sweep.ended(), sum(sweep.lines().values())))
            wait_for(lambda: all(map(free, (folder / "results").glob("*/.lock"))))
        allow(folder, ALL)
        last = Sweep(folder)
        told.append((*last.ended(), sum(last.lines().values())))
        again = Sweep(folder)
        told.append((*again.ended(), sum(again.lines().values())))
    tell(folder, told=told)


def not_shared(folder: Path) -> None:
    """The second node has another folder under the name of that of the results, or cannot write."""
    (folder / "results").mkdir()
    said = {}
    for name, mount in {
        "another": "mount -t tmpfs none {0}",
        "read-only": "mount --bind {0} {0} && mount -o remount,ro,bind {0}",
    }.items():
        script = mount.format(folder / "results") + ' && exec "$@"'
        with cluster(("unshare", "-m", "bash", "-c", script, "--")) as nodes:
            wait_for(lambda nodes=nodes: len(family(nodes[1].pid)) > 2)  # type: ignore[misc]
            time.sleep(3)  # until the head knows it
            said[name] = Sweep(folder).ended()
    tell(folder, said=said, left=sorted(path.name for path in (folder / "results").iterdir()))


PLUGIN = """
import numpy as np
import byzantium as bz

class First(bz.Weighting):
    def weights(self, geometry):
        return np.eye(geometry.n)[0]
"""


def own_rule(folder: Path) -> None:
    """A sweep whose file names a plugin, which the nodes know nothing of."""
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "sweep.toml").write_text(
        'plugin = ["mine.py"]\n[fixed]\nrounds = 20\nn = 7\nf = 1\nbatch = 8\n'
        'rule = "First()"\n[varies]\nseed = [0, 1]\n'
    )
    with cluster():
        code, said = Sweep(folder).ended()
    tell(folder, code=code, said=said)


def tell(folder: Path, **found: object) -> None:
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    happenings = {
        function.__name__: function
        for function in (
            worker_killed,
            lock_kept,
            node_killed,
            driver_interrupted,
            not_shared,
            own_rule,
        )
    }
    happenings[sys.argv[1]](Path(sys.argv[2]))
