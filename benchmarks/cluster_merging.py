"""The cost of merging checkpoints on a Ray cluster: a model, checked at two sizes.

Ray listens on all addresses of a machine, so run it in a network of its own, as root:

    unshare -n -p -f --kill-child --mount-proc bash -c 'ip link set lo up; exec "$@"' -- \
        python benchmarks/cluster_merging.py

Two nodes with a core each, on this machine, merge files of bfloat16 that are in the page cache. The
seconds of processor time for a number are fitted at the smaller size, and must predict the larger
one. Bytes and operations are counted by hand in `Cost`, and bytes also by the operating system.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import byzantium as bz
from byzantium.engines import Files, Ray
from byzantium.engines.cluster.merging import COLUMNS
from byzantium.engines.files.merging import Call

ADDRESS = "127.0.0.1:6399"
TICKS = os.sysconf("SC_CLK_TCK")
PHASES = ("measure", "hash", "write")


@dataclass(frozen=True)
class Cost:
    """What a merge by weights costs, without a base, by counting.

    - `n`: how many checkpoints there are.
    - `d`: how many numbers each of them has.
    - `width`: the bytes of a number.
    """

    n: int
    d: int
    width: int = 2

    @property
    def tasks(self) -> int:
        """How many tasks there are: to measure, to write, to hash a file, and to compare files."""
        return 2 * -(-self.d // COLUMNS) + self.n + 1

    @property
    def read(self) -> int:
        """Bytes that are read: to measure, to combine, and to hash."""
        return 3 * self.n * self.d * self.width

    @property
    def written(self) -> int:
        return self.d * self.width

    @property
    def returned(self) -> int:
        """Bytes of the inner products that tasks return, of n rows and the origin."""
        return 8 * (self.n + 1) ** 2 * -(-self.d // COLUMNS)

    @property
    def operations(self) -> int:
        """Operations on numbers: differences to a row, half of the Gram matrix, the sum."""
        return (self.n + (self.n + 1) * (self.n + 2) + 2 * self.n) * self.d


# -- the cluster ----------------------------------------------------------------------------------


def start_node(*options: str) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=80000000"]
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*command, *options], stdout=quiet, stderr=quiet)


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Two nodes on loopback, if there is no other network."""
    networks = {line.split(":")[0].strip() for line in proc("net/dev").splitlines()[2:]}
    if networks != {"lo"}:
        raise SystemExit(f"there are other networks, {networks}: see the command in {__file__}")
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    os.environ |= {"RAY_AUTH_MODE": "disabled", "HOME": place, "RAY_TMPDIR": place}
    head = ["--head", "--port=6399", "--include-dashboard=false", "--disable-usage-stats"]
    nodes = [start_node(*head, f"--temp-dir={place}")]
    time.sleep(15)
    nodes.append(start_node(f"--address={ADDRESS}"))
    time.sleep(15)
    try:
        yield
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait()
        shutil.rmtree(place, ignore_errors=True)


def proc(name: str) -> str:
    return Path("/proc", name).read_text()


def counters() -> dict[str, float]:
    """Seconds and bytes of the tasks' processes so far, and bytes on the network."""
    total = {"cpu": 0.0, "read": 0.0, "network": float(proc("net/dev").split("lo:")[1].split()[0])}
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ProcessLookupError):
            if path.name.isdigit() and (path / "cmdline").read_bytes().startswith(b"ray::"):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                total["cpu"] += (int(fields[11]) + int(fields[12])) / TICKS
                io = dict(line.split(": ") for line in (path / "io").read_text().splitlines())
                total["read"] += int(io["rchar"])
    return total


def peak() -> float:
    """The largest memory in MB that a process of tasks has had so far."""
    found = [0.0]
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ProcessLookupError):
            if path.name.isdigit() and (path / "cmdline").read_bytes().startswith(b"ray::"):
                lines = (path / "status").read_text().splitlines()
                found += [int(line.split()[1]) / 1000 for line in lines if line[:6] == "VmHWM:"]
    return max(found)


# -- measurements ---------------------------------------------------------------------------------


