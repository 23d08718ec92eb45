"""The command line: parses, calls, prints."""

from byzantium.cli import aggregate, check, data, paper, train
from byzantium.cli.main import main

__all__ = ["aggregate", "check", "data", "main", "paper", "train"]
