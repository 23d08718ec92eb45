"""Large files, and how much memory a process takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GIGA = 1 << 30


def sparse(path: Path, size: int, start: bytes = b"") -> Path:
    """A file of this size that takes no space on the disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


PEAK = """
import gc, sys
from pathlib import Path

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

def peak(work):
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    try:
        work()
    except Exception as error:
        print(type(error).__name__, error)
    return (resident("VmHWM") - before) >> 20

"""


LINUX = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")


def megabytes(code: str, *arguments: object) -> tuple[int, str]:
    """The most memory that some code takes in a process of its own, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK + code, *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *said, number = done.stdout.strip().split("\n")
    return int(number), "\n".join([*said, done.stderr])
