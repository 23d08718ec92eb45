"""The processor, to say what a time was measured on without naming the machine."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """The name of the processor, such as "AMD EPYC 7763"; its architecture if there is none.

    >>> bool(processor())
    True
    """
    name = platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or name
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(match[1].split()) if match else name
