"""Run a command with ranks, and send a signal to one: python faults.py FOLDER [SIGNAL] -- COMMAND.

It comes from the operating system, once rank 2 has a second checkpoint: all have their first then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def process_of(rank: int) -> int | None:
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RANK={rank}".encode() in variables:
                return int(process.name)
    return None


def main(folder: Path, signals: list[int], command: list[str]) -> int:
    running = subprocess.Popen(command)
    for signal in signals:
        while running.poll() is None and len(list(folder.glob("rank-2/checkpoint-*.pt"))) < 2:
            time.sleep(0.02)
        found = process_of(2)
        assert found is not None
        os.kill(found, signal)
    return running.wait()


if __name__ == "__main__":
    cut = sys.argv.index("--")
    sys.exit(main(Path(sys.argv[1]), list(map(int, sys.argv[2:cut])), sys.argv[cut + 1 :]))
