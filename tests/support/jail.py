"""A network of its own for what listens: loopback, and nothing else.

torchrun and gloo may listen on every address of a machine, whatever they are told. What a test
starts in here cannot be reached from elsewhere, and when it ends, whatever it left is ended too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

UNSHARED = ["unshare", "-n", "-p", "-f", "--kill-child", "--mount-proc"]

needs_jail = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"),
    reason="NOT TESTED: processes that listen are only started in a network of their own, which "
    "needs root, unshare and ip",
)


def jailed(
    command: Sequence[str | Path], seconds: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a jail. What outlives it, or another network, is a failure."""
    source = str(ROOT / "src")
    options["env"] = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([source, str(Path(__file__).parent)]),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error,ignore::DeprecationWarning",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **options.get("env", {}),
    }
    wrapped = [*UNSHARED, sys.executable, __file__, *map(str, command)]
    done = subprocess.run(wrapped, capture_output=True, text=True, timeout=seconds, **options)
    assert "JAIL" not in done.stderr, done.stderr
    return done


def witnessed(script: Path, happening: str, folder: Path) -> dict[str, Any]:
    """What a script on Ray has seen in a jail; nothing is left running there."""
    pytest.importorskip("ray", reason="NOT TESTED: Ray is not installed")
    command: list[str | Path] = [sys.executable, script, happening, folder]
    done = jailed(command, seconds=900, env={"PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def _inside(command: list[str]) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    interfaces = {line.partition(":")[0].strip() for line in lines}
    if interfaces != {"lo"}:
        print(f"JAIL: there are other networks: {interfaces}", file=sys.stderr)
        return 99
    code = subprocess.run(command).returncode
    deadline = time.monotonic() + 20  # ending takes time, such as that of a script which sleeps
    while (names := _others()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if names:
        print(f"JAIL: these were left running: {names}", file=sys.stderr)
    return code


def _others() -> dict[str, str]:
    """The processes in the jail beside this one."""
    left = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
    names = {path.name: _command(path) for path in left if int(path.name) != os.getpid()}
    return {pid: name for pid, name in names.items() if name}


def _command(process: Path) -> str:
    """What a process runs; empty for one that has ended and was not asked for."""
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(_inside(sys.argv[1:]))
