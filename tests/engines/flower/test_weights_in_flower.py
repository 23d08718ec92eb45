"""Federations whose operator vouches for the sizes of sites."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import FIRST, Arrays, Nodes, honest_ones
from flwr.app import ConfigRecord, MetricRecord

from byzantium.engines.flower import RobustStrategy
from byzantium.runs import Store


def sends(value: float, **claims: float) -> Callable[[Any], Any]:
    """A node that changes every parameter by a number."""

    def respond(message: Any) -> Any:
        arrays = federation.changed(federation.received(message), lambda key, a: value)
        return federation.reply(message, arrays, **{"num_examples": 60, "loss": 1.0, **claims})

    return respond


def one_round(
    strategy: RobustStrategy, nodes: Nodes, number: int = 1
) -> tuple[Arrays | None, MetricRecord]:
    model = federation.model()
    messages = strategy.configure_train(number, federation.record(model), ConfigRecord(), nodes)
    arrays, metrics = strategy.aggregate_train(number, nodes.send_and_receive(messages))
    assert metrics is not None
    return None if arrays is None else federation.arrays_of(arrays), metrics


def change(after: Arrays | None) -> float:
    """By how much every floating-point parameter changed."""
    assert after is not None
    before = federation.model()
    changes = [
        np.ravel(after[key].astype(float) - array)
        for key, array in before.items()
        if array.dtype.kind == "f"
    ]
    return float(np.concatenate(changes).mean())


NODES = {FIRST: sends(1.0), FIRST + 1: sends(2.0), FIRST + 2: sends(4.0)}


@pytest.mark.parametrize("form", ["mapping", "function"])
def test_nodes_count_as_much_as_the_operator_says(form: str) -> None:
    sizes = {FIRST: 5.0, FIRST + 1: 3.0, FIRST + 2: 2.0}
    weights: Any = sizes if form == "mapping" else sizes.__getitem__
    strategy = RobustStrategy("Mean()", f=0, weights=weights)
    after, metrics = one_round(strategy, Nodes(NODES))
    assert change(after) == pytest.approx((5 * 1 + 3 * 2 + 2 * 4) / 10, abs=1e-3)
    assert strategy.rounds[0].weights == pytest.approx({FIRST: 0.5, FIRST + 1: 0.3, FIRST + 2: 0.2})
    assert metrics["heard"] == metrics["vouched-used"] == 1
    assert metrics["near-zero"] == 0


def test_what_a_node_claims_does_not_count() -> None:
    nodes = Nodes({**NODES, FIRST: sends(1.0, num_examples=10**9)})
    strategy = RobustStrategy("Mean()", f=0, weights=dict.fromkeys(NODES, 1.0))
    assert change(one_round(strategy, nodes)[0]) == pytest.approx(7 / 3, abs=1e-3)


def test_nobody_gains_weight_by_joining() -> None:
    """A node for which nobody vouches is not even asked."""
    strategy = RobustStrategy("Median()", f=0, weights={FIRST: 2.0, FIRST + 1: 1.0, FIRST + 7: 9.0})
    after, metrics = one_round(strategy, Nodes({**NODES, FIRST + 3: sends(1e6)}))
    assert strategy.rounds[0].sampled in ((FIRST, FIRST + 1), (FIRST + 1, FIRST))
    assert metrics["sampled"] == 2
    assert change(after) == pytest.approx(1.0, abs=1e-3)


def test_an_absent_node_takes_its_weight_with_it() -> None:
    nodes = Nodes({**NODES, FIRST + 3: lambda message: None})
    weights = {FIRST: 1.0, FIRST + 1: 1.0, FIRST + 2: 2.0, FIRST + 3: 4.0}
    strategy = RobustStrategy("Mean()", f=0, weights=weights)
    after, metrics = one_round(strategy, nodes)
    assert change(after) == pytest.approx((1 + 2 + 2 * 4) / 4, abs=1e-3)
    assert metrics["vouched-used"] == pytest.approx(0.5)


def test_a_round_whose_byzantine_nodes_can_hold_half_leaves_the_model_unchanged() -> None:
    weights = {FIRST: 1.0, FIRST + 1: 1.0, FIRST + 2: 2.0}
    for rule in ("GeometricMedian()", "TrimmedMean()"):
        strategy = RobustStrategy(rule, f=1, weights=weights)
        after, metrics = one_round(strategy, Nodes(NODES))
        assert after is None
        assert metrics["kept"] == 1
        assert "50 % of the weight" in strategy.rounds[0].kept
    strategy = RobustStrategy("GeometricMedian()", f=1, weights={**weights, FIRST + 2: 1.9})
    assert one_round(strategy, Nodes(NODES))[0] is not None


def test_a_rejected_node_takes_its_weight_out_of_f() -> None:
    """One node can hold 5 of 9; the rejected one held 4 of them."""
    weights = {FIRST + k: weight for k, weight in enumerate([1.0, 1.0, 1.5, 1.5, 4.0])}
    nodes = Nodes({**honest_ones(4), FIRST + 4: sends(np.nan)})
    strategy = RobustStrategy("GeometricMedian()", f=1, weights=weights)
    after, metrics = one_round(strategy, nodes)
    assert metrics["rejected"] == 1
    assert after is not None


def test_a_rule_that_takes_no_weights_is_refused_at_once() -> None:
    with pytest.raises(bz.ByzantiumError, match="takes no weights"):
        RobustStrategy("Krum()", f=1, weights={1: 1.0})
    with pytest.raises(bz.ByzantiumError, match="needs weights >= 0"):
        RobustStrategy("Median()", f=1, weights={1: -1.0})
    with pytest.raises(bz.ByzantiumError, match="a mapping from sites to numbers"):
        RobustStrategy("Median()", f=1, weights=[1.0])  # type: ignore[arg-type]


def test_trust_counts_in_units_of_what_the_operator_vouches_for() -> None:
    weights = {FIRST: 8.0, FIRST + 1: 1.0, FIRST + 2: 1.0}
    strategy = RobustStrategy("Mean()", f=0, weights=weights)
    for number in range(1, 7):
        one_round(strategy, Nodes(NODES), number)
    assert [strategy.trust.workers[node].weight for node in weights] == pytest.approx([1, 1, 1])
    assert not strategy.trust.unheard()


def test_the_folder_says_what_was_vouched_and_heard(tmp_path: Path) -> None:
    weights = {FIRST: 5.0, FIRST + 1: 3.0, FIRST + 2: 2.0}
    strategy = RobustStrategy("Median()", f=0, weights=weights, folder=tmp_path)
    assert strategy.record is not None
    with strategy.record.open():
        one_round(strategy, Nodes(NODES))
    (folder,) = (path.parent for path in tmp_path.rglob("rounds.jsonl"))
    (line,) = map(json.loads, (folder / "rounds.jsonl").read_text().splitlines())
    assert line["vouched"] == {str(node): weight for node, weight in weights.items()}
    assert line["heard"] == pytest.approx(0.8)  # half of the first, and all of the second
    assert len(list(Store(tmp_path))) == 1


def test_an_attack_is_rehearsed_with_the_weights() -> None:
    weights = {FIRST + k: float(1 + k) for k in range(6)}
    strategy = RobustStrategy(
        "TrimmedMean()", f=1, weights=weights, rehearse="Adaptive(budget=10)", nodes=[FIRST + 5]
    )
    assert one_round(strategy, Nodes(honest_ones(6)))[0] is not None
