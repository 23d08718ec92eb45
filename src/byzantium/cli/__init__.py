"""The command line: parses, calls, prints."""

from byzantium.cli import aggregate, certify, data, paper, train
from byzantium.cli.main import main

__all__ = ["aggregate", "certify", "data", "main", "paper", "train"]
