"""A federation that samples few nodes and aggregates the last changes of all of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import FIRST, REJECTED, Nodes, hostile
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Result

from byzantium.engines.federation.rounds import Standstill
from byzantium.engines.flower import RobustStrategy
from byzantium.reports.contents import contents as page_contents
from byzantium.runs import Federation, Store

N, F = 9, 2
LIARS = (7, 8)
SAMPLE = "byzantium.engines.flower.nodes.random.sample"


def liar(message: Message) -> Message:
    arrays = federation.changed(federation.received(message), lambda key, a: -1e4)
    return federation.reply(message, arrays, num_examples=60, loss=1.0)


def grid(bad: federation.Node = liar) -> Nodes:
    return Nodes({**federation.honest_ones(N - F), **{FIRST + k: bad for k in LIARS}})


def robust(work: Path, rule: str = "TrimmedMean()", **options: Any) -> RobustStrategy:
    options = {"f": F, "cache": work / "cache", "fraction_evaluate": 0.0, **options}
    return RobustStrategy(rule, min_train_nodes=1, fraction_train=0.2, **options)


@pytest.fixture
def sampling(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The nodes of each round, from the front of this list: indices of nodes."""
    schedule: list[list[int]] = []

    def sample(nodes: list[int], count: int) -> list[int]:
        del count
        wanted = schedule.pop(0)
        return [node for node in nodes if node - FIRST in wanted]

    monkeypatch.setattr(SAMPLE, sample)
    return schedule


def started(strategy: RobustStrategy, rounds: int, nodes: Nodes | None = None) -> Result:
    return strategy.start(nodes or grid(), federation.record(federation.plain()), rounds)


def weight(result: Result) -> np.ndarray[Any, Any]:
    return federation.arrays_of(result.arrays)["weight"]


def steps(strategy: RobustStrategy, rounds: int, nodes: Nodes | None = None) -> Iterator[Any]:
    """The step of the model in each round, and the record of the round."""
    models = [federation.plain()["weight"]]

    def noted(number: int, arrays: ArrayRecord) -> MetricRecord:
        if number:
            models.append(federation.arrays_of(arrays)["weight"])
        return MetricRecord({"accuracy": 0.5})

    first = federation.record(federation.plain())
    strategy.start(nodes or grid(), first, rounds, evaluate_fn=noted)
    for k, at in enumerate(strategy.rounds):
        yield models[k + 1] - models[k], at


# -- the same and safer ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [liar, hostile(REJECTED["NaN"]), hostile(REJECTED["no arrays"])])
@pytest.mark.parametrize("rule", ["CenteredClipping(radius=1)", "Krum()", "Median()"])
def test_if_all_take_part_nothing_changes_to_the_bit(
    tmp_path: Path, rule: str, bad: federation.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SAMPLE, lambda nodes, count: nodes)
    plain, cached = (RobustStrategy(rule, f=F, cache=cache) for cache in (None, tmp_path / "cache"))
    assert (
        weight(started(plain, 4, grid(bad))).tobytes()
        == weight(started(cached, 4, grid(bad))).tobytes()
    )
    for one, other in zip(plain.rounds, cached.rounds, strict=True):
        assert (one.used, one.weights, one.f) == (other.used, other.weights, other.f)
        assert one.rejected.keys() == other.rejected.keys()
        assert other.cached == ()
        for node in one.used:
            assert one.distances[node] == pytest.approx(other.distances[node], rel=1e-5)
        assert one.spread_to_mean == pytest.approx(other.spread_to_mean, rel=1e-3)


