"""Weights & Biases, through its own library: the id of a run is the identity of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byzantium.core import files, import_optional
from byzantium.engines.tracking.tracker import Before, Tracked, Tracker, setting

# What a server would know of a run, for the offline mode.
STATE, MOST_STATE = "byzantium-{}.json", 1000
EXIT_CODES = {"failed": 1, "stopped": 130}


class WandB(Tracker):
    """The runs of a project, online or, with `WANDB_MODE=offline`, in the folder `wandb`.

    `WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_DIR` and so on say where; without them it is the project
    "byzantium". Neither code nor what is printed is sent.
    """

    title = "Weights & Biases"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.library = import_optional("wandb", "wandb", "tracking with Weights & Biases")
        self.runs: dict[str, Any] = {}
        self.folder = Path(setting("WANDB_DIR", ".")) / "wandb"

    def begin(self, tracked: Tracked) -> Before:
        state = self._state(tracked)
        if state.ended:
            return state
        run = self.runs[tracked.identity] = self.library.init(
            project=setting("WANDB_PROJECT"),
            id=tracked.identity,
            name=tracked.name,
            group=tracked.group or None,
            config=dict(tracked.parameters),
            resume="allow",
            reinit="create_new",
            settings=self.library.Settings(
                console="off", silent=True, disable_code=True, disable_git=True, save_code=False
            ),
        )
        # A server knows what it has; offline only our own file does.
        return Before(run.starting_step - 1 if run.resumed else state.round)

    def log(self, tracked: Tracked, number: int, numbers: Mapping[str, float]) -> None:
        self.runs[tracked.identity].log(dict(numbers), step=number)
        self._write_state(tracked, Before(number))

    def end(
        self, tracked: Tracked, status: str, summary: Mapping[str, Any], artifacts: Sequence[Path]
    ) -> None:
        run = self.runs.pop(tracked.identity)
        run.summary.update({"status": status, **{f"summary/{k}": v for k, v in summary.items()}})
        if artifacts:
            results = self.library.Artifact(f"results-{tracked.identity}", type="results")
            for path in artifacts:
                results.add_file(str(path))
            run.log_artifact(results)
        run.finish(exit_code=EXIT_CODES.get(status, 0))
        if status not in EXIT_CODES:
            self._write_state(tracked, Before(self._state(tracked).round, ended=True))

    def close(self) -> None:
        for run in self.runs.values():
            run.finish(exit_code=EXIT_CODES["stopped"])

    def _path(self, tracked: Tracked) -> Path:
        return self.folder / STATE.format(tracked.identity)

    def _state(self, tracked: Tracked) -> Before:
        try:
            state = json.loads(files.read(self._path(tracked), MOST_STATE))
            return Before(int(state["round"]), bool(state["ended"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Before()

    def _write_state(self, tracked: Tracked, state: Before) -> None:
        files.write(self._path(tracked), json.dumps(state._asdict()) + "\n")
