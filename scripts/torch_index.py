"""Prints the option of pip that adds an index with torch, for `make`.

PyPI's torch for Linux contains CUDA, 2.7 GB; the one without, 0.2 GB, is in PyTorch's own index.
This script checks whether that index answers, because pip would retry for minutes. Instead of `cpu`
the argument may be `cuda`, for the torch of PyPI, or the address of an index.
"""

from __future__ import annotations

import sys
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPException

CPU = "https://download.pytorch.org/whl/cpu"
SECONDS = 5.0


def answers(index: str) -> bool:
    """Whether an index has torch and answers within some seconds.

    A daemon thread asks, because the lookup of a name and of its addresses has no time limit.
    """
    answered = threading.Event()

    def ask() -> None:
        address = f"{index.rstrip('/')}/torch/"
        with (
            suppress(OSError, HTTPException),
            urllib.request.urlopen(address, timeout=SECONDS),
        ):
            answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return answered.is_set()


def choose(torch: str) -> tuple[str, str]:
    """The option for pip, and a sentence about it."""
    if torch == "cuda":
        return "", "torch: as pip finds it; from PyPI it brings CUDA on Linux, 2.7 GB."
    if torch == "cpu" and sys.platform != "linux":
        return "", "torch: as pip finds it; PyPI's brings no CUDA on this system."
    index = CPU if torch == "cpu" else torch
    if not index.startswith(("https://", "http://", "file://")):
        sys.exit(f"TORCH must be cpu, cuda or the address of an index, got {torch!r}")
    if answers(index):
        return f"--extra-index-url={index}", f"torch: from {index} if it is not nearer."
    return "", (
        f"torch: as pip finds it, because {index} does not answer;"
        " from PyPI it brings CUDA on Linux, 2.7 GB."
    )


if __name__ == "__main__":
    option, sentence = choose(*sys.argv[1:])
    print(sentence, file=sys.stderr)
    print(option)
