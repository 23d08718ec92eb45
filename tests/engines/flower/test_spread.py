"""How different the replies of a round are, beside the limit of what any rule can promise."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import members
import numpy as np
import pytest
from members import FEDERATED, F, N

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import ABSENT, FIRST, LIES, REJECTED, USED, Arrays, Node, Nodes, hostile
from flwr.app import MetricRecord

from byzantium.engines.federation import vectors
from byzantium.engines.federation.vectors import measure
from byzantium.engines.flower import RobustStrategy
from byzantium.runs import Store


def one_round(*args: Any) -> MetricRecord:
    return federation.one_round(*args)[1]


def change(model: Arrays, row: Arrays) -> list[float]:
    """All floating-point numbers of a row, as changes of the model, one by one."""
    return [
        float(after) - float(before)
        for key in model
        if model[key].dtype.kind == "f"
        for before, after in zip(model[key].reshape(-1), row[key].reshape(-1), strict=True)
    ]


def slow_ratio(model: Arrays, rows: list[Arrays]) -> float:
    """The mean squared distance to the mean over the squared mean, as loops over numbers."""
    changes = [change(model, row) for row in rows]
    mean = [sum(column) / len(rows) for column in zip(*changes, strict=True)]
    spread = sum((x - m) ** 2 for row in changes for x, m in zip(row, mean, strict=True))
    return spread / len(rows) / sum(m**2 for m in mean)


def moves_by(*steps: float) -> Node:
    """A node that adds these numbers to the model."""

    def node(message: Any) -> Any:
        if message.metadata.message_type == "evaluate":
            return federation.honest(0)(message)
        arrays = federation.changed(federation.received(message), lambda key, a: np.array(steps))
        return federation.reply(message, arrays, num_examples=60, loss=1.0)

    return node


def grid_of(*steps: tuple[float, ...]) -> Nodes:
    return Nodes({FIRST + k: moves_by(*step) for k, step in enumerate(steps)})


def wide(ratio: float, n: int = 25) -> list[tuple[float, float]]:
    """Replies with this spread-to-mean ratio, in two coordinates."""
    a = (ratio * n / (n - 1)) ** 0.5
    return [(1.0, 0.0), *[(1.0, a), (1.0, -a)] * (n // 2)]


def flat(d: int = 2, dtype: Any = np.float64) -> Arrays:
    return {"weight": np.zeros(d, dtype=dtype)}


@pytest.mark.parametrize("member", FEDERATED, ids=members.name)
def test_the_ratio_is_that_of_the_used_replies(member: members.Rule) -> None:
    """Half precision, arrays without numbers, big-endian and by columns; a lie counts, too."""
    kinds = [USED["big-endian"], USED["by columns"], LIES["opposite"], REJECTED["NaN"]]
    bad: dict[int, Node] = {FIRST + N + k: hostile(kind, N) for k, kind in enumerate(kinds)}
    bad[FIRST + 40] = hostile(ABSENT["silence"])
    grid, before = Nodes({**federation.honest_ones(N), **bad}), federation.model()
    strategy = RobustStrategy(member.fresh(), f=F)
    metrics = one_round(strategy, grid, before)
    (at,) = strategy.rounds
    assert len(at.used) == N + 3
    sent = {m.metadata.dst_node_id: grid.nodes[m.metadata.dst_node_id](m) for m in grid.sent[0]}
    rows = [
        federation.arrays_of(sent[node].content.array_records["arrays"])  # type: ignore[union-attr]
        for node in at.used
    ]
    assert metrics["spread-to-mean"] == pytest.approx(slow_ratio(before, rows), rel=1e-9)
    assert metrics["spread-to-mean"] == at.spread_to_mean
    # One of the F was rejected: it is among neither n nor f.
    assert metrics["spread-to-mean-limit"] == (N + 3 - 2 * (F - 1)) / (F - 1)


def test_values_by_hand() -> None:
    # The mean is 1.4 and the variance 0.8 * 0.4^2 + 0.2 * 1.6^2 = 0.64.
    metrics = one_round(
        RobustStrategy("TrimmedMean()", f=5), grid_of(*[(1.0,)] * 20, *[(3.0,)] * 5), flat(1)
    )
    assert metrics["spread-to-mean"] == pytest.approx(0.64 / 1.4**2)
    assert metrics["spread-to-mean-limit"] == 3
    unchanged = one_round(RobustStrategy("Median()", f=1), grid_of(*[(0.0,)] * 5), flat(1))
    assert "spread-to-mean" not in unchanged
    assert unchanged["spread-to-mean-limit"] == 3
    equal = one_round(RobustStrategy("Median()", f=1), grid_of(*[(2.0,)] * 5), flat(1))
    assert equal["spread-to-mean"] == 0
    cancel = one_round(RobustStrategy("Median()", f=1), grid_of((1.0,), (-1.0,), (0.0,)), flat(1))
    assert cancel["spread-to-mean"] == 1e100


def test_without_a_limit_the_ratio_stands_alone() -> None:
    """Nobody is Byzantine, or the server has data of its own; a kept model has neither number."""
    nobody = one_round(RobustStrategy("Mean()", f=0), grid_of(*wide(28.0)), flat())
    assert nobody["spread-to-mean"] == pytest.approx(28)
    assert "spread-to-mean-limit" not in nobody

    def root(model: Arrays) -> Arrays:
        return {"weight": model["weight"] + 1.0}

    trusting = RobustStrategy("RootMatching()", f=5, root=root)
    with_root = one_round(trusting, grid_of(*wide(28.0)), flat())
    assert with_root["spread-to-mean"] == pytest.approx(28)
    assert "spread-to-mean-limit" not in with_root
    assert not trusting.rounds[0].above_limit
    few = grid_of((1.0,), (1.0,), (1.0,))
    kept = one_round(RobustStrategy("Median()", f=2), few, flat(1))
    assert kept["kept-no-majority"] == 1
    assert not {"spread-to-mean", "spread-to-mean-limit"} & set(kept)


def test_the_log_says_once_that_replies_are_above_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sentence = "\t> 5 of 25 need B² < 3; these replies have 28"
    strategy = RobustStrategy("TrimmedMean()", f=5)
    with caplog.at_level("WARNING", "flwr"):
        one_round(strategy, grid_of(*wide(2.9)), flat(), 1)
        assert "need B²" not in caplog.text
        for number, ratio in enumerate((28.0, 28.0, 2.0, 50.0), 2):
            one_round(strategy, grid_of(*wide(ratio)), flat(), number)
    assert [one.getMessage() for one in caplog.records if "B²" in one.getMessage()] == [sentence]
    assert [round(at.spread_to_mean or 0, 9) for at in strategy.rounds] == [2.9, 28, 28, 2, 50]


def test_late_rounds_are_recorded_and_not_spoken_of(caplog: pytest.LogCaptureFixture) -> None:
    """Where a model has been learned, the mean vanishes and the ratio is large on any data."""
    strategy = RobustStrategy("TrimmedMean()", f=5)
    with caplog.at_level("WARNING", "flwr"):
        metrics = one_round(strategy, grid_of(*wide(28.0)), flat(), 26)
        assert metrics["spread-to-mean"] == pytest.approx(28)
        assert "need B²" not in caplog.text
        one_round(RobustStrategy("TrimmedMean()", f=5), grid_of(*wide(28.0)), flat(), 25)
    assert "need B²" in caplog.text


@pytest.mark.parametrize("lie", [0.0, 1e140], ids=["honest", "lie"])
def test_the_folder_has_ratio_and_limit_of_each_round(tmp_path: Path, lie: float) -> None:
    """Two attackers whose huge vectors cancel make the ratio absurd, and the folder is readable."""
    steps = [(1.0, 0.5), (1.0, -0.5), (1.0, 0.0), (1.0, 0.3), (1.0, -0.3), (1.0, lie), (1.0, -lie)]
    strategy = RobustStrategy("TrimmedMean()", f=2, folder=tmp_path, fraction_evaluate=0.0)
    strategy.start(grid_of(*steps), federation.record(flat()), 2)
    (result,) = Store(tmp_path)
    lines = (result.folder / "rounds.jsonl").read_text().splitlines()
    details = [json.loads(line) for line in lines]
    # The first coordinate has the mean 1, the second the mean 0.
    expected = 1e100 if lie else 2 * (0.5**2 + 0.3**2) / 7
    for line in [*result.metrics, *details]:
        assert line["spread_to_mean"] == pytest.approx(expected)
        assert line["spread_to_mean_limit"] == 1.5


def test_attackers_can_raise_and_lower_the_ratio() -> None:
    """As the docs say: it is no proof of anything about the honest nodes."""
    honest = [(1.0, 2.0), (1.0, -2.0)] * 4

    def ratio(*bad: tuple[float, float]) -> float:
        metrics = one_round(RobustStrategy("Median()", f=2), grid_of(*honest, *bad), flat())
        number = metrics["spread-to-mean"]
        assert isinstance(number, float)
        return number

    assert ratio() == pytest.approx(4)
    assert ratio((1.0, 90.0), (1.0, -90.0)) > 1000
    assert ratio((9.0, 0.0), (9.0, 0.0)) < 2


@pytest.mark.parametrize("chunk", [1, 7, 1 << 18])
def test_chunks_and_a_distant_model_change_nothing(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(vectors, "CHUNK", chunk)
    rng = np.random.default_rng(0)
    model: Arrays = {"a": rng.normal(1e3, 1, (5, 4)), "b": rng.normal(0, 1, 9), "c": np.arange(3)}
    rows = [
        {key: a + rng.normal(0.2, 0.5, a.shape) if key != "c" else a for key, a in model.items()}
        for _ in range(6)
    ]
    rows[2] = {key: np.asfortranarray(a) for key, a in rows[2].items()}
    for aggregate in (model, rows[0], {key: a * 3 for key, a in rows[1].items()}):
        distances, ratio = measure(model, rows, aggregate)
        assert ratio == pytest.approx(slow_ratio(model, rows), rel=1e-7)
        slow = [sum(x**2 for x in change(aggregate, row)) ** 0.5 for row in rows]
        assert distances == pytest.approx(slow, rel=1e-9)


def test_no_copy_of_the_replies_is_made() -> None:
    """Also not of arrays that are stored by columns."""
    rows = [{"a": np.asfortranarray(np.full((3000, 500), k, np.float32))} for k in range(10)]
    model = {"a": np.zeros((3000, 500), np.float32)}
    measure(model, rows, rows[3])
    tracemalloc.start()
    measure(model, rows, rows[3])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.25 * 10 * model["a"].nbytes
