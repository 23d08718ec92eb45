"""Measurements that need a new process: first calls and peak memory.

Prints one JSON object per line. `sections.probe` starts it.
"""

import argparse
import ctypes
import gc
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from contestants import Entry, entries, floor_of

import byzantium as bz

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
WARM_UP_COLUMNS = 4096


def resident(field: str) -> int:
    """Bytes resident now (VmRSS) or at most since the last reset (VmHWM)."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def reset_peak() -> int:
    """Free memory, reset the peak, and return the resident bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    CLEAR.write_text("5")  # resets VmHWM
    return before


def first_call() -> None:
    x = torch.randn(25, 10_000)
    start = perf_counter()
    bz.Median()(x)
    print(json.dumps({"seconds": perf_counter() - start}), flush=True)


def peak(entry: Entry, x: torch.Tensor, small: torch.Tensor) -> dict[str, object]:
    """Seconds and peak extra bytes of the first call at full size.

    The warm-up has few columns: it compiles and starts threads without large buffers.
    """
    entry.ours()(small)
    rule = entry.ours()
    before = reset_peak()
    start = perf_counter()
    output = rule(x)
    seconds = perf_counter() - start
    results = output.nbytes * (2 if entry.rule == "clipping" else 1)  # the output and the center
    extra = max(0, resident("VmHWM") - before - results)
    return {"name": entry.name, "seconds": seconds, "share": extra / x.nbytes}


def memory(n: int, d: int, only: str, weightings: bool) -> None:
    torch.manual_seed(0)
    x, small = torch.randn(n, d), torch.randn(n, min(d, WARM_UP_COLUMNS))
    floor = floor_of("gram", n)
    start = perf_counter()
    floor(x)
    print(json.dumps({"name": "floor", "seconds": perf_counter() - start}), flush=True)
    x.mean(0)
    for entry in entries(n, only):
        if not weightings or (entry.is_weighting and entry.rule != "diameter"):
            print(json.dumps(peak(entry, x, small)), flush=True)


def training_memory(only: str) -> None:
    """Peak extra bytes of a few rounds less those of one worker's pass, over those of X.

    The memory of a simulation counts from its construction on. A pass needs the model, its
    gradients and one worker's activations. The warm-up, with the same rule and attack but a small
    model, compiles and starts threads without large buffers.
    """
    import training

    from byzantium.learning import cnn, mlp

    data = training.images()

    def one_pass() -> None:
        training.passes(cnn(), data, workers=1)

    def train(make: Callable[[], torch.nn.Module], rule: bz.Aggregator, attack: bz.Attack) -> None:
        training.play(iter(training.rounds(make(), data, rule, attack)), 3)

    one_pass()
    before = reset_peak()
    one_pass()
    pass_bytes = resident("VmHWM") - before
    x_bytes = 4 * training.N * sum(p.numel() for p in cnn().parameters())
    for case in training.memory_cases(only):
        train(partial(mlp, (1, 28, 28)), case.rule, case.attack)
        before = reset_peak()
        train(cnn, case.rule, case.attack)
        extra = resident("VmHWM") - before
        print(json.dumps({"name": case.name, "share": (extra - pass_bytes) / x_bytes}), flush=True)


def rounds(threads: int) -> None:
    """Median seconds of a round with the paper's CNN."""
    import training

    from byzantium.learning import cnn

    torch.set_num_threads(threads)
    rule = bz.Bucketing(s=2) >> bz.GeometricMedian()
    steps = iter(training.rounds(cnn(), training.images(), rule, bz.InnerProduct()))
    seconds = training.alternate({"round": partial(next, steps)}, 10)["round"]
    print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["first", "memory", "training-memory", "rounds", "growth"])
    parser.add_argument("--n", type=int, default=25)
    parser.add_argument("--d", type=int, default=100_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=60, help="how long growth may take")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--weightings", action="store_true", help="omit all other rules")
    options = parser.parse_args()
    if options.what == "first":
        first_call()
    elif options.what == "training-memory":
        training_memory(options.only)
    elif options.what == "rounds":
        rounds(options.threads)
    elif options.what == "growth":
        import growth

        growth.measure(options.seconds)
    else:
        memory(options.n, options.d, options.only, options.weightings)
