"""A real federation, which an engine carries out: its folder has the form of any other job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byzantium.core import ByzantiumError
from byzantium.runs.job import Job, Stop, Watch, option


@dataclass(frozen=True)
class Federation(Job):
    """What a server was configured with. Who took part is only known afterwards.

    >>> Federation(name="hospitals", rule="Krum()", f="0.2").workers is None
    True
    """

    called, measure = "a federation", "rounds"

    name: str = option("federation", "What it is called; another name is another federation.")
    engine: str = option("flower", "What carries it out.")
    rule: str = option("Mean()", "The rule, as it was given.")
    f: str = option("0", "How many of the nodes sampled may be bad, as a number or a fraction.")

    def check(self) -> None:
        for name in ("name", "engine", "rule", "f"):
            text = getattr(self, name)
            if not text.isprintable() or not 0 < len(text) <= 300:
                raise ByzantiumError(
                    f"a federation needs a {name} of 1 to 300 printable characters"
                )

    @property
    def workers(self) -> None:
        return None

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        raise ByzantiumError(f"a federation is carried out by its engine, {self.engine}")
