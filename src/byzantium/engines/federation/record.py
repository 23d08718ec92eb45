"""The folder of a federation, like that of any run, with a checkpoint of each round."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from byzantium.core import files, folder_lock
from byzantium.engines.federation.rounds import Round
from byzantium.engines.federation.vectors import Arrays
from byzantium.learning import checkpoint
from byzantium.runs import Federation, job, records

if TYPE_CHECKING:
    from byzantium.engines.tracking import Tracking

# Files in addition to those of every job: the ids of the nodes, and the record of each round.
NODES, ROUNDS = "nodes.json", "rounds.jsonl"
# The accuracy of a run is the mean of its last evaluations.
LAST = 5


class Record:
    """The folder of a federation; the workers of its metrics are the nodes, in order of arrival.

    - `root`: the folder of results.
    - `federation`: what the server was configured with.
    - `track`: the names of experiment trackers that follow it.
    """

    def __init__(self, root: Path | str, federation: Federation, track: Sequence[str] = ()) -> None:
        self.federation = federation
        self.folder = Path(root) / federation.identity
        self.track = (track,) if isinstance(track, str) else tuple(track)
        self.tracking: Tracking | None = None
        self.nodes: list[Any] = []
        self.lines: list[dict[str, Any]] = []
        self.details: list[dict[str, Any]] = []
        self.written = 0

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder, and write a summary at the end, or the reason of a failure."""
        start = time.monotonic()
        with self._followed(), folder_lock(self.folder):
            (self.folder / job.FAILURE).unlink(missing_ok=True)
            files.write(self.folder / job.CONFIGURATION, self.federation.toml())
            try:
                yield
            except Exception as error:
                self.flush()
                reason = records.describe_failure(error)
                job.write_failure(self.folder, reason)
                if self.tracking is not None:
                    self.tracking.finish(self.federation, "failed", reason)
                raise
            self.flush()
            self._finish(time.monotonic() - start)
            if self.tracking is not None:
                self.tracking.finish(self.federation)

    @contextmanager
    def _followed(self) -> Iterator[None]:
        """Trackers follow the federation meanwhile, if there are any."""
        if not self.track:
            yield
            return
        from byzantium.engines.tracking import Tracking

        with Tracking(self.track, self.folder.parent) as self.tracking:
            yield
        self.tracking = None

    def _finish(self, seconds: float) -> None:
        last = [line["accuracy"] for line in self.lines if "accuracy" in line][-LAST:]
        summary = {
            "status": "completed",
            "rounds": len(self.lines),
            **({"accuracy": sum(last) / len(last)} if last else {}),
            "seconds": round(seconds, 1),
            **job.environment(),
        }
        files.write(self.folder / job.SUMMARY, json.dumps(summary, indent=1) + "\n")

    def add(self, at: Round[Any]) -> None:
        """Add a round of training; `add_evaluation` adds to its line."""
        new = [node for node in at.sampled if node not in set(self.nodes)]
        if new:
            self.nodes += new
            for line in self.lines:
                line["weights"] += [0.0] * len(new)
            self.written = 0  # the weights of all lines are longer now
        index = {node: k for k, node in enumerate(self.nodes)}
        weights = [0.0] * len(self.nodes)
        for node, weight in at.weights.items():
            weights[index[node]] = round(weight, 6) if math.isfinite(weight) else 0.0
        self.lines.append(
            {
                "round": at.number,
                **{name: len(getattr(at, name)) for name in ("sampled", "used", "absent")},
                "kept": int(bool(at.kept)),
                "f": at.f,
                **({"cached": len(at.cached)} if at.cached else {}),
                "weights": weights,
                "rejected": {str(index[node]): 1 for node in at.rejected},
                **at.measurements(),
            }
        )
        self.details.append({**dataclasses.asdict(at), **at.measurements()})

    def add_evaluation(self, metrics: Mapping[str, Any] | None) -> None:
        """Add metrics of the model after the last round; accuracies become percent."""
        if metrics is None or not self.lines:
            return
        for name in ("accuracy", "loss"):
            value = metrics.get(name)
            if isinstance(value, int | float) and math.isfinite(value):
                share = name == "accuracy" and 0 <= value <= 1
                self.lines[-1][name] = 100.0 * value if share else float(value)

    def flush(self) -> None:
        """Write new lines to the disk."""
        if self.written == 0:
            files.write(self.folder / NODES, json.dumps([str(node) for node in self.nodes]) + "\n")
            files.write(self.folder / job.METRICS, _text(self.lines))
            files.write(self.folder / ROUNDS, _text(self.details))
        elif self.written < len(self.lines):
            files.append(self.folder / job.METRICS, _text(self.lines[self.written :]))
            files.append(self.folder / ROUNDS, _text(self.details[self.written :]))
        self.written = len(self.lines)
        if self.tracking is not None:
            self.tracking.update(self.federation)

    def save(self, number: int, model: Arrays, state: Mapping[str, Any]) -> None:
        """Save the model after a round, and the state that is needed to continue."""
        texts = {"lines": self.lines, "details": self.details, "nodes": self.nodes}
        checkpoint.save(
            self.folder,
            number,
            {
                "federation": self.federation.identity,
                "round": number,
                "model": {key: torch.from_numpy(np.array(a)) for key, a in model.items()},
                **{name: json.dumps(value) for name, value in texts.items()},
                **state,
            },
        )

    def resume(self, before: int | None = None) -> dict[str, Any] | None:
        """Load the newest complete checkpoint; None if there is none.

        - `before`: the number of the round that comes next; a checkpoint of another round than the
          one before it is not loaded. None: the round after the checkpoint comes next.
        """
        state = checkpoint.newest(self.folder, self._check)
        if state is None or before not in (None, state["round"] + 1):
            return None
        self.lines, self.details = json.loads(state["lines"]), json.loads(state["details"])
        self.nodes, self.written = json.loads(state["nodes"]), 0
        return {**state, "model": {key: t.numpy() for key, t in state["model"].items()}}

    def _check(self, state: dict[str, Any]) -> None:
        """Raise an error unless it is a state of this federation."""
        texts = ("federation", "lines", "details", "nodes")
        if not isinstance(state.get("round"), int) or not all(
            isinstance(state.get(name), str) for name in texts
        ):
            raise checkpoint.CheckpointError("it is not of a federation")
        if state["federation"] != self.federation.identity:
            raise checkpoint.OtherSimulationError("it is of another federation")
        model = state.get("model")
        if not isinstance(model, dict) or not all(
            isinstance(tensor, torch.Tensor) for tensor in model.values()
        ):
            raise checkpoint.CheckpointError("it has no model")


def _text(lines: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)
