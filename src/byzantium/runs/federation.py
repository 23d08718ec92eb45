"""A real federation, which an engine carries out: its folder has the form of any other job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from byzantium.core import ByzantiumError, notation, option, with_options
from byzantium.runs import values
from byzantium.runs.job import Job, Stop, Watch
from byzantium.runs.values import Checks


@with_options
@dataclass(frozen=True)
class Federation(Job):
    """A real federation, such as one of Flower, as data: what its server was configured with.

    Its engine carries it out, so that its results are beside those of other jobs. Who took part
    is only known afterwards.

    >>> Federation(name="hospitals", rule="Krum()", f="0.2").workers is None
    True
    """

    display_name, measure = "a federation", "rounds"
    summary_checks: ClassVar[Checks] = {
        **Job.summary_checks,
        "rounds": values.whole,
        "accuracy": values.optional(values.size),
    }

    name: str = option(
        "federation", "What it is called; federations with different names are different jobs."
    )
    engine: str = option("flower", "The engine that carries it out.")
    rule: str = option("Mean()", "The rule, with mixings before it, as the server was given it.")
    f: str = option("0", "How many sampled nodes may be Byzantine, as a number or a fraction.")
    cache: bool = option(
        False, "Whether the last changes of nodes that are not sampled count, too.", later=True
    )

    def check(self) -> None:
        for name in ("name", "engine", "rule", "f"):
            text = getattr(self, name)
            if not text.isprintable() or not 0 < len(text) <= 300:
                raise ByzantiumError(
                    f"a federation needs a {name} of 1 to 300 printable characters"
                )
        # The rule may be the name of a function: it is not parsed.
        from byzantium.rules.notation import members

        written = notation.written_out(self.rule, members())
        object.__setattr__(self, "rule", written)

    @property
    def workers(self) -> None:
        """None: nobody knows beforehand who takes part."""
        return None

    @property
    def metric_checks(self) -> Checks:
        """The checks of its metrics: who took part, what was evaluated, spread and root update."""
        return {
            **dict.fromkeys(("sampled", "used", "cached", "absent", "kept", "f"), values.whole),
            **dict.fromkeys(("accuracy", "loss"), values.measured),
            **dict.fromkeys(("root_norm", "root_distance"), values.size),
            **dict.fromkeys(("heard", "vouched_used"), values.size),
            **dict.fromkeys(("spread_to_mean", "spread_to_mean_limit"), values.size),
            "weights": values.shares,
            "rejected": values.times,
        }

    def work(self, folder: Path, watch: Watch, stop: Stop) -> dict[str, Any] | None:
        raise ByzantiumError(f"a federation is carried out by its engine, {self.engine}")

    def facets(self) -> dict[str, Any]:
        """Its name is that of its data; nobody knows its model, partition, attack and workers."""
        unknown = dict.fromkeys(("model", "partition", "attack", "mixing", "kind"), "")
        numbers = {"momentum": 0.0, "seed": 0, "n": 0, "q": 0}
        return {"data": self.name, "rule": self.rule, "text": self.rule, **unknown, **numbers}
