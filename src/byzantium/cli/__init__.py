"""The command line: parses, calls, prints."""

from byzantium.cli import data, paper, train
from byzantium.cli.main import main

__all__ = ["data", "main", "paper", "train"]
