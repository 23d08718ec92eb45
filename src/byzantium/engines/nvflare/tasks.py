"""Tasks of FLARE's controllers: to which site the server gave one, and which sites have to answer.

A site writes its result, and also the context of the peer that comes with it: its name there is a
claim. FLARE knows the site by the token of its connection, and takes a result only from the site to
which it gave the task. So the task says which site it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext


@dataclass(frozen=True)
class Assignment:
    """A task, and the site to which the server gave it."""

    controller: Any
    client_task: Any

    @property
    def task(self) -> Any:
        return self.client_task.task

    @property
    def site(self) -> str:
        return str(self.client_task.client.name)

    @property
    def result_is_not_from_the_site(self) -> bool:
        """Whether the site has not answered: FLARE drops a result that another one sent."""
        return self.client_task.result is None and self.client_task.result_received_time is None


def assignment(fl_ctx: FLContext, aggregator: Any) -> Assignment | None:
    """The task that an event is about, if it is one of training, whose results we aggregate.

    - `aggregator`: the aggregator that asks; a controller with another one has other tasks.
    """
    runner = fl_ctx.get_prop(FLContextKey.RUNNER)
    task_id = fl_ctx.get_prop(FLContextKey.TASK_ID)
    workflow = getattr(runner, "current_wf", None)
    if workflow is None or not task_id:
        return None
    controller = workflow.controller
    client_task = controller.communicator.process_task_check(task_id, fl_ctx)
    if client_task is None or getattr(controller, "aggregator", aggregator) is not aggregator:
        return None
    names = (getattr(controller, name, None) for name in ("task_name", "train_task_name"))
    if client_task.task.name not in (*filter(None, names), "train"):
        return None
    return Assignment(controller, client_task)


def go_on_without_failed_sites(controller: Any) -> None:
    """Let a controller ignore the error of a site, unless the job says what to do with one.

    By default FLARE's FedAvg ends the job with the first error of any site.
    """
    for name in ("ignore_result_error", "_ignore_result_error"):
        if getattr(controller, name, True) is None:
            setattr(controller, name, True)
