"""FLARE's own server of a job in one process: its runner and controllers are real, sites functions.

What a site sends goes through FLARE's encoder and decoder, as between hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.abstract.learnable_persistor import LearnablePersistor
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.decomposers import common_decomposers
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import (
    FullModelShareableGenerator,
)
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.fuel.utils import fobs
from nvflare.private.fed.server.server_runner import ServerRunner, ServerRunnerConfig

from byzantium.engines.nvflare import RobustAggregator

flare_decomposers.register()
common_decomposers.register()

JOB = "job"
Params = dict[str, Any]
# From the model that a site got, and the number of the round, to what it sends; None is silence.
Site = Callable[[Params, int], FLModel | Shareable | None]


class Persistor(LearnablePersistor):  # type: ignore[misc]
    """The first model, and the last that was saved."""

    def __init__(self, params: Params) -> None:
        super().__init__()
        self.params = params

    def load(self, fl_ctx: FLContext) -> Any:
        return make_model_learnable(self.params, {})

    def save(self, learnable: Any, fl_ctx: FLContext) -> None:
        self.params = learnable["weights"]


class _Workspace:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get_run_dir(self, job_id: str) -> str:
        return str(self.folder / job_id)


class _Workflow:
    def __init__(self, controller: Any) -> None:
        self.id, self.controller = "workflow", controller


class Server(ServerEngineSpec):  # type: ignore[misc]
    """A job on a server, with the sites `site-0`, `site-1`, ...

    - `aggregator`: the aggregator of its controller.
    - `params`: the first model.
    - `sites`: what each site does.
    - `workflow`: the class of the controller.
    """

    def __init__(
        self,
        aggregator: RobustAggregator | None,
        params: Params,
        sites: list[Site],
        folder: Path,
        rounds: int = 1,
        workflow: type = FedAvg,
        **options: Any,
    ) -> None:
        self.sites = {Client(f"site-{k}", f"token-{k}"): site for k, site in enumerate(sites)}
        self.persistor, self.workspace = Persistor(params), _Workspace(folder)
        self.components: dict[str, Any] = {
            "persistor": self.persistor,
            "aggregator": aggregator,
            "shareable_generator": FullModelShareableGenerator(),
        }
        if workflow is FedAvg:
            options = {"num_clients": len(sites), "aggregator": aggregator, **options}
        else:
            options = {"min_clients": len(sites), "persistor_id": "persistor", **options}
        controller = workflow(num_rounds=rounds, task_check_period=0.01, **options)
        controller.set_communicator(WFCommServer(task_check_period=0.01))
        self.handlers = [
            controller,
            controller.communicator,
            *filter(None, self.components.values()),
        ]
        self.panics: list[str] = []
        self.manager = FLContextManager(self, "server", JOB)
        config = ServerRunnerConfig(60, 0.1, [_Workflow(controller)], {}, {}, self.handlers, {})
        self.runner = ServerRunner(config, JOB, self)

    # -- what the runner asks of its engine --------------------------------------------------------

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(str(fl_ctx.get_prop(FLContextKey.EVENT_DATA)))
        for handler in [self.runner, *self.handlers]:
            handler.handle_event(event_type, fl_ctx)

    def new_context(self) -> Any:
        context = self.manager.new_context()
        context.put(FLContextKey.RUNNER, self.runner, private=True, sticky=False)
        return context

    def get_clients(self) -> list[Client]:
        return list(self.sites)

    def get_component(self, component_id: str) -> Any:
        return self.components.get(component_id)

    def get_workspace(self) -> Any:
        return self.workspace

    def _nothing(self, *_: Any, **__: Any) -> Any: ...

    sync_clients_from_main_process = update_job_run_status = add_component = _nothing
    register_aux_message_handler = send_aux_request = multicast_aux_requests = _nothing
    get_widget = persist_components = restore_components = start_client_job = _nothing
    check_client_resources = cancel_client_resources = get_client_name_from_token = _nothing
    validate_targets = _nothing

    # -- the job -----------------------------------------------------------------------------------

    def run(self) -> Params:
        """Run the job; the last model."""
        with self.new_context() as context:
            self.fire_event(EventType.START_RUN, context)
        self.runner.status = "started"
        running = threading.Thread(target=self.runner._execute_run)
        running.start()
        try:
            while running.is_alive():
                for client, site in self.sites.items():
                    self._ask_for_a_task(client, site)
                running.join(0.002)
        finally:
            self.runner.abort_signal.trigger(True)
            running.join()
        with self.new_context() as context:
            self.fire_event(EventType.END_RUN, context)
        return self.persistor.params

    def context_of(self, client: Client, claimed: str | None = None) -> FLContext:
        """The context of a request, with the peer as the site describes itself."""
        context, peer = self.new_context(), FLContext()
        peer.put(ReservedKey.IDENTITY_NAME, claimed or client.name, private=False, sticky=False)
        peer.put(ReservedKey.RUN_NUM, JOB, private=False, sticky=False)
        context.set_peer_context(peer)
        return context

    def _ask_for_a_task(self, client: Client, site: Site) -> None:
        name, task_id, task = self.runner.process_task_request(client, self.context_of(client))
        if not task_id:
            return
        model = FLModelUtils.from_shareable(fobs.loads(fobs.dumps(task)))
        result = site(model.params, model.current_round)
        if result is None:
            return
        self.submit(client, task_id, result, name)

    def submit(
        self, client: Client, task_id: str, result: Any, name: str = "train", claimed: str = ""
    ) -> None:
        if isinstance(result, FLModel):
            result = FLModelUtils.to_shareable(result)
        result = fobs.loads(fobs.dumps(result))
        context = self.context_of(client, claimed)
        self.runner.process_submission(client, name, task_id, result, context)


# -- sites ----------------------------------------------------------------------------------------


def model() -> Params:
    """Arrays of all kinds: of no dimension, of half precision, whole numbers."""
    return {
        "weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
        "half": np.linspace(0, 1, 5, dtype=np.float16),
        "scale": np.array(1.5, dtype=np.float32),
        "batches": np.array(7, dtype=np.int64),
    }


def trained(params: Params, seed: int, size: float = 0.1) -> Params:
    """The model after training: every number rises by about 0.5, and counters by 3."""
    rng = np.random.default_rng(seed)
    return {
        key: np.asarray(
            array + 3
            if array.dtype.kind == "i"
            else array + (0.5 + size * rng.uniform(-1, 1, array.shape)),
            dtype=array.dtype,
        )
        for key, array in params.items()
    }


def honest(seed: int, kind: ParamsType = ParamsType.FULL) -> Site:
    def site(params: Params, number: int) -> FLModel:
        sent = trained(params, seed)
        if kind == ParamsType.DIFF:
            sent = {key: np.asarray(sent[key] - params[key]) for key in sent}
        return FLModel(kind, sent, metrics={"accuracy": 0.9 + seed / 1000})

    return site


def sends(change: Callable[[Params], Any], kind: ParamsType = ParamsType.FULL, **meta: Any) -> Site:
    """A site that sends something else than its model."""

    def site(params: Params, number: int) -> FLModel:
        return FLModel(kind, change(trained(params, 99)), meta=dict(meta))

    return site


def raw(data: Any, kind: str = DataKind.WEIGHTS) -> Site:
    """A site that sends a result that FLARE itself would not make."""

    def site(params: Params, number: int) -> Shareable:
        result = DXO(kind, data={}).to_shareable()
        result["DXO"] = data
        return result

    return site


def failing(params: Params, number: int) -> Shareable:
    """A site whose training fails."""
    return make_reply(ReturnCode.EXECUTION_EXCEPTION)


def silent(params: Params, number: int) -> None:
    """A site that never answers."""


def _filled(value: float) -> Callable[[Params], Params]:
    return lambda sent: {
        key: np.full_like(array, value) if array.dtype.kind == "f" else array
        for key, array in sent.items()
    }


def _weight(change: Callable[[Any], Any]) -> Callable[[Params], Params]:
    return lambda sent: {**sent, "weight": change(sent["weight"])}


REJECTED: dict[str, Site] = {
    "NaN": sends(_filled(np.nan)),
    "inf": sends(_filled(np.inf)),
    "1e30": sends(_weight(lambda a: np.full_like(a, 1e30))),
    "one NaN": sends(_weight(lambda a: np.where(a == a.max(), np.float32(np.nan), a))),
    "transposed": sends(_weight(lambda a: a.T.copy())),
    "broadcastable": sends(_weight(lambda a: a[:1])),
    "of no dimension": sends(_weight(lambda a: np.array(1.0, dtype=np.float32))),
    "empty": sends(_weight(lambda a: a[:0])),
    "huge": sends(_weight(lambda a: np.zeros((3000, 1000), dtype=np.float32))),
    "missing key": sends(lambda sent: {"weight": sent["weight"]}),
    "extra key": sends(lambda sent: {**sent, "more": np.zeros(3)}),
    "renamed key": sends(lambda sent: {f"{key}_": array for key, array in sent.items()}),
    "numbers as keys": sends(lambda sent: dict(enumerate(sent.values()))),
    "int32": sends(_weight(lambda a: a.astype(np.int32))),
    "complex": sends(_weight(lambda a: a.astype(np.complex64))),
    "booleans": sends(_weight(lambda a: a > 0)),
    "texts": sends(_weight(lambda a: np.full((3, 4), "a"))),
    "a text": sends(_weight(lambda a: "1.0")),
    "a list": sends(_weight(lambda a: a.tolist())),
    "a dict": sends(_weight(lambda a: {"shape": (3, 4)})),
    "nothing": sends(_weight(lambda a: None)),
    "counter as float": sends(lambda sent: {**sent, "batches": np.array(1e9)}),
    "beyond float32": sends(_weight(lambda a: np.full(a.shape, 1e300))),
    "no arrays": sends(lambda sent: {}),
    "a list of arrays": raw([np.ones((3, 4), dtype=np.float32)]),
    "an array": raw(np.ones((3, 4), dtype=np.float32)),
    "a number": raw(3.0),
    "a text as a result": raw("weights"),
    "an unknown kind": raw({"weight": np.ones(3)}, "no such kind"),
    "metrics alone": raw({"accuracy": 1.0}, DataKind.METRICS),
    "statistics": raw({"mean": 1.0}, DataKind.STATISTICS),
    "an empty result": lambda params, number: Shareable(),
    "no model": raw({}),
}
ABSENT: dict[str, Site] = {"an error": failing, "silence": silent}
USED: dict[str, Site] = {
    "float64": sends(_weight(lambda a: a.astype(np.float64))),
    "big-endian": sends(_weight(lambda a: a.astype(">f4"))),
    "by columns": sends(_weight(np.asfortranarray)),
    "reordered keys": sends(lambda sent: dict(reversed(sent.items()))),
    "a billion steps": sends(dict, NUM_STEPS_CURRENT_ROUND=10**12),
    "negative steps": sends(dict, NUM_STEPS_CURRENT_ROUND=-5),
    "the name of another": sends(dict, client_name="site-0", site_name="site-0"),
}
