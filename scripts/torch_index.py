"""Where pip shall look for torch beside its own index, as an option of pip: `make` asks for it.

PyPI's torch for Linux brings CUDA, 2.7 GB; the one without, 0.2 GB, is in an index of PyTorch's.
Whether that can be reached is found out here, because pip would try again and again for minutes.
Instead of `cpu` the argument may be `cuda`, for what PyPI has, or the address of an index.
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
    """Whether an index has torch, within some seconds.

    A thread asks that nobody waits for: looking up a name, or the addresses it has, one after the
    other, takes as long as it likes.
    """
    heard = threading.Event()

    def ask() -> None:
        address = f"{index.rstrip('/')}/torch/"
        with (
            suppress(OSError, HTTPException),
            urllib.request.urlopen(address, timeout=SECONDS),
        ):
            heard.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return heard.is_set()


def chosen(torch: str) -> tuple[str, str]:
    """The option for pip, and the sentence that says what was chosen."""
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
    option, sentence = chosen(*sys.argv[1:])
    print(sentence, file=sys.stderr)
    print(option)