def test_a_round_of_liars_alone_is_worth_f_of_n(tmp_path: Path, sampling: list[list[int]]) -> None:
    sampling += [[0, 1], [2, 3], [4, 5], [6, 7], [7, 8], [7, 8], [8], [0, 8]]
    moved = list(steps(robust(tmp_path), 8))
    for step, at in moved[2:]:
        assert 0.39 < step.min() <= step.max() < 0.61  # what honest nodes sent
        assert not at.kept
    assert [len(at.used) for _, at in moved] == [0, 0, 6, 8, 9, 9, 9, 9]
    assert [len(at.cached) for _, at in moved] == [0, 2, 4, 6, 7, 7, 8, 7]
    assert moved[4][1].sampled == (FIRST + 7, FIRST + 8)
    assert moved[4][1].fresh == (FIRST + 7, FIRST + 8)
    # Without a cache these rounds are the liars': two of two say the same.
    sampling += [[7, 8]]
    ((step, _),) = steps(robust(tmp_path, "Median()", f=0, cache=None), 1)
    assert step.max() < -1e3


def test_the_rule_gets_changes_and_not_models(tmp_path: Path, sampling: list[list[int]]) -> None:
    """A node that was asked three rounds ago started from another model."""
    sampling += [[0], [1], [2], [3]]
    moved = list(steps(robust(tmp_path, "Mean()", f=0), 4))
    assert [len(at.used) for _, at in moved] == [1, 2, 3, 4]
    assert all(0.39 < step.min() <= step.max() < 0.61 for step, _ in moved)


# -- who is not heard ------------------------------------------------------------------------------


def test_the_model_stays_until_2f_plus_1_are_heard_and_patience_waits(
    tmp_path: Path, sampling: list[list[int]]
) -> None:
    sampling += [[0], [1], [2], [3], [4], [5]]
    moved = list(steps(robust(tmp_path, "Median()", patience=2), 6))
    assert [bool(at.kept) for _, at in moved] == [True] * 4 + [False] * 2
    assert [at.cause for _, at in moved[:4]] == ["no-majority"] * 4
    assert not any(step.any() for step, _ in moved[:4])
    assert moved[4][0].all()


def test_rounds_that_hear_nobody_new_count_for_patience(
    tmp_path: Path, sampling: list[list[int]]
) -> None:
    sampling += [[0], [1], [1], [0], [1]]
    strategy = robust(tmp_path, patience=3)
    with pytest.raises(Standstill, match="3 rounds in a row"):
        started(strategy, 9)
    assert len(strategy.rounds) == 5


