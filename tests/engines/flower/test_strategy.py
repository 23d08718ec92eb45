"""A strategy of Flower that survives its clients: synthetic replies, without an engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import members
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from members import FEDERATED, F, N
from paths import SUPPORT

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import (
    ABSENT,
    FIRST,
    LIES,
    REJECTED,
    USED,
    Arrays,
    Nodes,
    honest_ones,
    hostile,
    one_round,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from byzantium.engines.federation.replies import UnusableReply
from byzantium.engines.federation.rounds import byzantine_count, probability_of_more
from byzantium.engines.flower import RobustStrategy, Standstill, TooFewNodes
from byzantium.engines.flower.replies import model_of, row_of

BAD = FIRST + N - 1


def moved(before: Arrays, after: Arrays) -> np.ndarray[Any, Any]:
    """All numbers that are no whole ones, as changes."""
    parts = [
        np.ravel(after[key].astype(float) - before[key].astype(float))
        for key in before
        if before[key].dtype.kind == "f"
    ]
    return np.concatenate(parts)


def strategy_of(member: members.Rule) -> RobustStrategy:
    return RobustStrategy(member.fresh(), f=F)


def check_result(before: Arrays, after: Arrays | None, far: float = 0.3) -> None:
    """Near the honest mean, which is 0.5 give or take 0.1; all else as it was."""
    assert after is not None
    assert list(after) == list(before)
    for key, array in before.items():
        assert (after[key].dtype, after[key].shape) == (array.dtype, array.shape)
    changes = moved(before, after)
    assert np.isfinite(changes).all()
    assert np.abs(changes - 0.5).max() < far
    assert after["batches"] == before["batches"]
    assert (after["mask"] == before["mask"]).all()


@pytest.mark.parametrize("member", FEDERATED, ids=members.name)
def test_no_kind_of_hostile_reply_moves_the_model_or_names_another_node(
    member: members.Rule,
) -> None:
    before = federation.model()
    kinds = {**REJECTED, **ABSENT, **USED, **(LIES if member.robust else {})}
    for start in range(0, len(kinds), F):
        some = list(kinds)[start : start + F]
        strategy = strategy_of(member)
        named = {FIRST + N - 1 - k: kind for k, kind in enumerate(some)}
        others = {FIRST + k: federation.canned(k) for k in range(N - len(some))}
        bad = {node: hostile(kinds[kind], N) for node, kind in named.items()}
        after, metrics = one_round(strategy, Nodes(others | bad), before)
        check_result(before, after)
        (at,) = strategy.rounds
        rejected = {node for node, kind in named.items() if kind in REJECTED}
        absent = {node for node, kind in named.items() if kind in ABSENT}
        assert set(at.rejected) == rejected, some
        assert set(at.absent) == absent, some
        assert len(at.used) == N - len(rejected) - len(absent)
        assert metrics["used"] == len(at.used)
        assert metrics["rejected"] == len(rejected)
        assert 1.0 <= float(metrics["loss"]) <= 1.3  # type: ignore[arg-type]
        assert all(reason.isprintable() for reason in [*at.rejected.values(), *at.absent.values()])


# -- one by one -----------------------------------------------------------------------------------


def nodes(honest: int, *bad: federation.Node) -> Nodes:
    """Honest nodes, and behind them bad ones."""
    return Nodes({**honest_ones(honest), **{FIRST + honest + k: b for k, b in enumerate(bad)}})


def bad(kind: str) -> federation.Node:
    return hostile({**REJECTED, **ABSENT, **USED, **LIES}[kind])


def test_float64_and_lists_of_arrays_keep_their_dtypes_and_names() -> None:
    before: Arrays = {"0": np.array([3.0, -2.0]), "1": np.array(0.5, dtype=np.float16)}
    after, _ = one_round(RobustStrategy("Median()", f=0), nodes(3), before)
    assert after is not None
    assert {key: (a.dtype, a.shape) for key, a in after.items()} == {
        "0": (np.float64, (2,)),
        "1": (np.float16, ()),
    }


def test_counters_take_the_median_and_stay_whole() -> None:
    def node(count: int) -> federation.Node:
        return lambda message: federation.reply(
            message, {**federation.received(message), "batches": np.array(count)}
        )

    grid = Nodes({FIRST + k: node(count) for k, count in enumerate([8, 9, 2**62])})
    after, _ = one_round(RobustStrategy("Median()", f=1), grid, federation.model())
    assert after is not None
    assert after["batches"].dtype == np.int64
    assert after["batches"] == 9


def test_changes_are_aggregated_and_not_weights() -> None:
    """A clip of the changes to a radius leaves a model as far away as it was."""
    before = {"weight": np.full(6, 1e4, dtype=np.float32)}
    after, _ = one_round(RobustStrategy("CenteredClipping(radius=1)", f=0), nodes(5), before)
    assert after is not None
    assert 0 < np.linalg.norm(after["weight"] - before["weight"]) < 1.1


@pytest.mark.parametrize(
    ("f", "rule", "sentence"),
    [
        (2, bz.Krum(f=1), "f=1 and RobustStrategy says f=2"),
        (1, "Bucketing(2) >> TrimmedMean(f=2)", "f=2 and RobustStrategy says f=1"),
        (0.5, "Median()", "f < 0.5"),
        (1.0, "Median()", "f < 0.5"),
        (-1, "Median()", "f >= 0"),
        (True, "Median()", "whole number"),
        (1, "Bucketing(2)", "must end in a rule"),
        (1, 7, "'int' object is not callable"),
    ],
)
def test_an_f_or_a_rule_that_cannot_be_is_refused(f: Any, rule: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        one_round(RobustStrategy(rule, f=f), nodes(7), federation.plain())


def test_behind_groups_f_counts_groups(caplog: pytest.LogCaptureFixture) -> None:
    """Four of 15 nodes may be bad, so that two of five groups may be."""
    rule = "Hierarchy(groups=5, inner=GeometricMedian(), deal='random') >> TrimmedMean(f=2)"
    strategy = RobustStrategy(rule, f=4)
    after, metrics = one_round(strategy, nodes(11, *[bad("far away")] * 4), federation.plain())
    assert after is not None
    assert metrics is not None
    assert repr(strategy.rule) == rule
    assert "no guarantee" not in caplog.text
    with pytest.raises(ValueError, match="f=1 and RobustStrategy says f=4"):
        one_round(
            RobustStrategy(f"Bucketing(s='auto', f=1) >> {rule}", f=4),
            nodes(15),
            federation.plain(),
        )


def test_f_is_mandatory() -> None:
    with pytest.raises(TypeError, match="f"):
        RobustStrategy("Median()")  # type: ignore[call-arg]


@pytest.mark.parametrize(("f", "n", "bad"), [(0.2, 10, 2), (0.2, 11, 3), (0.1, 30, 3), (2, 9, 2)])
def test_a_fraction_of_the_nodes_sampled_is_rounded_up(f: float, n: int, bad: int) -> None:
    assert byzantine_count(f, n) == bad
    strategy = RobustStrategy("Krum()", f=f)
    one_round(strategy, nodes(n), federation.plain())
    assert strategy.rule == bz.Krum(f=bad)
    assert strategy.rounds[0].f == bad


def test_the_log_says_how_likely_a_sample_holds_more_bad_nodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # By hand: 2 of 4 nodes are bad, 2 are sampled, 1 is reckoned with: both bad in 1 of 6 draws.
    assert probability_of_more(0.49, sampled=2, connected=4) == pytest.approx(1 / 6)
    assert probability_of_more(0.2, sampled=10, connected=10) == 0
    strategy = RobustStrategy("Median()", f=0.2, fraction_train=0.5)
    with caplog.at_level("INFO", "flwr"):
        one_round(strategy, nodes(20), federation.plain())
    assert "more than f of a sample are with probability" in caplog.text


def test_the_log_calls_nodes_by_their_numbers(caplog: pytest.LogCaptureFixture) -> None:
    strategy = RobustStrategy("Median()", f=1)
    with caplog.at_level("WARNING", "byzantium"):
        one_round(strategy, nodes(4, bad("NaN")), federation.plain())
    (node,) = strategy.rounds[0].rejected
    assert f"rejected 1 of 5 vectors: worker {node} (not finite" in caplog.text


def test_a_rule_may_be_a_function_of_the_number_sampled_and_keeps_its_state() -> None:
    seen = []

    def rule(n: int) -> bz.Aggregator:
        seen.append(n)
        return bz.CenteredClipping(radius=float(n))

    strategy = RobustStrategy(rule, f=1)
    model = federation.plain()
    for number, n in ((1, 5), (2, 5), (3, 7)):
        after, _ = one_round(strategy, nodes(n), model, number)
        assert after is not None
        assert strategy.rule is not None
        centre = strategy.rule.state_dict()["center"]
        assert centre.shape == (6,)
    assert seen == [5, 5, 7]
    assert strategy.rule == bz.CenteredClipping(radius=7.0)


# -- when the model is kept ------------------------------------------------------------------------


def kept(strategy: RobustStrategy, grid: Nodes, number: int = 1) -> str:
    after, metrics = one_round(strategy, grid, federation.model(), number)
    assert (after is None) == bool(strategy.rounds[-1].kept) == bool(metrics["kept"])
    if strategy.rounds[-1].kept:
        assert metrics[f"kept-{strategy.rounds[-1].cause}"] == 1
    return strategy.rounds[-1].cause


@pytest.mark.parametrize("rule", ["GeometricMedian()", "Median()", "Mean()", "TrimmedMean()"])
def test_more_rejected_than_f_keeps_the_model(rule: str) -> None:
    grid = nodes(5, bad("NaN"), bad("extra key"))
    assert kept(RobustStrategy(rule, f=2), grid) == ""
    assert kept(RobustStrategy(rule, f=1), grid) == "too-many-rejected"


def test_a_rejected_reply_is_one_of_the_f_and_an_absent_node_is_not() -> None:
    # Of 5, one is rejected: 4 usable, f - 1 = 1 of them bad, 3 are enough.
    assert kept(RobustStrategy("Median()", f=2), nodes(3, bad("NaN"), bad("opposite"))) == ""
    # Of 5, one is absent: 4 usable, f = 2 of them may be bad.
    grid = nodes(3, bad("silence"), bad("opposite"))
    assert kept(RobustStrategy("Median()", f=2), grid) == "no-majority"


def test_bad_nodes_that_are_all_rejected_leave_a_majority() -> None:
    assert kept(RobustStrategy("Median()", f=2), nodes(2, bad("NaN"), bad("inf"))) == ""


def test_one_honest_node_against_one_liar_keeps_the_model_and_ends_in_an_error() -> None:
    """NaN, a flipped sign and a node that is killed leave two replies of four."""
    grid = nodes(1, bad("NaN"), bad("opposite"), bad("silence"))
    strategy = RobustStrategy("GeometricMedian()", f=2, patience=2)
    assert kept(strategy, grid) == "no-majority"
    with pytest.raises(Standstill, match="2 rounds in a row, the last time because 2 usable"):
        kept(strategy, grid, 2)


def test_a_round_that_works_gives_patience_back() -> None:
    strategy = RobustStrategy("Median()", f=1, patience=2)
    for number in range(1, 9, 2):
        assert kept(strategy, nodes(2, bad("silence")), number) == "no-majority"
        assert kept(strategy, nodes(3), number + 1) == ""


def test_a_pipeline_that_is_not_defined_for_so_few_keeps_the_model() -> None:
    strategy = RobustStrategy("Bucketing(s=2) >> Krum()", f=1)
    assert kept(strategy, nodes(4, bad("1e30"))) == "undefined"
    assert list(strategy.rounds[-1].rejected) == [FIRST + 4]
    assert "Krum(f=1) needs at least" in strategy.rounds[-1].kept
    assert kept(strategy, nodes(9), 2) == ""


def test_nobody_replies_and_nothing_falls() -> None:
    grid = Nodes({FIRST + k: bad("silence") for k in range(4)})
    assert kept(RobustStrategy("Median()", f=1), grid) == "no-majority"
    grid = Nodes({FIRST + k: bad("a pickle") for k in range(4)})
    assert kept(RobustStrategy("Median()", f=1), grid) == "too-many-rejected"


def test_a_kept_model_leaves_the_state_of_the_rule_alone() -> None:
    strategy = RobustStrategy("CenteredClipping(radius=1)", f=1)
    assert kept(strategy, nodes(5)) == ""
    assert strategy.rule is not None
    before = strategy.rule.state_dict()["center"]
    assert kept(strategy, nodes(4, bad("NaN"), bad("inf")), 2) == "too-many-rejected"
    assert strategy.rule.state_dict()["center"].equal(before)


def test_too_few_nodes_end_in_an_error_and_not_in_an_endless_wait() -> None:
    strategy = RobustStrategy("Median()", f=1, min_available_nodes=5, node_timeout=0.01)
    with pytest.raises(
        TooFewNodes, match=r"3 nodes are connected after 0\.01 s, and a round needs 5"
    ):
        one_round(strategy, nodes(3), federation.plain())


# -- evaluation and metrics ------------------------------------------------------------------------


def evaluated(grid: Nodes, f: int = 1, **options: Any) -> tuple[RobustStrategy, MetricRecord]:
    strategy = RobustStrategy("Median()", f=f, **options)
    record = federation.record(federation.plain())
    messages = strategy.configure_evaluate(1, record, ConfigRecord(), grid)
    metrics = strategy.aggregate_evaluate(1, grid.send_and_receive(messages))
    assert metrics is not None
    return strategy, metrics


def says(**metrics: Any) -> federation.Node:
    return lambda message: federation.reply(message, None, **metrics)


GOOD = {"num_examples": 60, "accuracy": 0.9, "loss": 1.0}


@pytest.mark.parametrize(
    "lie",
    [
        {**GOOD, "more": 1.0},
        {"accuracy": 0.9},
        {**GOOD, "num_examples": -60},
        {**GOOD, "num_examples": float("nan")},
        {},
    ],
)
def test_hostile_evaluations_are_rejected_and_named(lie: dict[str, Any]) -> None:
    grid = Nodes({FIRST + k: says(**GOOD) for k in range(4)} | {BAD: says(**lie)})
    strategy, metrics = evaluated(grid)
    assert list(strategy.evaluations[0].rejected) == [BAD]
    assert (metrics["accuracy"], metrics["loss"], metrics["rejected"]) == (0.9, 1.0, 1)


@pytest.mark.parametrize(
    "lie",
    [
        {**GOOD, "accuracy": float("inf")},
        {**GOOD, "accuracy": float("nan")},
        {**GOOD, "accuracy": 1e9, "num_examples": 10**9},
        {**GOOD, "accuracy": [0.0, 1.0]},
        {**GOOD, "accuracy": []},
        {**GOOD, "accuracy": 10**400},
    ],
)
def test_metrics_are_medians_that_no_single_node_moves(lie: dict[str, Any]) -> None:
    grid = Nodes({FIRST + k: says(**GOOD) for k in range(4)} | {BAD: says(**lie)})
    _, metrics = evaluated(grid)
    assert metrics["accuracy"] == 0.9


def test_lists_of_metrics_have_a_median_in_each_place() -> None:
    values = [[1.0, 5.0], [2.0, 6.0], [3.0, 1e9]]
    grid = Nodes({FIRST + k: says(**GOOD, by_class=v) for k, v in enumerate(values)})
    _, metrics = evaluated(grid)
    assert metrics["by-class"] == [2.0, 6.0]


def test_evaluations_without_a_majority_are_not_aggregated() -> None:
    grid = Nodes({FIRST: says(**GOOD), FIRST + 1: says(**GOOD)})
    strategy, metrics = evaluated(grid)
    assert "accuracy" not in metrics
    assert metrics["kept-no-majority"] == 1
    assert strategy.evaluations[0].kept


def test_a_function_of_the_user_aggregates_the_metrics_of_usable_replies() -> None:
    given: list[int] = []

    def count(contents: list[RecordDict], key: str) -> MetricRecord:
        given.append(len(contents))
        return MetricRecord({"mine": 1.0})

    strategy = RobustStrategy("Median()", f=1, train_metrics_aggr_fn=count)
    _, metrics = one_round(strategy, nodes(4, bad("NaN")), federation.model())
    assert given == [4]
    assert metrics["mine"] == 1.0


def test_each_node_has_a_weight_and_a_distance() -> None:
    strategy = RobustStrategy("GeometricMedian()", f=1, node_metrics=True)
    _, metrics = one_round(strategy, nodes(6, bad("far away")), federation.model())
    liar = FIRST + 6
    (at,) = strategy.rounds
    assert sum(at.weights.values()) == pytest.approx(1)
    assert max(at.distances, key=at.distances.__getitem__) == liar
    assert min(at.weights, key=at.weights.__getitem__) == liar
    assert metrics[f"weight-{liar}"] == at.weights[liar]
    assert metrics[f"distance-{liar}"] == at.distances[liar]


# -- all rounds ------------------------------------------------------------------------------------


def test_a_run_goes_through_flowers_own_loop() -> None:
    strategy = RobustStrategy("Bucketing(s=2) >> GeometricMedian()", f=1, fraction_train=0.9)
    grid = nodes(9, bad("two replies"))
    result = strategy.start(grid, federation.record(federation.model()), num_rounds=3)
    final = federation.arrays_of(result.arrays)
    assert np.abs(moved(federation.model(), final) - 1.5).max() < 0.5
    assert [at.number for at in strategy.rounds] == [1, 2, 3]
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 0.9
    assert all(len(at.sampled) == 9 and at.connected == 10 for at in strategy.rounds)


# -- bytes -----------------------------------------------------------------------------------------

ARRAY = Array(np.arange(12, dtype=np.float32).reshape(3, 4))


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(ARRAY.data) - 1), st.integers(0, 255)), max_size=6
    ),
    cut=st.integers(0, len(ARRAY.data)),
    more=st.binary(max_size=20),
)
def test_damaged_bytes_are_an_array_of_the_right_kind_or_a_reason(
    changes: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    data = bytearray(ARRAY.data)
    for place, byte in changes:
        data[place] = byte
    damaged = Array("float32", (3, 4), "numpy.ndarray", bytes(data[:cut]) + more)
    model = model_of(ArrayRecord({"weight": ARRAY}))
    try:
        row = row_of(RecordDict({"arrays": ArrayRecord({"weight": damaged})}), model)
    except UnusableReply:
        return
    assert row["weight"].shape == (3, 4)
    assert row["weight"].dtype.newbyteorder("=") == np.float32


@given(header=st.text(max_size=80), version=st.integers(0, 4), length=st.integers(0, 200))
def test_made_up_headers_are_a_reason(header: str, version: int, length: int) -> None:
    data = b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(2, "little") + header.encode()
    damaged = Array("float32", (3, 4), "numpy.ndarray", data)
    with pytest.raises(UnusableReply):
        row_of(
            RecordDict({"arrays": ArrayRecord({"weight": damaged})}),
            model_of(ArrayRecord({"weight": ARRAY})),
        )


def test_arrays_are_read_where_they_lie() -> None:
    row = row_of(
        RecordDict({"arrays": ArrayRecord({"weight": ARRAY})}),
        model_of(ArrayRecord({"weight": ARRAY})),
    )
    assert not row["weight"].flags.owndata
    assert (row["weight"] == ARRAY.numpy()).all()


def test_a_model_that_no_rule_can_aggregate_is_an_error_at_once() -> None:
    with pytest.raises(bz.ByzantiumError, match="floating-point"):
        one_round(RobustStrategy("Median()", f=0), nodes(3), {"count": np.arange(3)})


PEAKS = """
import ctypes, gc, logging, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
import federation
from flwr.app import ConfigRecord
from byzantium._kernels import torch_passes as plain
from byzantium.engines.flower import RobustStrategy

