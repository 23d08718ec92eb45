"""MLflow, through its client: a run for each job, found again by a tag with its identity."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from byzantium.core import ByzantiumError, import_optional
from byzantium.engines.tracking.tracker import Before, Tracked, Tracker, setting

IDENTITY, ROUND, STATUS = "byzantium.identity", "byzantium.round", "byzantium.status"
PARENT = "mlflow.parentRunId"
# How often MLflow repeats a request that fails; by its own default a training would wait minutes.
RETRIES = "3"
# Otherwise MLflow prints where a run is whenever one ends.
QUIET = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
STATUSES = {"failed": "FAILED", "stopped": "KILLED"}


class MLflow(Tracker):
    """The runs of an experiment on the server, or in the store, that MLflow is configured for.

    `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say which; without them it is MLflow's
    default store, and the experiment "byzantium".
    """

    title = "MLflow"

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", RETRIES)
        os.environ.setdefault(QUIET, "true")
        library = import_optional("mlflow", "mlflow", "tracking with MLflow")
        self.entities = import_optional("mlflow.entities", "mlflow", "tracking with MLflow")
        self.client = library.MlflowClient()
        self.runs: dict[str, str] = {}
        name = setting("MLFLOW_EXPERIMENT_NAME")
        experiment = self.client.get_experiment_by_name(name)
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            raise ByzantiumError(
                f"the experiment {name!r} of MLflow is deleted; restore it, or name another one in "
                "MLFLOW_EXPERIMENT_NAME"
            )
        self.experiment = str(
            self.client.create_experiment(name) if experiment is None else experiment.experiment_id
        )

    def _find(self, identity: str) -> Any:
        wanted = f"tags.`{IDENTITY}` = '{identity}'"
        found = self.client.search_runs([self.experiment], wanted, max_results=1)
        return found[0] if found else None

    def begin(self, tracked: Tracked) -> Before:
        run = self._find(tracked.identity)
        if run is not None:
            self.runs[tracked.identity] = run.info.run_id
            before = Before(int(run.data.tags.get(ROUND, 0)), run.info.status == "FINISHED")
            if not before.ended:
                self.client.update_run(run.info.run_id, status="RUNNING")
            return before
        tags = {IDENTITY: tracked.identity, "mlflow.source.name": "byzantium"}
        parent = self._find(tracked.group) if tracked.group else None
        if parent is not None:
            tags[PARENT] = parent.info.run_id
        run = self.client.create_run(self.experiment, tags=tags, run_name=tracked.name)
        self.runs[tracked.identity] = run.info.run_id
        params = [self.entities.Param(key, str(v)) for key, v in tracked.parameters.items()]
        self.client.log_batch(run.info.run_id, params=params)
        return Before()

    def log(self, tracked: Tracked, number: int, numbers: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self.entities.Metric(k, value, now, number) for k, value in numbers.items()]
        tags = [self.entities.RunTag(ROUND, str(number))]
        self.client.log_batch(self.runs[tracked.identity], metrics=metrics, tags=tags)

    def end(
        self, tracked: Tracked, status: str, summary: Mapping[str, Any], artifacts: Sequence[Path]
    ) -> None:
        run, now = self.runs.pop(tracked.identity), int(1000 * time.time())
        numbers = {k: v for k, v in summary.items() if isinstance(v, int | float)}
        texts = {k: v for k, v in summary.items() if isinstance(v, str)}
        self.client.log_batch(
            run,
            metrics=[self.entities.Metric(f"summary/{k}", v, now, 0) for k, v in numbers.items()],
            tags=[
                self.entities.RunTag(STATUS, status),
                *(self.entities.RunTag(f"byzantium.{k}", text) for k, text in texts.items()),
            ],
        )
        for path in artifacts:
            self.client.log_artifact(run, str(path))
        self.client.set_terminated(run, STATUSES.get(status, "FINISHED"))
