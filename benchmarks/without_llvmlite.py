"""The benefit of llvmlite: rules with compiled passes, and in plain torch without it.

Prints a table: milliseconds of the fastest call, 25 vectors of 1.2 million numbers.
"""

import json
import subprocess
import sys
from time import perf_counter

RULES = ("Median()", "TrimmedMean(f=5)", "Krum(f=5)", "GeometricMedian()")
CALLS = {"with": 15, "without": 4}


def measure(calls: int) -> dict[str, float]:
    """The seconds of the fastest of some calls, by rule, after one that does not count."""
    import torch

    import byzantium as bz

    vectors = torch.randn(25, 1_200_000, generator=torch.Generator().manual_seed(0))
    seconds = {}
    for text in RULES:
        rule, times = bz.parse_rule(text), []
        for _ in range(calls + 1):
            start = perf_counter()
            rule(vectors)
            times.append(perf_counter() - start)
        seconds[text] = min(times[1:])
    return seconds


def main() -> None:
    from byzantium.core import processor

    seconds = {}
    for case in CALLS:
        command = [sys.executable, __file__, case]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds[case] = json.loads(done.stdout)
    print(f"{processor()}\n\n| | with llvmlite | without | |\n| --- | ---: | ---: | ---: |")
    for rule in RULES:
        fast, slow = (1e3 * seconds[case][rule] for case in CALLS)
        print(f"| `{rule}` | {fast:.3g} ms | {slow:.3g} ms | {slow / fast:.3g} x |")


if __name__ == "__main__":
    if sys.argv[1:] == []:
        main()
    else:
        if sys.argv[1] == "without":
            sys.modules["llvmlite"] = None  # type: ignore[assignment]
        print(json.dumps(measure(CALLS[sys.argv[1]])))
