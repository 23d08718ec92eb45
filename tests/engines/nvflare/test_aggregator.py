"""`RobustAggregator` under FLARE's own controllers, with sites that send whatever they like."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install '.[nvflare]'")

import flare_server
from flare_server import ABSENT, REJECTED, USED, Params, Server, Site, honest, sends, trained
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather
from nvflare.private.fed.server.server_runner import ServerRunner

import byzantium as bz
from byzantium import ByzantiumError
from byzantium.engines.nvflare import RobustAggregator
from byzantium.runs import Federation, Store

N = 5
BAD = f"site-{N - 1}"
WORKFLOWS = [FedAvg, ScatterAndGather]


def server(
    folder: Path,
    bad: Site | None = None,
    aggregator: RobustAggregator | None = None,
    params: Params | None = None,
    **options: Any,
) -> Server:
    """A job with honest sites, and one more at the end."""
    sites = [honest(k) for k in range(N - (bad is not None))] + ([bad] if bad else [])
    aggregator = aggregator or RobustAggregator("GeometricMedian()", f=1, timeout=2)
    return Server(
        aggregator, flare_server.model() if params is None else params, sites, folder, **options
    )


def aggregator_of(job: Server) -> RobustAggregator:
    aggregator = job.components["aggregator"]
    assert isinstance(aggregator, RobustAggregator)
    return aggregator


def assert_moved(before: Params, after: Mapping[str, Any]) -> None:
    """Every number has risen by about 0.5, and counters by 3, as all honest sites say."""
    assert list(after) == list(before)
    for key, array in before.items():
        assert after[key].dtype == array.dtype
        assert after[key].shape == array.shape
        by = np.asarray(after[key], dtype=float) - array
        np.testing.assert_allclose(by, 3 if array.dtype.kind == "i" else 0.5, atol=0.11)


# -- hostile results ------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("name", REJECTED)
def test_an_unusable_result_is_rejected_and_the_others_are_used(
    name: str, workflow: type, tmp_path: Path
) -> None:
    job = server(tmp_path, REJECTED[name], workflow=workflow)
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert list(at.rejected) == [BAD]
    assert not at.absent
    assert at.used == tuple(f"site-{k}" for k in range(N - 1))
    assert_moved(flare_server.model(), after)
    assert not job.panics


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("name", ABSENT)
def test_a_site_that_fails_or_is_silent_is_absent(
    name: str, workflow: type, tmp_path: Path
) -> None:
    job = server(tmp_path, ABSENT[name], workflow=workflow)
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert list(at.absent) == [BAD]
    assert not at.rejected
    assert_moved(flare_server.model(), after)
    assert not job.panics


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("name", USED)
def test_a_usable_result_is_used(name: str, workflow: type, tmp_path: Path) -> None:
    job = server(tmp_path, USED[name], workflow=workflow)
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert at.used == tuple(f"site-{k}" for k in range(N))
    assert_moved(flare_server.model(), after)


@pytest.mark.parametrize("steps", [10**12, -5, float("nan"), "many", None])
def test_no_claim_about_steps_changes_a_bit(steps: Any, tmp_path: Path) -> None:
    plain, lying = (
        server(tmp_path, sends(dict, **meta)).run()
        for meta in ({}, {"NUM_STEPS_CURRENT_ROUND": steps})
    )
    for key in plain:
        np.testing.assert_array_equal(plain[key], lying[key])


def test_an_error_ends_the_job_if_the_job_says_so(tmp_path: Path) -> None:
    job = server(tmp_path, ABSENT["an error"], ignore_result_error=False)
    job.run()
    assert len(job.panics) == 1
    assert "EXECUTION_EXCEPTION" in job.panics[0]


@pytest.mark.parametrize("code", ServerRunner.ABORT_RETURN_CODES)
def test_some_codes_end_the_job_before_an_aggregator_is_asked(code: str, tmp_path: Path) -> None:
    """docs/do/nvflare.md says so; if FLARE changes this, the page must change."""
    job = server(tmp_path, lambda params, number: make_reply(code))
    job.run()
    assert f"fatal return code {code} from client {BAD}" in job.panics[0]


def test_the_error_of_a_site_is_a_reason_in_one_short_line(tmp_path: Path) -> None:
    job = server(tmp_path, lambda params, number: make_reply("boom\n\x1b[31m" * 1000))
    job.run()
    (reason,) = aggregator_of(job).rounds[0].absent.values()
    assert reason.startswith("error: boom ?[31m")
    assert reason.isprintable()
    assert len(reason) < 100


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_site_cannot_speak_for_another(workflow: type, tmp_path: Path) -> None:
    """With the task, the name and the peer context of another one, before that one answers."""
    job = server(tmp_path, workflow=workflow)
    victim, *_, attacker = job.sites
    answer = job.sites[victim]

    def answer_later(params: Params, number: int) -> Any:
        (task,) = job.runner.current_wf.controller.communicator._tasks
        task_id = task.last_client_task_map[victim.name].id
        wrong = {key: np.full_like(array, 9) for key, array in params.items()}
        for result in (FLModel(ParamsType.FULL, wrong), make_reply(ReturnCode.EXECUTION_EXCEPTION)):
            job.submit(attacker, task_id, result, claimed=victim.name)
        return answer(params, number)

    job.sites[victim] = answer_later
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert at.used == tuple(f"site-{k}" for k in range(N))
    assert not at.rejected
    assert_moved(flare_server.model(), after)


def test_the_site_of_a_result_is_the_one_that_was_given_the_task(tmp_path: Path) -> None:
    """ScatterAndGather passes on what a site wrote; its peer context has a name of its choice."""
    job = server(tmp_path, sends(lambda sent: {}), workflow=ScatterAndGather)
    context_of = job.context_of
    job.context_of = lambda client, claimed=None: context_of(client, "site-0")  # type: ignore[method-assign]
    job.run()
    (at,) = aggregator_of(job).rounds
    assert list(at.rejected) == [BAD]
    assert "site-0" in at.used


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_further_results_of_a_site_are_not_used(workflow: type, tmp_path: Path) -> None:
    """A second result for the same task, one for an old task, and one for a task of nobody."""
    job = server(tmp_path, workflow=workflow, rounds=2)
    client, first = list(job.sites)[-1], job.sites[list(job.sites)[-1]]
    wrong = {key: np.full_like(array, 99) for key, array in flare_server.model().items()}
    ids: list[str] = []

    def more(params: Params, number: int) -> FLModel:
        (task,) = job.runner.current_wf.controller.communicator._tasks
        ids.append(task.last_client_task_map[client.name].id)
        result = first(params, number)
        for task_id in [*ids, *ids, "unknown"]:
            if task_id != ids[-1]:
                job.submit(client, task_id, FLModel(ParamsType.FULL, wrong))
        job.submit(client, ids[-1], result)
        job.submit(client, ids[-1], FLModel(ParamsType.FULL, wrong))
        return FLModel(ParamsType.FULL, wrong)

    job.sites[client] = more
    job.run()
    assert len(ids) == 2
    for at in aggregator_of(job).rounds:
        assert at.used == tuple(f"site-{k}" for k in range(N))
        assert not at.rejected
        assert max(at.distances.values()) < 2


# -- types of parameters --------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("rule", ["Mean()", "Krum()", "Median()", "GeometricMedian()"])
def test_changes_are_aggregated_like_whole_models(
    rule: str, workflow: type, tmp_path: Path
) -> None:
    before = {key: array for key, array in flare_server.model().items() if key != "half"}
    results = []
    for kind in (ParamsType.FULL, ParamsType.DIFF):
        aggregator = RobustAggregator(rule, f=0 if rule == "Mean()" else 1)
        sites = [honest(k, kind) for k in range(N)]
        results.append(Server(aggregator, dict(before), sites, tmp_path, workflow=workflow).run())
    whole, changed = results
    assert_moved(before, whole)
    for key in before:
        np.testing.assert_allclose(whole[key], changed[key], rtol=3e-7)


@pytest.mark.parametrize("kind", list(ParamsType))
def test_a_site_may_send_the_other_type(kind: ParamsType, tmp_path: Path) -> None:
    other = ParamsType.DIFF if kind == ParamsType.FULL else ParamsType.FULL
    sites = [honest(k, kind) for k in range(N - 1)] + [honest(N - 1, other)]
    job = Server(RobustAggregator("Median()", f=1), flare_server.model(), sites, tmp_path)
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert len(at.used) == N
    assert_moved(flare_server.model(), after)


def test_a_whole_model_that_is_called_a_change_does_not_reach_far(tmp_path: Path) -> None:
    bad = sends(lambda sent: {key: 1000 * array for key, array in sent.items()}, ParamsType.DIFF)
    job = server(tmp_path, bad)
    assert_moved(flare_server.model(), job.run())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", list(ParamsType))
def test_tensors_stay_tensors(dtype: torch.dtype, kind: ParamsType, tmp_path: Path) -> None:
    from nvflare.app_opt.pt.decomposers import TensorDecomposer
    from nvflare.fuel.utils import fobs

    fobs.register(TensorDecomposer)
    before = {
        "weight": torch.linspace(-1, 1, 12, dtype=dtype).reshape(3, 4),
        "batches": torch.tensor(7),
    }

    def site(k: int, params: Params, number: int) -> FLModel:
        rise = 0.5 if kind == ParamsType.DIFF else params["weight"] + 0.5
        weight = torch.zeros(3, 4, dtype=dtype) + rise
        sent = {"weight": weight, "batches": torch.tensor(3 if kind == ParamsType.DIFF else 10)}
        if k == 0:
            sent["weight"] = torch.full((3, 4), torch.inf, dtype=dtype)
        if k == 1:
            sent["weight"] = torch.zeros(3, 4, dtype=torch.int32)
        return FLModel(kind, sent)

    sites: list[Site] = [functools.partial(site, k) for k in range(N)]
    job = Server(RobustAggregator("Median()", f=2), dict(before), sites, tmp_path)
    after = job.run()
    assert set(aggregator_of(job).rounds[0].rejected) == {"site-0", "site-1"}
    assert after["weight"].dtype == dtype
    assert torch.equal(after["weight"], before["weight"] + 0.5)
    assert after["batches"] == torch.tensor(10)


@pytest.mark.parametrize("kind", list(ParamsType))
def test_sites_may_send_a_part_of_the_model(kind: ParamsType, tmp_path: Path) -> None:
    """As for adapters: what nobody sends stays as it is, and who sends another part is rejected."""
    before = flare_server.model()

    def part(k: int, params: Params, number: int) -> FLModel:
        result = honest(k, kind)(params, number)
        assert isinstance(result, FLModel)
        result.params = {"weight": result.params["weight"]}
        return result

    sites: list[Site] = [functools.partial(part, k) for k in range(N - 1)] + [honest(9, kind)]
    job = Server(RobustAggregator("Median()", f=1), dict(before), sites, tmp_path)
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert list(at.rejected.values()) == ["has the entry 'batches', unlike most"]
    assert_moved({"weight": before["weight"]}, {"weight": after["weight"]})
    for key in before.keys() - {"weight"}:
        np.testing.assert_array_equal(after[key], before[key])


def test_the_model_must_be_arrays(tmp_path: Path) -> None:
    sites = [ABSENT["an error"]] * 3
    job = Server(RobustAggregator("Krum()", f=0), {"weight": "text"}, sites, tmp_path)
    job.run()
    assert "the entry 'weight' of the model is no array" in job.panics[0]


# -- rounds that leave the model unchanged ---------------------------------------------------------


@pytest.mark.parametrize("workflow", WORKFLOWS)
@pytest.mark.parametrize("kind", list(ParamsType))
def test_too_many_rejected_results_leave_the_model_unchanged(
    kind: ParamsType, workflow: type, tmp_path: Path
) -> None:
    bad = sends(lambda sent: {key: a * np.nan for key, a in sent.items()}, kind)
    sites = [honest(k, kind) for k in range(3)] + [REJECTED["extra key"], bad]
    job = Server(
        RobustAggregator("Krum()", f=1), flare_server.model(), sites, tmp_path, workflow=workflow
    )
    after = job.run()
    (at,) = aggregator_of(job).rounds
    assert at.cause == "too-many-rejected"
    for key, array in flare_server.model().items():
        np.testing.assert_array_equal(after[key], array)
    assert not job.panics


def test_no_majority_leaves_the_model_unchanged_and_soon_ends_the_job(tmp_path: Path) -> None:
    sites = [honest(0), honest(1)] + [ABSENT["an error"]] * 3
    aggregator = RobustAggregator("Median()", f=1, patience=2)
    job = Server(aggregator, flare_server.model(), sites, tmp_path, rounds=5)
    after = job.run()
    assert [at.cause for at in aggregator.rounds] == ["no-majority"] * 2
    assert "2 usable replies, of which 1 may be Byzantine" in job.panics[0]
    for key, array in flare_server.model().items():
        np.testing.assert_array_equal(after[key], array)


# -- rules, weights and root ----------------------------------------------------------------------


def test_f_may_be_a_fraction(tmp_path: Path) -> None:
    aggregator = RobustAggregator("Krum()", f=0.2)
    assert aggregator.applied_rule is None
    server(tmp_path, aggregator=aggregator).run()
    assert aggregator.applied_rule == bz.Krum(f=1)
    assert aggregator.rounds[0].f == 1


def test_the_rule_keeps_its_state(tmp_path: Path) -> None:
    """The center of clipping is that of the round before."""
    clipping = RobustAggregator("CenteredClipping(radius=0.01)", f=1)
    server(tmp_path, aggregator=clipping, rounds=2).run()
    assert clipping.applied_rule is not None
    assert clipping.applied_rule.state_dict()


@pytest.mark.parametrize("kind", list(ParamsType))
@pytest.mark.parametrize("as_function", [False, True])
def test_weights_of_the_operator_count_and_nothing_else_does(
    as_function: bool, kind: ParamsType, tmp_path: Path
) -> None:
    """A site with the weight 3 counts like three sites, and one without weight does not."""
    before = {"weight": flare_server.model()["weight"]}
    sites: list[Site] = [honest(k, kind) for k in range(4)]
    weights = {"site-0": 3, "site-1": 1.0, "site-2": 2}
    given: Any = (lambda site: weights.get(site, 0)) if as_function else weights
    aggregator = RobustAggregator("GeometricMedian()", f=1, weights=given)
    after = Server(aggregator, dict(before), sites, tmp_path).run()
    (at,) = aggregator.rounds
    assert at.sampled == ("site-0", "site-1", "site-2")
    assert not at.rejected
    assert at.ignored == 1
    assert not at.kept or "hold" in at.kept
    mean = RobustAggregator("Mean()", f=0, weights=given)
    after = Server(mean, dict(before), sites, tmp_path).run()
    expected = sum(
        weights[f"site-{k}"] * trained(before, k)["weight"].astype(float) for k in range(3)
    )
    np.testing.assert_allclose(after["weight"], np.asarray(expected) / 6, rtol=1e-6)


def test_the_share_of_the_weight_of_a_round_is_in_its_record(tmp_path: Path) -> None:
    weights = {f"site-{k}": k + 1 for k in range(N)}
    aggregator = RobustAggregator("Median()", f=1, weights=weights)
    server(tmp_path, REJECTED["NaN"], aggregator).run()
    (at,) = aggregator.rounds
    assert at.vouched == weights
    assert at.vouched_used == pytest.approx(10 / 15)


class Shift:
    """A root function: the model after a rise of all numbers by half, as honest sites have it."""

    def __init__(self, by: float = 0.5) -> None:
        self.by = by

    def __call__(self, model: Params) -> Params:
        return {
            key: array + array.dtype.type(self.by if array.dtype.kind == "f" else 3)
            for key, array in model.items()
        }


@pytest.mark.parametrize("kind", list(ParamsType))
def test_with_root_data_most_sites_may_be_byzantine(kind: ParamsType, tmp_path: Path) -> None:
    def opposite(params: Params, number: int) -> FLModel:
        sent = {key: (array - array.dtype.type(1)) for key, array in params.items()}
        if kind == ParamsType.DIFF:
            sent = {key: np.asarray(sent[key] - params[key]) for key in sent}
        return FLModel(kind, sent)

    before = {"weight": flare_server.model()["weight"]}
    aggregator = RobustAggregator("RootMatching()", f=0.6, root=Shift())
    sites = [honest(k, kind) for k in range(2)] + [opposite] * 3
    after = Server(aggregator, dict(before), sites, tmp_path).run()
    (at,) = aggregator.rounds
    assert not at.kept
    assert at.root_norm == pytest.approx(0.5 * 12**0.5)
    assert_moved(before, after)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "Krun()", "f": 1}, "Krun"),
        ({"rule": "Krum()", "f": -1}, "f"),
        ({"rule": "Krum()", "f": 0.5}, "f"),
        ({"rule": "Krum(f=2)", "f": 1}, "Krum\\(f=2\\) says f=2 and RobustAggregator says f=1"),
        ({"rule": "RootMatching()", "f": 1}, "needs root="),
        ({"rule": "Krum()", "f": 1, "root": Shift()}, "does not use root="),
        ({"rule": "Krum()", "f": 1, "patience": 0}, "patience"),
        ({"rule": "Krum()", "f": 1, "timeout": -1}, "timeout"),
        ({"rule": "Mean()", "f": 0, "weights": [1, 2]}, "a mapping from sites"),
        ({"rule": "Mean()", "f": 0, "weights": {"site-1": -1}}, "weights"),
        ({"rule": "Krum()", "f": 1, "weights": {"site-1": 1}}, "weights"),
    ],
)
def test_wrong_arguments_are_errors_of_one_sentence(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ByzantiumError, match=message):
        RobustAggregator(**arguments)


# -- the folder -----------------------------------------------------------------------------------


def test_the_folder_is_that_of_a_run(tmp_path: Path) -> None:
    aggregator = RobustAggregator("Krum()", f=1, folder="results")
    server(tmp_path, REJECTED["NaN"], aggregator, rounds=3).run()
    (result,) = Store(tmp_path / flare_server.JOB / "results")
    assert isinstance(result.job, Federation)
    assert result.job.engine == "nvflare"
    assert result.job.name == flare_server.JOB
    lines = [
        json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [line["used"] for line in lines] == [4, 4, 4]
    # Sites evaluate the model that they get, which is that of the round before.
    assert ["accuracy" in line for line in lines] == [True, True, False]
    assert json.loads((result.folder / "nodes.json").read_text())[-1] == BAD


def test_a_finished_federation_is_not_overwritten(tmp_path: Path) -> None:
    for expected in (0, 1):
        aggregator = RobustAggregator("Krum()", f=1, folder=str(tmp_path / "results"))
        job = server(tmp_path, aggregator=aggregator)
        job.run()
        assert len(job.panics) == expected
    assert "holds a finished federation 'job'" in job.panics[0]


def test_a_failed_job_says_why(tmp_path: Path) -> None:
    aggregator = RobustAggregator("Krum()", f=1, patience=1, folder=str(tmp_path / "results"))
    sites = [honest(0), honest(1)] + [ABSENT["an error"]] * 3
    Server(aggregator, flare_server.model(), sites, tmp_path).run()
    (failure,) = (tmp_path / "results").glob("*/failed.json")
    assert "the model was left unchanged in 1 rounds" in failure.read_text()
    assert not list((tmp_path / "results").glob("*/summary.json"))


def test_a_server_that_was_restarted_goes_on(tmp_path: Path) -> None:
    """FLARE starts the job at the round after its snapshot; rule, trust and lines continue."""
    rule, results = "CenteredClipping(radius=0.01)", tmp_path / "results"
    one = server(
        tmp_path, REJECTED["NaN"], RobustAggregator(rule, f=1, folder=str(results / "a")), rounds=4
    )
    after = one.run()
    killed = server(
        tmp_path, REJECTED["NaN"], RobustAggregator(rule, f=1, folder=str(results / "b")), rounds=2
    )
    params = killed.run()
    (folder,) = (results / "b").iterdir()
    (folder / "summary.json").unlink()  # as if it had been killed
    resumed = RobustAggregator(rule, f=1, folder=str(results / "b"))
    again = server(tmp_path, REJECTED["NaN"], resumed, params, rounds=2, start_round=2).run()
    for key in after:
        np.testing.assert_array_equal(after[key], again[key])
    assert resumed.trust.workers[BAD].rejections == 4
    lines = (folder / "metrics.jsonl").read_text()
    assert lines == next((results / "a").glob("*/metrics.jsonl")).read_text()


# -- jobs -----------------------------------------------------------------------------------------


def test_a_job_keeps_the_arguments_and_no_copy_of_byzantium(tmp_path: Path) -> None:
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe

    script = tmp_path / "client.py"
    script.write_text("import byzantium\n")
    given: dict[str, Any] = {
        "rule": "Bucketing(s=2) >> GeometricMedian()",
        "f": 0.2,
        "weights": {"site-1": 3.0},
        "patience": 5,
        "timeout": 60.0,
        "folder": "results",
        "federation": "hospitals",
    }
    recipe = NumpyFedAvgRecipe(
        name="job",
        model=[[1.0, 2.0]],
        min_clients=2,
        train_script=str(script),
        aggregator=RobustAggregator(**given),
    )
    recipe.export(str(tmp_path / "exported"))
    (path,) = (tmp_path / "exported").rglob("config_fed_server.json")
    written = json.loads(path.read_text())["workflows"][0]["args"]["aggregator"]
    assert written["path"] == "byzantium.engines.nvflare.aggregator.RobustAggregator"
    assert written["args"] == given
    assert RobustAggregator(**written["args"]).rule == given["rule"]
    assert {path.name for path in (tmp_path / "exported").rglob("*.py")} == {"client.py"}


def test_a_rule_as_an_object_and_a_root_are_written_too(tmp_path: Path) -> None:
    from nvflare.job_config.fed_job_config import FedJobConfig

    aggregator = RobustAggregator(bz.RootMatching(f=3), f=3, root=Shift(by=0.25))
    written = FedJobConfig("job", 1)._get_args(aggregator, str(tmp_path))
    assert written["rule"] == "RootMatching(f=3)"
    assert written["root"]["args"] == {"by": 0.25}
    assert written["root"]["path"].endswith(".Shift")


def test_returned_metrics_are_medians(tmp_path: Path) -> None:
    def site(k: int, params: Params, number: int) -> FLModel:
        metrics: dict[str, Any] = {"accuracy": [0.1, 0.7, 0.8, 0.9, np.float64(99)][k], "text": "a"}
        metrics |= {"loss": float("nan") if k == 0 else 2.0, f"own-{k}": 1.0}
        return FLModel(ParamsType.FULL, trained(params, k), metrics=metrics)

    aggregator, returned = RobustAggregator("Mean()", f=0), []
    aggregate = aggregator.aggregate_model
    aggregator.aggregate_model = lambda: returned.append(aggregate()) or returned[-1]  # type: ignore[func-returns-value, method-assign]
    Server(
        aggregator, flare_server.model(), [functools.partial(site, k) for k in range(N)], tmp_path
    ).run()
    assert returned[0].metrics == {"accuracy": 0.8, "loss": 2.0}


# -- sampled sites --------------------------------------------------------------------------------


def test_a_cache_adds_the_last_changes_of_sites_that_are_not_sampled(tmp_path: Path) -> None:
    aggregator = RobustAggregator("GeometricMedian()", f=1, timeout=2, patience=20, cache="cache")
    job = server(tmp_path, aggregator=aggregator, num_clients=2, rounds=12)
    after = job.run()
    heard, moved = set[str](), False
    for at in aggregator.rounds:
        heard |= set(at.sampled)
        assert bool(at.kept) == (len(heard) < 3)  # 2f + 1
        assert set(at.used) == (set() if at.kept else heard)
        moved |= not at.kept
    assert moved
    assert len(heard) > 2
    assert any(after[key].tolist() != array.tolist() for key, array in flare_server.model().items())
    assert list(tmp_path.rglob("cache/*.safetensors"))


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_with_all_sites_a_cache_changes_nothing(kind: ParamsType, tmp_path: Path) -> None:
    models = []
    for cache in (None, "cache"):
        aggregator = RobustAggregator("Krum()", f=1, timeout=2, cache=cache)
        sites: list[Site] = [honest(k, kind) for k in range(N)]
        folder = tmp_path / str(cache)
        models.append(Server(aggregator, flare_server.model(), sites, folder, rounds=2).run())
    for key in models[0]:
        np.testing.assert_array_equal(models[0][key], models[1][key])


def test_an_age_needs_a_cache_and_trackers_a_folder() -> None:
    with pytest.raises(ByzantiumError, match="needs a cache for cache_age"):
        RobustAggregator("Median()", f=1, cache_age=3)
    with pytest.raises(ByzantiumError, match="needs a folder of results to track it"):
        RobustAggregator("Median()", f=1, track="tensorboard")