def test_f_as_a_fraction_counts_among_all_nodes(
    tmp_path: Path, sampling: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    sampling += [[0, 1], [2, 3], [4, 5]]
    strategy = robust(tmp_path, f=0.2)
    assert [at.f for _, at in steps(strategy, 3)] == [2, 2, 2]
    assert "more than f of a sample" not in caplog.text


def test_a_reply_that_cannot_be_used_counts_until_the_next_one(
    tmp_path: Path, sampling: list[list[int]]
) -> None:
    """It takes the place of what the node sent before, and is one of the f."""
    sampling += [[0, 1, 2, 3, 4, 5, 6, 7, 8], [7], [0], [1], [7], [0]]
    bad = hostile(REJECTED["no arrays"])
    sent = [bad, bad, federation.honest(7)]

    def node(message: Message) -> Any:
        return sent[["1", "2", "5"].index(message.metadata.group_id)](message)

    nodes = Nodes({**federation.honest_ones(7), FIRST + 7: node, FIRST + 8: liar})
    rounds = [at for _, at in steps(robust(tmp_path), 6, nodes)]
    assert [set(at.rejected) for at in rounds] == [{FIRST + 7}] * 4 + [set(), set()]
    assert [len(at.used) for at in rounds] == [8, 0, 8, 8, 9, 9]
    assert rounds[1].cause == "no-reply"
    assert rounds[3].rejected[FIRST + 7].endswith("(in round 2)")


def test_a_node_that_is_absent_is_represented_by_what_it_sent_before(
    tmp_path: Path, sampling: list[list[int]]
) -> None:
    sampling += [[*range(9)], [0, 1], [0]]
    asked = []

    def gone(message: Message) -> Any:
        asked.append(message.metadata.group_id)
        return federation.honest(0)(message) if message.metadata.group_id == "1" else None

    nodes = Nodes({**federation.honest_ones(7), FIRST + 7: liar, FIRST + 8: liar, FIRST: gone})
    rounds = [at for _, at in steps(robust(tmp_path), 3, nodes)]
    assert set(rounds[1].absent) == {FIRST}
    assert FIRST in rounds[1].used
    assert FIRST in rounds[1].cached
    assert len(rounds[1].used) == 9
    # When nobody replies, the old changes alone move nothing.
    assert rounds[2].cause == "no-reply"


def test_a_change_that_is_too_old_is_absent(tmp_path: Path, sampling: list[list[int]]) -> None:
    sampling += [[*range(9)], [0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]
    rounds = [at for _, at in steps(robust(tmp_path, cache_age=2), 5)]
    assert [len(at.used) for at in rounds] == [9, 9, 9, 6, 6]
    assert not {FIRST + 7, FIRST + 8} & set(rounds[-1].used)


# -- a server that is killed -----------------------------------------------------------------------


SCHEDULE = [[0, 1, 2], [3, 4], [5, 6], [7, 8], [7, 0], [8, 1], [2, 7], [8]]


@pytest.mark.parametrize("rule", ["CenteredClipping(radius=1)", "Krum()", "Median()"])
def test_going_on_from_a_checkpoint_changes_nothing(
    tmp_path: Path, rule: str, sampling: list[list[int]]
) -> None:
    sampling += SCHEDULE
    whole = robust(tmp_path / "whole", rule, folder=tmp_path / "whole")
    expected = weight(started(whole, 8))
    for part in (2, 4, 5, 8):
        done = robust(tmp_path / "parts", rule, folder=tmp_path / "parts")
        before = len(done.rounds)
        if part > 2:
            # A round that was not saved: the server was killed in it.
            ours = robust(tmp_path / "parts", rule, folder=tmp_path / "parts")
            last = {2: 0, 4: 2, 5: 4, 8: 5}[part]
            sampling[:] = SCHEDULE[last:]
            ours.record.save = lambda *_: None  # type: ignore[union-attr,method-assign]
            ours.cache.commit = lambda: None  # type: ignore[union-attr,method-assign]
            started(ours, part)
        sampling[:] = SCHEDULE[{2: 0, 4: 2, 5: 4, 8: 5}[part] :]
        result = started(done, part)
        assert before == 0
    assert weight(result).tobytes() == expected.tobytes()
    assert len(list((tmp_path / "parts" / "cache").glob("*.safetensors"))) <= 9 + 4


def test_the_folder_of_results_knows_of_the_cache(
    tmp_path: Path, sampling: list[list[int]]
) -> None:
    sampling += SCHEDULE
    strategy = robust(tmp_path, folder=tmp_path / "results")
    list(steps(strategy, 8))
    (result,) = Store(tmp_path / "results")
    assert result.status == "completed"
    assert isinstance(result.job, Federation)
    assert result.job.cache
    assert result.job.identity != result.job.varied(cache=False).identity
    assert [line.get("cached", 0) for line in result.metrics] == [0, 3, 5, 7, 7, 7, 7, 8]
    assert [len(line["weights"]) for line in result.metrics] == [9] * 8
    assert all(math.isclose(sum(line["weights"]), 1, abs_tol=1e-4) for line in result.metrics[2:])
    lines = (result.folder / "rounds.jsonl").read_text().splitlines()
    assert len(json.loads(lines[-1])["cached"]) == 8
    (run,) = page_contents(Store(tmp_path / "results"), [])["runs"]
    assert len(run["weights"]["rows"][0]) == 9
    assert strategy.rounds[-1].metrics()["cached"] == 8


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(bz.ByzantiumError, match="needs a cache for cache_age"):
        RobustStrategy("Median()", f=1, cache_age=3)
    with pytest.raises(bz.ByzantiumError, match="cannot rehearse an attack with a cache"):
        RobustStrategy("Median()", f=1, cache=tmp_path, rehearse="Mimic()", nodes=1)
    with pytest.raises(bz.ByzantiumError, match="age"):
        RobustStrategy("Median()", f=1, cache=tmp_path, cache_age=0)
