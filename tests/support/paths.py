"""Folders of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

#: The tests' helpers and their data.
SUPPORT = Path(__file__).parent
#: The top of the repository.
ROOT = SUPPORT.parents[1]
