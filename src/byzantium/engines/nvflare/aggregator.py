"""An aggregator for FLARE that aggregates the changes of sites by any rule or pipeline."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from byzantium.core import ByzantiumError, Measure, validated
from byzantium.engines.federation.aggregation import Aggregation, WeightsOfNodes
from byzantium.engines.federation.record import Record
from byzantium.engines.federation.replies import (
    UnusableReply,
    any_error_is_unusable,
    median_metrics,
    printable,
)
from byzantium.engines.federation.root import RootFunction
from byzantium.engines.federation.rounds import Round
from byzantium.engines.federation.vectors import Arrays
from byzantium.engines.files.cache import ChangeCache
from byzantium.engines.nvflare.params import base_of, changed_params, converted, model_of, row_of
from byzantium.engines.nvflare.tasks import assignment, go_on_without_failed_sites
from byzantium.rules import Aggregator, Trust
from byzantium.runs import Federation, job


@dataclass
class _Result:
    """What a site sent: a row, whether it is a whole model or a change, and its metrics."""

    kind: ParamsType
    row: Arrays
    metrics: dict[str, float]


@dataclass
class _OpenRound:
    """A round whose results arrive.

    - `task`: the task of the controller.
    - `number`: the number of the round, from 1; FLARE counts from 0.
    - `params`, `model`: the model that sites were sent, as FLARE has it and as arrays.
    """

    task: Any
    number: int
    params: Any
    model: Arrays
    sampled: tuple[str, ...]
    connected: int
    results: dict[str, _Result] = field(default_factory=dict)
    rejected: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ignored: int = 0


class RobustAggregator(ModelAggregator):  # type: ignore[misc]
    """An aggregator for FLARE that aggregates by a robust rule, and tolerates what sites send.

    The rule aggregates the changes that sites made to the model. A result that is malformed or not
    finite is rejected, and counts as one of the f Byzantine ones; a site that sends nothing, or an
    error, is absent, and f does not change. The model is left unchanged in a round in which more
    than f results are rejected, the others have no honest majority, or the rule is not defined for
    so few. Nothing that a site claims about itself changes its weight: neither its number of steps
    nor its name, which is that of the site to which the server gave the task.

    `rounds` has a record of each round, from number 1, and `trust` one of each site. All arguments
    are numbers, texts and dicts, so that they can be written into the configuration of a job; an
    object that is given as `root` is written there with its class and its own arguments.

    - `rule`: the rule, with mixings before it if wanted, or its text, in which f may be omitted.
    - `f`: how many of the sampled sites may be Byzantine: an integer, or a fraction below one half,
      which is rounded up (with a root below one).
    - `weights`: a weight for each site, by its name, that the operator of the federation vouches
      for; or a function of the name. The result of a site without weight is not used. By default
      all sites have the same weight. The rule must be one that takes weights.
    - `root`: a function for rules that need a root update, such as `RootMatching`. It gets the
      global model, a dict of NumPy arrays by name, and returns the model after training on data
      that the server trusts.
    - `patience`: after so many rounds in a row that leave the model unchanged: `Standstill`, which
      ends the job.
    - `timeout`: after how many seconds a round ends without the sites that have not replied; by
      default when the controller says, and `FedAvg` waits for a connected site for ever.
    - `folder`: the folder of results, as for other runs; a relative one is in the folder of the
      job on the server. `byzantium report FOLDER` shows it.
    - `federation`: the name of the federation in that folder; by default the id of the job.
    - `track`: the names of experiment trackers that follow the federation: "mlflow", "wandb" or
      "tensorboard"; they need a folder of results.
    - `cache`: a folder for the last change of each site; a relative one is in the folder of the job
      on the server. If it is given, the rule aggregates those of all sites, and f counts among all
      of them, so that attackers cannot capture a round in which few sites are sampled.
    - `cache_age`: how many rounds old such a change may be; by default any number.

    >>> RobustAggregator("Bucketing(s=2) >> Krum()", f=1).applied_rule
    Bucketing(s=2) >> Krum(f=1)
    """

    def __init__(
        self,
        rule: Aggregator | str,
        *,
        f: int | float,
        weights: WeightsOfNodes | None = None,
        root: RootFunction | None = None,
        patience: int = 3,
        timeout: float = 0,
        folder: str | None = None,
        federation: str = "",
        track: str | Sequence[str] | None = None,
        cache: str | None = None,
        cache_age: int | None = None,
    ) -> None:
        super().__init__()
        FLComponent.__init__(self)  # ModelAggregator does not call it
        # FLARE writes a job by the attributes that are called like parameters.
        self.rule = rule if isinstance(rule, str) else repr(rule)
        self.f, self.weights, self.root, self.patience = f, weights, root, patience
        self.timeout: float = validated("RobustAggregator", "timeout", timeout, Measure)
        self.folder = None if folder is None else str(folder)
        self.federation = federation
        self.track = track if track is None or isinstance(track, str) else list(track)
        if track and folder is None:
            raise ByzantiumError("RobustAggregator needs a folder of results to track it: folder=")
        self.cache, self.cache_age = None if cache is None else str(cache), cache_age
        if cache is None and cache_age is not None:
            raise ByzantiumError("RobustAggregator needs a cache for cache_age: cache=, a folder")
        self._cache = None if cache is None else ChangeCache(cache, cache_age)
        shared = root, weights, patience, self.logger
        self._aggregation = Aggregation(
            "RobustAggregator", self.rule, f, *shared, cache=self._cache
        )
        self.rounds: list[Round[str]] = self._aggregation.rounds
        self._lock = threading.Lock()
        self._open: _OpenRound | None = None
        self._record: Record | None = None
        self._has_folders = False
        self._closing = ExitStack()
        self._failure = ""
        self._error: ByzantiumError | None = None

    @property
    def applied_rule(self) -> Aggregator | None:
        """The rule of the last round; before the first, the one that is given, if f is a number."""
        return self._aggregation.rule

    @property
    def trust(self) -> Trust:
        """The record of each site."""
        return self._aggregation.trust

    # -- what happens in FLARE ---------------------------------------------------------------------

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Follow what the server does: it gives tasks to sites, gets results, and ends."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.BEFORE_TASK_DATA_FILTER:
            self._task_given(fl_ctx)
        elif event_type in (
            AppEventType.AFTER_CONTRIBUTION_ACCEPT,
            EventType.AFTER_PROCESS_SUBMISSION,
        ):
            self._result_processed(fl_ctx)
        elif event_type == EventType.FATAL_SYSTEM_ERROR:
            self._failure = str(fl_ctx.get_prop(FLContextKey.EVENT_DATA) or "a fatal error")
        elif event_type == EventType.END_RUN:
            self._close()

    def _task_given(self, fl_ctx: FLContext) -> None:
        assigned = assignment(fl_ctx, self)
        if assigned is None:
            return
        with self._lock:
            if self._open is not None and self._open.task is assigned.task:
                return
            go_on_without_failed_sites(assigned.controller)
            data = assigned.task.data
            params = FLModelUtils.from_shareable(data).params
            try:
                model = model_of(params)
            except ByzantiumError as error:  # FLARE would only log it, once for each site
                self._error = error
                return
            self._open = _OpenRound(
                assigned.task,
                int(data.get_header(AppConstants.CURRENT_ROUND, len(self.rounds))) + 1,
                params,
                model,
                sampled := tuple(self._aggregation.weights.with_weight(assigned.task.targets)),
                max(len(fl_ctx.get_engine().get_clients()), len(sampled)),  # one may have left
            )
            if self.timeout and not assigned.task.timeout:
                assigned.task.timeout = self.timeout

    def _result_processed(self, fl_ctx: FLContext) -> None:
        """Note a result that FLARE did not pass on: an error, or what it could not convert."""
        assigned, result = assignment(fl_ctx, self), fl_ctx.get_prop(FLContextKey.TASK_RESULT)
        if assigned is None or assigned.result_is_not_from_the_site:
            return
        with self._lock:
            at, site = self._open, assigned.site
            if at is None or at.task is not assigned.task or site not in at.sampled:
                return
            if site in at.results or site in at.rejected:
                return
            code = result.get_return_code() if isinstance(result, Shareable) else None
            if code and code != ReturnCode.OK:
                at.failed.setdefault(site, f"error: {printable(code)}")
            else:
                at.rejected[site] = "holds no model that FLARE can read"

    def accept_model(self, model: FLModel) -> None:
        """Take the result of a site; the controller has written the name of the site into it."""
        site = (model.meta or {}).get("client_name")
        with self._lock:
            self._receive(site, model)

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Take a result from a controller such as ScatterAndGather.

        The site is the one to which the server gave the task. What the result says about its
        sender, and the peer that `fl_ctx` has, are what the site wrote.
        """
        self.fl_ctx = fl_ctx
        assigned = assignment(fl_ctx, self)
        with self._lock:
            if self._open is None:
                return False
            if assigned is None or self._open.task is not assigned.task:
                self._open.ignored += 1  # of an earlier round, or no answer to any task
                return False
            try:
                with any_error_is_unusable():
                    model = FLModelUtils.from_shareable(shareable)
            except UnusableReply as error:
                self._open.rejected.setdefault(assigned.site, str(error))
                return False
            return self._receive(assigned.site, model)

    def _receive(self, site: Any, model: FLModel) -> bool:
        at = self._open
        if at is None:
            return False
        if site not in at.sampled:
            at.ignored += 1
            return False
        if site in at.results or site in at.rejected:
            at.results.pop(site, None)
            at.rejected.setdefault(site, "sent two results")
            return False
        try:
            row = row_of(model.params, at.model)
        except UnusableReply as error:
            at.rejected[site] = str(error)
            return False
        at.results[site] = _Result(ParamsType(model.params_type), row, _metrics(model.metrics))
        return True

    def reset_stats(self) -> None:
        """Forget the results of a round that was not aggregated."""
        with self._lock:
            self._open = None

    # -- aggregation -------------------------------------------------------------------------------

    def aggregate_model(self) -> FLModel:
        """The aggregate of the results; the model itself if it must not change."""
        with self._lock:
            now, self._open = self._open, None
        if self._error is not None:
            raise self._error
        if now is None:
            raise ByzantiumError(
                "RobustAggregator has seen no task of this round; its controller must send tasks "
                "to sites and have the aggregator as an argument or a component"
            )
        if not self._has_folders:
            self._open_folders(now.number)
        kind = _most_frequent(result.kind for result in now.results.values()) or ParamsType.FULL
        kind = ParamsType.FULL if self.root is not None else kind
        rows = self._rows(now, kind)
        names = next(iter(rows.values())).keys() if rows else now.model.keys()
        base = base_of(kind, {key: now.model[key] for key in names})

        self._aggregation.begin(now.number, now.sampled, now.connected, base)
        at = self.rounds[-1]
        at.rejected, at.ignored = now.rejected, now.ignored
        at.absent = {
            site: now.failed.get(site, "no result")
            for site in now.sampled
            if site not in now.results and site not in now.rejected
        }
        report = self._aggregation.explain(at, base, rows)
        arrays = base if report is None else report.aggregate
        metrics = median_metrics([now.results[site].metrics for site in at.fresh])
        self._aggregation.end(at, f"round {at.number}")
        if self._record is not None:
            # Metrics are of the model that sites were sent: that of the round before.
            self._record.add_evaluation(metrics)
            self._record.flush()
            self._record.add(at)
            self._record.save(at.number, {}, self._aggregation.state_dict())
        if self._cache is not None:
            self._cache.commit()
        self._aggregation.count(at)
        if kind == ParamsType.FULL:
            arrays = {**now.model, **arrays}
        params = changed_params(now.params, arrays)
        return FLModel(kind, params, metrics=metrics or None, current_round=now.number - 1)

    def _rows(self, now: _OpenRound, kind: ParamsType) -> dict[str, Arrays]:
        """The rows of all sites as one type of parameters, with the names that most have."""
        rows = {
            site: converted(result.row, result.kind, kind, now.model)
            for site, result in now.results.items()
        }
        names = _most_frequent(frozenset(row) for row in rows.values())
        for site in list(rows):
            if names is not None and (missing := names.symmetric_difference(rows[site])):
                name, lacks = min(missing, key=str), missing & names
                verb = "lacks" if name in lacks else "has"
                now.rejected[site] = f"{verb} the entry {printable(name)!r}, unlike most"
                del rows[site]
        return rows

    # -- the folder --------------------------------------------------------------------------------

    def _open_folders(self, number: int) -> None:
        """Open the cache and the folder of results, where there are any, before the first round."""
        self._has_folders = True
        job_id = str(self.fl_ctx.get_job_id())
        run = Path(self.fl_ctx.get_engine().get_workspace().get_run_dir(job_id))
        if self._cache is not None:
            self._cache.folder = run / self._cache.folder
            self._closing.enter_context(self._cache.open())
        if self.folder is None:
            return
        folder, name = run / self.folder, self.federation or job_id
        cached = self._cache is not None
        federation = Federation(
            name=name, engine="nvflare", rule=self.rule, f=str(self.f), cache=cached
        )
        record = Record(folder, federation, self.track or ())
        if (record.folder / job.SUMMARY).exists():
            raise ByzantiumError(
                f"{folder} holds a finished federation {name!r} with this rule and f; give "
                "RobustAggregator another folder, or another name as federation="
            )
        self._closing.enter_context(record.open())
        state = record.resume(before=number)
        if state is not None:
            self._aggregation.load_state_dict(state)
            self.logger.info("going on after round %d", state["round"])
        self._record = record

    def _close(self) -> None:
        """Write the summary into the folder, or why the job failed."""
        for sentence in self.trust.sentences():
            self.logger.info("site %s", sentence)
        if self._failure:
            error = ByzantiumError(self._failure)
            with suppress(ByzantiumError):
                self._closing.__exit__(ByzantiumError, error, error.__traceback__)
        self._closing.close()


def _most_frequent(values: Any) -> Any:
    """The most frequent of some values, of several the first; None if there are none."""
    counts = Counter(values).most_common(1)
    return counts[0][0] if counts else None


def _metrics(metrics: Any) -> dict[str, float]:
    """The metrics of a result that are numbers."""
    if not isinstance(metrics, Mapping):
        return {}
    numbers = {}
    for name, value in metrics.items():
        if isinstance(name, str) and isinstance(value, int | float | np.number):
            with suppress(TypeError, OverflowError):  # complex numbers, and huge integers
                numbers[name] = float(value)
    return numbers
