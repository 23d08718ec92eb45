"""TensorBoard: event files in a folder for each job, beside the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byzantium.core import import_optional
from byzantium.engines.tracking.tracker import Before, Tracked, Tracker

#: The folder in the folder of results.
FOLDER = "tensorboard"
STATUS = "status"


class TensorBoard(Tracker):
    """Event files in `tensorboard/IDENTITY` of the folder of results.

    TensorBoard has no artifacts: the files of a job are in the folder of results.
    """

    title = "TensorBoard"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        purpose = "tracking with TensorBoard"
        accumulator = "tensorboard.backend.event_processing.event_accumulator"
        self.accumulator = import_optional(accumulator, "tensorboard", purpose)
        self.library = import_optional("torch.utils.tensorboard", "tensorboard", purpose)
        self.summaries = import_optional("torch.utils.tensorboard.summary", "tensorboard", purpose)
        self.writers: dict[str, Any] = {}

    def begin(self, tracked: Tracked) -> Before:
        folder = self.root / FOLDER / tracked.identity
        before = self._read(folder) if folder.is_dir() else Before()
        if before.ended:
            return before
        writer = self.writers[tracked.identity] = self.library.SummaryWriter(str(folder))
        if not before.round:
            writer.add_text("configuration", _table(tracked.name, tracked.parameters))
            self._add_parameters(writer, tracked)
            writer.flush()
        return before

    def _read(self, folder: Path) -> Before:
        """What the event files in a folder hold."""
        events = self.accumulator.EventAccumulator(str(folder), {"scalars": 1, "tensors": 1})
        events.Reload()
        tags = events.Tags()
        last = [events.Scalars(tag)[-1].step for tag in tags["scalars"]]
        return Before(max(last, default=0), f"{STATUS}/text_summary" in tags["tensors"])

    def _add_parameters(self, writer: Any, tracked: Tracked) -> None:
        """What the dashboard HPARAMS compares runs by."""
        values = {
            key: value if isinstance(value, bool | int | float) else str(value)
            for key, value in tracked.parameters.items()
        }
        experiment, start, _ = self.summaries.hparams(values, {"accuracy": 0.0, "loss": 0.0})
        for summary in (experiment, start):
            writer.file_writer.add_summary(summary)

    def log(self, tracked: Tracked, number: int, numbers: Mapping[str, float]) -> None:
        writer = self.writers[tracked.identity]
        for name, value in numbers.items():
            writer.add_scalar(name, value, number)
        writer.flush()

    def end(
        self, tracked: Tracked, status: str, summary: Mapping[str, Any], artifacts: Sequence[Path]
    ) -> None:
        writer = self.writers.pop(tracked.identity)
        if status != "stopped":
            writer.add_text(STATUS if status != "failed" else "failure", _table(status, summary))
        writer.close()

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def _table(title: str, values: Mapping[str, Any]) -> str:
    lines = [f"| {key} | {value} |" for key, value in values.items()]
    return "\n".join([f"**{title}**", "", "| | |", "|-|-|", *lines])