def files(folder: Path, n: int, d: int) -> list[str]:
    """Files of random numbers: how large they are does not change the cost."""
    paths = [folder / f"{k:03}.safetensors" for k in range(n)]
    row = torch.randn(d, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for k, path in enumerate(paths):
        save_file({"weight": row.roll(1009 * k)}, path)
    return list(map(str, paths))


def measure(folder: Path, n: int, d: int, rule: str, idle: list[float]) -> dict[str, Any]:
    """What each phase of a merge takes, after one of a tiny model has started all processes.

    - `idle`: the peak of memory after the first tiny model is added to it.
    """
    paths, output = files(folder, n, d), folder / "merged.safetensors"
    results: dict[str, Any] = {}
    with Ray(ADDRESS).merging(source := Files(paths), output) as work:
        warm_up(folder)
        if not idle:
            idle.append(peak())
        for phase in PHASES:
            before, start = counters(), time.perf_counter()
            if phase == "measure":
                report = work.explain(Call(bz.parse_rule(rule)))
            elif phase == "hash":
                work.digests()
            else:
                work.save(report.aggregate, {}, output)
            seconds = time.perf_counter() - start
            after = counters()
            results[phase] = {key: after[key] - before[key] for key in after} | {"time": seconds}
    assert source.d == d
    for path in paths:
        Path(path).unlink()
    output.unlink()
    return results


def warm_up(folder: Path) -> None:
    """Let both processes compile the kernels."""
    (folder / "tiny").mkdir()
    paths = files(folder / "tiny", 25, 1000)
    for _ in range(4):
        with Ray(ADDRESS).merging(Files(paths), folder / "tiny" / "out") as work:
            work.explain(Call(bz.GeometricMedian()))
    shutil.rmtree(folder / "tiny")


def main(n: int, sizes: list[int], target: int, rule: str) -> None:
    import ray

    found, idle = {}, list[float]()
    with cluster(), tempfile.TemporaryDirectory() as name:
        ray.init(ADDRESS, log_to_driver=False)
        for d in sizes:
            found[d] = measure(Path(name), n, d, rule, idle)
            print(
                f"d = {d:,}: a process has {peak():.0f} MB at its peak, of which {idle[0]:.0f} MB "
                "with tiny files",
                flush=True,
            )
        ray.shutdown()
    small = sizes[0]
    rates = {phase: found[small][phase]["cpu"] / (n * small) for phase in PHASES}
    print(f"{n} files of bfloat16, {rule}")
    for d, results in found.items():
        cost = Cost(n, d)
        read, network = (sum(one[key] for one in results.values()) for key in ("read", "network"))
        print(
            f"d = {d:,}: {cost.tasks} tasks; read {cost.read / 1e9:.2f} GB by the model, "
            f"{read / 1e9:.2f} GB by the system; network {network / 1e6:.1f} MB, of which "
            f"inner products {cost.returned / 1e6:.3f} MB"
        )
        for phase, one in results.items():
            predicted = rates[phase] * n * d
            print(
                f"  {phase}: {one['cpu']:.1f} s of processors (model {predicted:.1f}), "
                f"{one['time']:.1f} s"
            )
    cost = Cost(n, target)
    total = sum(rates.values()) * n * target
    print(
        f"d = {target:,} by the model: {cost.tasks} tasks, read {cost.read / 1e9:.0f} GB, write "
        f"{cost.written / 1e9:.0f} GB, return {cost.returned / 1e6:.2f} MB, "
        f"{cost.operations / 1e12:.2f} T operations, {total:.0f} s of processors: "
        + ", ".join(f"{phase} {rates[phase] * n * target:.0f}" for phase in PHASES)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=25)
    parser.add_argument("--sizes", type=int, nargs=2, default=[COLUMNS, 4 * COLUMNS])
    parser.add_argument("--target", type=int, default=1_000_000_000)
    parser.add_argument("--rule", default="GeometricMedian()")
    arguments = parser.parse_args()
    main(arguments.n, arguments.sizes, arguments.target, arguments.rule)
