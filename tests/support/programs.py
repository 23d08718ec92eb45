"""The program, started as a user does."""

from __future__ import annotations

import sys


def program(*arguments: str, hangup: str = "SIG_DFL") -> list[str]:
    """The program; `hangup` is what SIGHUP does, also where the tests were started with nohup."""
    code = (
        f"import signal; signal.signal(signal.SIGHUP, signal.{hangup}); "
        "from byzantium.cli import main; main()"
    )
    return [sys.executable, "-c", code, *arguments]
