"""The cost of merging files, compared with stacking them: `python benchmarks/stacking.py`.

Both run in separate processes, from files to a file. The files are written just before, to a
temporary folder, so that they are in the page cache.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from safetensors.torch import save_file

RULES = ("Bucketing(s=2) >> GeometricMedian()", "Median()", "Krum(f=5)")
STACKING = """
import sys
import torch, byzantium as bz
from safetensors.torch import load_file, save_file
rule, out, *paths = sys.argv[1:]
rows = [torch.cat([t.flatten() for t in load_file(path).values()]) for path in paths]
save_file({"merged": bz.parse_rule(rule)(torch.stack(rows))}, out)
"""


def cost(command: list[str]) -> tuple[float, float]:
    """Seconds of processor time, and seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        perf_counter() - start,
    )


def main(n: int, d: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / f"{k:03}.safetensors") for k in range(n)]
        for k, path in enumerate(paths):
            generator = torch.Generator().manual_seed(k)
            halves = {"a": torch.randn(d // 2, generator=generator), "b": torch.randn(d // 2)}
            save_file(halves, path)
        print(f"{n} files of {d:,} numbers; processor time and time in seconds")
        for rule in RULES:
            merging = [
                str(Path(sys.executable).with_name("byzantium")),
                "aggregate",
                "--rule",
                rule,
            ]
            out = str(Path(folder) / "merged.safetensors")
            ours, seconds = cost([*merging, *paths, "-o", out])
            Path(out).unlink()
            stacked, slow = cost([sys.executable, "-c", STACKING, rule, out, *paths])
            Path(out).unlink()
            print(
                f"{rule}: byzantium aggregate {ours:.1f} ({seconds:.1f}), stacking {stacked:.1f} "
                f"({slow:.1f}): {ours / stacked:.2f} x",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=25)
    parser.add_argument("--d", type=int, default=50_000_000)
    arguments = parser.parse_args()
    main(arguments.n, arguments.d)
