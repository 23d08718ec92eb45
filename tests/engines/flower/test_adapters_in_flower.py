"""Clients that send LoRA factors: their products are aggregated, and factors come back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from federation import FIRST, Arrays, Nodes, arrays_of, received, record, reply
from flwr.app import Message

import byzantium as bz
from byzantium.engines.federation.space import ArraySpace, space_of
from byzantium.engines.flower import RobustStrategy

A, B = "q.lora_A.weight", "q.lora_B.weight"


def model(rank: int = 3) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        A: rng.normal(size=(rank, 8)).astype(np.float32),
        B: np.zeros((6, rank), dtype=np.float32),
        "head.bias": np.zeros(4, dtype=np.float32),
        "steps": np.array(7, dtype=np.int64),
    }


def product(arrays: Mapping[str, Any], scale: float = 1.0) -> Any:
    return scale * np.asarray(arrays[B], dtype=float) @ np.asarray(arrays[A], dtype=float)


def turned(arrays: Arrays, seed: int) -> Arrays:
    """The same products in another basis."""
    M = np.random.default_rng(seed).normal(size=(len(arrays[A]),) * 2)
    b, a = arrays[B] @ M, np.linalg.solve(M, arrays[A].astype(float))
    return {**arrays, A: a.astype(np.float32), B: b.astype(np.float32)}


def node(k: int, size: float = 1.0, log: list[Arrays] | None = None) -> Any:
    """A node that adds its own change to the product, in a basis of its own."""

    def answer(message: Message) -> Message:
        arrays = received(message)
        rng = np.random.default_rng(int(message.metadata.group_id))
        own = np.random.default_rng([k, int(message.metadata.group_id)])
        b = arrays[B] + size * (
            rng.normal(size=arrays[B].shape) + 0.1 * own.normal(size=arrays[B].shape)
        )
        sent = {
            **arrays,
            B: b.astype(np.float32),
            "head.bias": arrays["head.bias"] + np.float32(size),
        }
        sent = turned(sent, k)
        if log is not None:
            log.append(sent)
        return reply(message, sent, num_examples=60)

    return answer


def trained(strategy: RobustStrategy, nodes: dict[int, Any], rounds: int, **start: Any) -> Arrays:
    result = strategy.start(
        Nodes(nodes), record(start.get("model", model())), num_rounds=rounds, timeout=9
    )
    return arrays_of(result.arrays)


def strategy(rule: str = "GeometricMedian()", f: int = 1, **options: Any) -> RobustStrategy:
    return RobustStrategy(rule, f=f, fraction_evaluate=0.0, min_available_nodes=4, **options)


@pytest.mark.parametrize(
    "rule", ["Mean()", "GeometricMedian()", "Krum()", "NearestNeighborMixing() >> Mean()"]
)
def test_products_are_aggregated_and_cut_to_the_rank(rule: str) -> None:
    log: list[Arrays] = []
    robust = strategy(rule)
    result = trained(robust, {FIRST + k: node(k, log=log) for k in range(6)}, 1)
    rows = [
        {"q": torch.from_numpy(product(row)), "bias": torch.from_numpy(row["head.bias"])}
        for row in log
    ]
    start = {"q": torch.zeros(6, 8, dtype=torch.float64), "bias": torch.zeros(4)}
    expected = bz.parse_rule(rule, f=1).explain(rows, base=start)
    U, s, V = np.linalg.svd(expected.aggregate["q"].numpy())
    assert np.allclose(product(result), U[:, :3] * s[:3] @ V[:3], atol=1e-5)
    assert result["head.bias"].tolist() == [1.0] * 4
    assert result["steps"] == 7
    at = robust.rounds[0]
    assert np.allclose(list(at.weights.values()), expected.weights, atol=1e-5)
    far = [float(np.linalg.norm(product(row) - product(result))) for row in log]
    assert np.allclose(list(at.distances.values()), far, rtol=1e-4)
    dense = np.array([product(row).ravel() for row in log])
    spread = ((dense - dense.mean(axis=0)) ** 2).sum(axis=1).mean()
    assert at.spread_to_mean == pytest.approx(
        spread / ((dense.mean(axis=0) ** 2).sum() + 4), rel=1e-4
    )
    assert {name: (a.shape, a.dtype) for name, a in result.items()} == {
        name: (a.shape, a.dtype) for name, a in model().items()
    }


TARGET = np.random.default_rng(5).normal(size=(6, 3)) @ np.random.default_rng(6).normal(size=(3, 8))


def towards(k: int, size: float) -> Any:
    """A node that goes half of the way to a target, or some multiple of it."""

    def answer(message: Message) -> Message:
        arrays = received(message)
        own = TARGET + 0.02 * np.random.default_rng(k).normal(size=TARGET.shape)
        U, s, V = np.linalg.svd(product(arrays) + size * (own - product(arrays)))
        b, a = U[:, :3] * s[:3], V[:3]
        sent = {**arrays, A: a.astype(np.float32), B: b.astype(np.float32)}
        return reply(message, turned(sent, k), num_examples=60)

    return answer


def test_many_rounds_with_an_attacker() -> None:
    nodes = {FIRST + k: towards(k, 0.5) for k in range(5)} | {FIRST + 5: towards(5, -9.0)}
    size = float(np.linalg.norm(TARGET))
    ours = trained(strategy(), nodes, 6)
    assert np.linalg.norm(product(ours) - TARGET) < 0.1 * size
    mean = trained(strategy("Mean()"), nodes, 6)
    assert np.linalg.norm(product(mean) - TARGET) > size


def test_the_factors_are_aggregated_if_the_user_says_so() -> None:
    log: list[Arrays] = []
    result = trained(
        strategy("Median()", adapters=False), {FIRST + k: node(k, log=log) for k in range(5)}, 1
    )
    assert np.allclose(result[A], np.median([row[A] for row in log], axis=0), atol=1e-5)


def test_scales_come_from_the_configuration_of_the_server() -> None:
    """They say how much products count beside other arrays, and the factors come back the same."""
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 12, "alpha_pattern": {}}
    nodes = {FIRST + k: node(k) for k in range(5)}
    plain, scaled = (trained(strategy("Mean()", adapters=one), nodes, 1) for one in (True, config))
    assert np.allclose(product(plain), product(scaled), atol=1e-5)
    robust = strategy("Clipping(radius=1) >> Mean()", adapters=config)
    result = trained(robust, nodes, 1)
    change = np.append(product(result, 4.0).ravel(), result["head.bias"])
    assert np.linalg.norm(change) <= 1 + 1e-5


@pytest.mark.parametrize("spoil", ["NaN", "huge", "shape", "names", "text"])
def test_one_poisoned_reply_is_rejected(spoil: str) -> None:
    def poisoned(message: Message) -> Message:
        arrays = received(message)
        if spoil == "NaN":
            arrays[B] = np.full_like(arrays[B], np.nan)
        elif spoil == "huge":
            arrays[B], arrays[A] = np.full_like(arrays[B], 1e20), arrays[A] * np.float32(1e5)
        elif spoil == "shape":
            arrays[A] = arrays[A][:2]
        elif spoil == "names":
            arrays["q.lora_A.other.weight"] = arrays.pop(A)
        else:
            arrays[B] = np.full(arrays[B].shape, "x")
        return reply(message, arrays, num_examples=60)

    robust = strategy("Krum()")
    nodes = {FIRST + k: node(k) for k in range(5)} | {FIRST + 9: poisoned}
    result = trained(robust, nodes, 2)
    assert all(set(at.rejected) == {FIRST + 9} for at in robust.rounds)
    assert np.isfinite(product(result)).all()


def test_a_root_update_of_factors() -> None:
    def root(arrays: Arrays) -> Arrays:
        return {**turned({**arrays, B: arrays[B] + 1}, 99), "head.bias": arrays["head.bias"]}

    honest: Any = lambda message: reply(message, root(received(message)), num_examples=60)  # noqa: E731
    nodes = {FIRST + k: node(k, size=-30.0) for k in range(3)} | {
        FIRST + 7: honest,
        FIRST + 8: honest,
    }
    robust = RobustStrategy(
        "RootMatching()", f=3, root=root, fraction_evaluate=0.0, min_available_nodes=5
    )
    result = trained(robust, nodes, 1)
    expected = product(root(model()))
    assert np.allclose(product(result), expected, atol=0.1 * abs(expected).max())
    at = robust.rounds[0]
    assert at.root_norm == pytest.approx(float(np.linalg.norm(expected)), rel=1e-5)
    assert at.root_norm is not None
    assert at.root_distance is not None
    assert at.root_distance < 0.1 * at.root_norm


def test_a_server_that_was_killed_goes_on(tmp_path: Path) -> None:
    nodes = {FIRST + k: towards(k, 0.5) for k in range(5)}
    whole = trained(strategy(), nodes, 4)
    trained(strategy(folder=tmp_path), nodes, 2)
    resumed = trained(strategy(folder=tmp_path), nodes, 4)
    assert np.allclose(product(resumed), product(whole), atol=1e-5)


def test_factors_of_zero_stay_trainable() -> None:
    still: Any = lambda message: reply(message, received(message), num_examples=60)  # noqa: E731
    result = trained(strategy(), {FIRST + k: still for k in range(5)}, 1)
    assert not result[B].any()
    assert (np.linalg.norm(result[A], axis=1) > 0.1).all()


@pytest.mark.parametrize(
    ("rule", "options", "error"),
    [
        ("Median()", {}, r"needs their coordinates: take a rule by weights"),
        ("CenteredClipping(radius=1)", {}, "holds a center from round to round"),
        ("Krum()", {"optimizer": torch.optim.Adam}, "no optimizer= can move"),
        ("Krum()", {"adapters": "yes"}, "adapters must be True, False or the configuration"),
        ("Krum()", {"adapters": {"peft_type": "LOHA"}}, "not LORA"),
    ],
)
def test_what_makes_no_sense_with_products(rule: str, options: Any, error: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=error):
        trained(strategy(rule, **options), {FIRST + k: node(k) for k in range(5)}, 1)


def test_which_arrays_are_products() -> None:
    def names(*keys: str) -> str:
        return repr(space_of({key: np.ones((2, 2), dtype=np.float32) for key in keys}, True))

    assert names("a.q.lora_A.weight", "a.q.lora_B.weight") == "AdapterSpace(a.q)"
    assert names("q.lora_A.default.weight", "q.lora_B.default.weight") == "AdapterSpace(q.default)"
    assert names("e.lora_embedding_A", "e.lora_embedding_B") == "AdapterSpace(e)"
    assert names("lora_A", "lora_B") == "AdapterSpace()"
    for keys in (("q.lora_B.weight",), ("q.weight",), ("q.lora_A.weight", "v.lora_B.weight")):
        arrays = {key: np.ones((2, 2), dtype=np.float32) for key in keys}
        assert type(space_of(arrays, True)) is ArraySpace
    with pytest.raises(bz.ByzantiumError, match="DoRA"):
        names("q.lora_A.weight", "q.lora_B.weight", "q.lora_magnitude_vector")


def test_kernels_of_convolutions() -> None:
    rng = np.random.default_rng(0)
    start = {
        "c.lora_A.weight": rng.normal(size=(2, 3, 3, 3)).astype(np.float32),
        "c.lora_B.weight": np.zeros((4, 2, 1, 1), dtype=np.float32),
    }

    def other(message: Message) -> Message:
        arrays = received(message)
        arrays["c.lora_B.weight"] = arrays["c.lora_B.weight"] + np.float32(1)
        return reply(message, arrays, num_examples=60)

    result = trained(strategy(), {FIRST + k: other for k in range(5)}, 1, model=start)
    assert result["c.lora_B.weight"].shape == (4, 2, 1, 1)
    whole = result["c.lora_B.weight"].reshape(4, 2) @ result["c.lora_A.weight"].reshape(2, 27)
    expected = np.ones((4, 2)) @ start["c.lora_A.weight"].reshape(2, 27)
    assert np.allclose(whole, expected, atol=1e-5)
