"""What llvmlite buys: rules with compiled passes, and in plain torch where it cannot be imported.

Prints a table: milliseconds of the fastest call, 25 vectors of 1.2 million numbers.
"""

import json
import subprocess
import sys
from time import perf_counter

RULES = ("Median()", "TrimmedMean(f=5)", "Krum(f=5)", "GeometricMedian()")
CALLS = {"with": 15, "without": 4}


def measured(calls: int) -> dict[str, float]:
    """The seconds of the fastest of so many calls, by rule; after one that is not counted."""
    import torch

    import byzantium as bz

    vectors = torch.randn(25, 1_200_000, generator=torch.Generator().manual_seed(0))
    found = {}
    for text in RULES:
        rule, times = bz.parse_rule(text), []
        for _ in range(calls + 1):
            started = perf_counter()
            rule(vectors)
            times.append(perf_counter() - started)
        found[text] = min(times[1:])
    return found


def main() -> None:
    from byzantium.core import processor

    found = {}
    for case in CALLS:
        command = [sys.executable, __file__, case]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[case] = json.loads(done.stdout)
    print(f"{processor()}\n\n| | with llvmlite | without | |\n| --- | ---: | ---: | ---: |")
    for rule in RULES:
        fast, slow = (1e3 * found[case][rule] for case in CALLS)
        print(f"| `{rule}` | {fast:.3g} ms | {slow:.3g} ms | {slow / fast:.3g} x |")


if __name__ == "__main__":
    if sys.argv[1:] == []:
        main()
    else:
        if sys.argv[1] == "without":
            sys.modules["llvmlite"] = None  # type: ignore[assignment]
        print(json.dumps(measured(CALLS[sys.argv[1]])))
