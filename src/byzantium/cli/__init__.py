"""The command line: parses, calls, prints."""

from byzantium.cli import aggregate, data, paper, train
from byzantium.cli.main import main

__all__ = ["aggregate", "data", "main", "paper", "train"]