logging.disable(logging.CRITICAL)

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))

def node(seed):
    def reply(message):
        rng, arrays = np.random.default_rng(seed), federation.received(message)
        sent = {k: a + rng.standard_normal(a.shape, dtype=np.float32) for k, a in arrays.items()}
        return federation.reply(message, sent, num_examples=1)
    return reply

def round_of(text, d):
    strategy = RobustStrategy(text, f=5)
    model = {str(k): np.zeros(d // 8, dtype=np.float32) for k in range(8)}
    grid = federation.Nodes({2**63 + k: node(k) for k in range(25)})
    messages = strategy.configure_train(1, federation.record(model), ConfigRecord(), grid)
    return strategy, grid.send_and_receive(messages)

# Blocks have a fixed size, which is much for these replies: here it is as small as they are.
plain.BLOCK_BYTES >>= 4
for text in ("Krum()", "Bucketing(s=2) >> GeometricMedian()", "Median()"):
    strategy, replies = round_of(text, 800_000)
    strategy.aggregate_train(1, replies)
    strategy, replies = round_of(text, 800_000)
    size = sum(len(a.data) for r in replies for a in r.content.array_records["arrays"].values())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert metrics["used"] == 25
    extra = (resident("VmHWM") - before) / size
    assert extra <= 0.25, f"{text} took {extra:.0%} of the replies"
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory needs Linux")
def test_peak_memory_beside_the_replies_is_at_most_a_quarter_of_them() -> None:
    here = str(SUPPORT)
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, here], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_later_versions_of_flower_know_is_passed_to_their_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Flower 1.43 adds `should_stop`, which the versions before it refuse."""
    strategy, grid = RobustStrategy("Mean()", f=0), Nodes(honest_ones(2))
    with pytest.raises(TypeError, match="should_stop"):
        strategy.start(grid, federation.record(federation.plain()), 1, should_stop=len)
    start, passed = FedAvg.start, []

    def later(self: FedAvg, *arguments: Any, should_stop: Any = None) -> Any:
        passed.append(should_stop)
        return start(self, *arguments)

    monkeypatch.setattr(FedAvg, "start", later)
    strategy.start(grid, federation.record(federation.plain()), 1, should_stop=len)
    assert passed == [len]
    assert len(strategy.rounds) == 1
