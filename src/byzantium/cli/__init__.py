"""The command line: one file for each command, which parses, calls and prints."""

from byzantium.cli import (
    aggregate,
    benchmark,
    certify,
    check,
    data,
    demo,
    list,  # noqa: A004
    pack,
    plan,
    recommend,
    report,
    reproduce,
    run,
    sweep,
    track,
    watch,
)
from byzantium.cli.main import main

__all__ = [
    "aggregate",
    "benchmark",
    "certify",
    "check",
    "data",
    "demo",
    "list",
    "main",
    "pack",
    "plan",
    "recommend",
    "report",
    "reproduce",
    "run",
    "sweep",
    "track",
    "watch",
]
