"""What a time was measured on: never the name of a machine, nor a path."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """What the processor calls itself; its architecture, where the system does not tell."""
    name = platform.machine()
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or name
    found = re.search(r"^model name\s*:\s*(.+)$", told, re.MULTILINE)
    return " ".join(found[1].split()) if found else name
