"""The command line: parses, calls, prints."""

from byzantium.cli import aggregate, certify, check, data, pack, paper, train
from byzantium.cli.main import main

__all__ = ["aggregate", "certify", "check", "data", "main", "pack", "paper", "train"]
