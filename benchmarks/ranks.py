"""Times robust all-reduce on ranks over gloo: python ranks.py RANKS D REPEATS; prints JSON lines.

In each repeat every contestant is called once, and the slowest rank counts. The last line has the
fastest of the repeats ("seconds") and their median ("middle"). Ranks connect by a file and
communicate over loopback, so that nothing listens elsewhere.
"""

import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
import torch.distributed as dist

import byzantium as bz
from byzantium.engines.distributed.reduce import robust_all_reduce

RULES = (bz.Krum(f=0), bz.GeometricMedian(), bz.Median(), bz.Bucketing(s=2) >> bz.GeometricMedian())


# Repeats of the slow contestants.
FEW = 2


def contestants(d: int, rank: int) -> dict[str, Callable[[], object]]:
    """The calls to time; all write into allocated memory, as `all_reduce` does."""
    vector = torch.randn(d, generator=torch.Generator().manual_seed(rank))
    out = vector.clone()
    group: dict[str, Callable[[], object]] = {"all_reduce": partial(dist.all_reduce, out)}
    for rule in RULES:
        ours = partial(robust_all_reduce, vector, rule, out=out)
        group[repr(rule)] = ours
        group[f"{rule!r} gathered"] = partial(ours, replicated=True)
    return group


def measure(rank: int, n: int, d: int, repeats: int, meeting: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=n,
        timeout=timedelta(minutes=5),
    )
    times: dict[str, list[float]] = {}
    group = contestants(d, rank)
    for repeat in range(repeats + 1):
        for name, call in group.items():
            if "gathered" in name and repeat > FEW:
                continue
            dist.barrier()
            start = perf_counter()
            call()
            seconds = torch.tensor(perf_counter() - start)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            if repeat:  # the first is for warming up
                times.setdefault(name, []).append(float(seconds))
        if rank == 0 and repeat < repeats:
            print(json.dumps({"repeat": repeat}), flush=True)
    if rank == 0:
        fastest = {name: min(values) for name, values in times.items()}
        middle = {name: median(values) for name, values in times.items()}
        print(json.dumps({"seconds": fastest, "middle": middle}), flush=True)
    dist.destroy_process_group()


def main(n: int, d: int, repeats: int) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (n, d, repeats, Path(folder) / "meeting")
        ranks = [context.Process(target=measure, args=(rank, *arguments)) for rank in range(n)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    if any(rank.exitcode for rank in ranks):
        sys.exit("a rank has failed")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
