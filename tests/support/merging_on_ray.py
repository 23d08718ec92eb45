"""Merges on a cluster of Ray, and what happens to them: python merging_on_ray.py WHAT FOLDER.

To be run in the jail, like `cluster`. Parts are small, so that small models have several.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cluster import ADDRESS, cluster, family, kill, processes, tell, wait_for

PART = 1000
COMMAND = f"""
import sys
from byzantium.cli import main
from byzantium.engines.cluster import adapters, merging
adapters.NUMBERS, merging.COLUMNS = 1, {PART}
main()
"""
# A mixing that changes nothing. On the nodes it is called by those tasks that write the output, and
# waits there until it may go on.
GATE = """
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import byzantium as bz

@dataclass(frozen=True, repr=False)
class Gate(bz.Mixing):
    folder: str

    def matrix(self, geometry, generator):
        here = Path(self.folder)
        if sys.argv[0].endswith("default_worker.py"):
            (here / f"waits-{os.getpid()}").touch()
            while not (here / "open").exists():
                time.sleep(0.02)
        return np.eye(geometry.n)
"""


class Merge:
    """The command, and what it says."""

    def __init__(self, folder: Path, rule: str, files: Sequence[str], *options: str) -> None:
        self.folder = folder
        self.log = folder / f"said-{time.monotonic_ns()}"
        command = [sys.executable, "-c", COMMAND, "aggregate", "--rule", rule, *files]
        command += ["-o", "out/merged.safetensors", "--engine", "ray", "--address", ADDRESS]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "COLUMNS": "500"},
            )

    def ended(self, seconds: float = 300) -> tuple[int, str]:
        """Its exit code, and all it said."""
        return self.process.wait(seconds), self.log.read_text()


def names(folder: Path) -> list[str]:
    """The files of contributors."""
    return sorted(path.name for path in folder.glob("client-*"))


def gated(folder: Path) -> Merge:
    """A merge whose tasks wait before they write."""
    (folder / "gate.py").write_text(GATE)
    (folder / "open").unlink(missing_ok=True)
    rule = f"Gate({str(folder)!r}) >> GeometricMedian()"
    return Merge(folder, rule, names(folder), "--plugin", "gate.py")


def waiting(folder: Path, merge: Merge, count: int = 1) -> list[int]:
    """The processes that wait, once there are so many."""

    def found() -> list[int]:
        assert merge.process.poll() is None, merge.log.read_text()
        everyone = processes()
        pids = [int(path.name.partition("-")[2]) for path in folder.glob("waits-*")]
        return [pid for pid in pids if pid in everyone]

    wait_for(lambda: len(found()) >= count)
    return found()


# -- what happens -------------------------------------------------------------------------------


def undisturbed(folder: Path) -> None:
    """All that the test asks for, one command after the other, on one cluster."""
    said = {}
    with cluster() as nodes:
        wait_for(lambda: len(family(nodes[1].pid)) > 2)
        for path in sorted(folder.glob("case-*")):
            rule, *options = (path / "options").read_text().splitlines()
            (path / "out").mkdir()
            said[path.name] = Merge(path, rule, names(path), *options).ended()
    tell(folder, said=said)


def worker_killed(folder: Path) -> None:
    with cluster():
        merge = gated(folder)
        victim = waiting(folder, merge)[0]
        left = sorted(path.name for path in (folder / "out").iterdir())
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: victim not in processes())
        (folder / "open").touch()
        code, said = merge.ended()
    tell(folder, code=code, said=said, before=left)


def node_killed(folder: Path) -> None:
    with cluster() as nodes:
        merge = gated(folder)
        waits = waiting(folder, merge, 2)  # by then the second node has started its process
        members = family(nodes[1].pid)
        assert set(waits) & set(members)
        kill(members)
        (folder / "open").touch()
        code, said = merge.ended()
    tell(folder, code=code, said=said)


def driver_killed(folder: Path) -> None:
    """And the same command again."""
    with cluster():
        merge = gated(folder)
        waiting(folder, merge)
        merge.process.kill()
        merge.process.wait()
        (folder / "open").touch()
        wait_for(lambda: not any(pid in processes() for pid in waiters(folder)))
        left = sorted(path.name for path in (folder / "out").iterdir())
        code, said = gated_open(folder)
        after = sorted(path.name for path in (folder / "out").iterdir())
    tell(folder, code=code, said=said, left=left, after=after)


def waiters(folder: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in folder.glob("waits-*")]


def gated_open(folder: Path) -> tuple[int, str]:
    merge = gated(folder)
    (folder / "open").touch()
    return merge.ended()


def not_seen(folder: Path) -> None:
    """The second node has another folder where the files of contributors are, or another output."""
    said = {}
    for name, place in {"files": folder / "input", "output": folder / "out"}.items():
        script = f'mount -t tmpfs none {place} && exec "$@"'
        with cluster(("unshare", "-m", "bash", "-c", script, "--")) as nodes:
            wait_for(lambda nodes=nodes: len(family(nodes[1].pid)) > 2)  # type: ignore[misc]
            time.sleep(3)  # until the head knows it
            files = sorted(str(path) for path in (folder / "input").iterdir())
            said[name] = Merge(folder, "Median()", files).ended()
    tell(folder, said=said, left=sorted(path.name for path in (folder / "out").iterdir()))


if __name__ == "__main__":
    happenings = {
        one.__name__: one
        for one in (undisturbed, worker_killed, node_killed, driver_killed, not_seen)
    }
    happenings[sys.argv[1]](Path(sys.argv[2]))
