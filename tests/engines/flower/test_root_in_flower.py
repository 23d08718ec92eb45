"""Federations whose server holds data that it trusts: synthetic replies, real strategies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
from federation import FIRST, Arrays, Nodes, honest_ones, one_round
from flwr.app import ArrayRecord

from byzantium.engines.flower import RobustStrategy
from byzantium.learning import RootUpdate
from byzantium.runs import Store


def away(message: Any) -> Any:
    """A node that sends the opposite of what honest ones send, a little longer."""
    arrays = federation.changed(federation.received(message), lambda key, a: -0.7)
    return federation.reply(message, arrays, num_examples=60, loss=1.0)


def grid(honest: int, bad: int) -> Nodes:
    return Nodes({**honest_ones(honest), **{FIRST + honest + k: away for k in range(bad)}})


def good_root(model: Arrays) -> Arrays:
    """What an honest node would send."""
    return federation.changed(model, lambda key, a: 0.52)


def change(before: Arrays, after: Any) -> np.ndarray[Any, Any]:
    """All floating-point numbers, as changes."""
    parts = [
        np.ravel(np.asarray(after[key], dtype=float) - before[key].astype(float))
        for key in before
        if before[key].dtype.kind == "f"
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("f", "honest", "bad"), [(0.2, 8, 2), (2, 8, 2), (0.6, 4, 6), (9, 1, 9)], ids=str
)
def test_the_result_is_near_the_root_also_where_most_nodes_are_bad(
    f: float, honest: int, bad: int
) -> None:
    before, calls = federation.model(), []

    def root(model: Arrays) -> Arrays:
        calls.append(model)
        for key, array in model.items():
            assert np.array_equal(array, before[key])
            array[...] = 0  # it is a copy
        return good_root(before)

    strategy = RobustStrategy("RootMatching()", f=f, root=root)
    after, metrics = one_round(strategy, grid(honest, bad), before)
    assert after is not None
    assert len(calls) == 1
    assert np.abs(change(before, after) - 0.5).max() < 0.2
    # The norms that are recorded, computed from the models alone.
    g0, out = change(before, good_root(before)), change(before, after)
    assert metrics["root-norm"] == pytest.approx(np.linalg.norm(g0), rel=1e-6)
    assert metrics["root-distance"] == pytest.approx(np.linalg.norm(g0 - out), rel=1e-4, abs=1e-6)
    (at,) = strategy.rounds
    assert (at.root_norm, at.root_distance) == (metrics["root-norm"], metrics["root-distance"])
    if bad < 9:
        assert sum(at.weights[FIRST + honest + k] for k in range(bad)) < 0.1


def test_the_result_is_that_of_the_rule_on_the_changes() -> None:
    before, nodes = federation.plain(), grid(6, 2)
    after, _ = one_round(RobustStrategy("RootMatching()", f=2, root=good_root), nodes, before)
    assert after is not None
    replies: list[Any] = [nodes.nodes[m.metadata.dst_node_id](m) for m in nodes.sent[0]]
    rows = [federation.arrays_of(one.content.array_records["arrays"]) for one in replies]
    X = torch.from_numpy(np.stack([change(before, row) for row in rows]))
    expected = bz.RootMatching(f=2)(X, root=torch.from_numpy(change(before, good_root(before))))
    assert np.allclose(change(before, after), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("form", ["arrays", "tensors", "record", "another order"])
def test_the_root_may_have_any_form_of_a_model(form: str) -> None:
    forms: dict[str, Callable[[Arrays], Any]] = {
        "arrays": lambda arrays: arrays,
        "tensors": lambda arrays: {k: torch.from_numpy(np.array(a)) for k, a in arrays.items()},
        "record": federation.record,
        "another order": lambda arrays: dict(reversed(arrays.items())),
    }
    before = federation.model()
    strategy = RobustStrategy("RootMatching()", f=1, root=lambda m: forms[form](good_root(m)))
    after, metrics = one_round(strategy, grid(4, 1), before)
    expected, _ = one_round(
        RobustStrategy("RootMatching()", f=1, root=good_root), grid(4, 1), before
    )
    assert after is not None
    assert expected is not None
    assert np.allclose(change(before, after), change(before, expected), atol=1e-6)
    assert metrics["root-norm"] == pytest.approx(np.linalg.norm(change(before, good_root(before))))


# -- when the strategy is made --------------------------------------------------------------------


@pytest.mark.parametrize("f", [1, 0.2])
@pytest.mark.parametrize("rule", ["RootMatching()", "Bucketing(s=2) >> FLTrust()", bz.FLTrust()])
def test_a_rule_that_needs_a_root_is_refused_without_one(rule: Any, f: float) -> None:
    with pytest.raises(bz.ByzantiumError, match=r"needs root=.*RootUpdate makes one"):
        RobustStrategy(rule, f=f)
    RobustStrategy(rule, f=f, root=good_root)


@pytest.mark.parametrize("f", [1, 0.2])
@pytest.mark.parametrize("rule", ["Krum()", "Bucketing(s=2) >> Median()", bz.Median()])
def test_a_root_that_nobody_uses_is_refused(rule: Any, f: float) -> None:
    with pytest.raises(bz.ByzantiumError, match=r"does not use root=.*in vain"):
        RobustStrategy(rule, f=f, root=good_root)
    with pytest.raises(bz.ByzantiumError, match=r"needs 0 <= f < 0\.5"):
        RobustStrategy(rule, f=0.6)


@pytest.mark.parametrize("root", [None, good_root])
@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("Zeno()", "tries steps of gradients, but clients send models"),
        ("Safeguard()", "the nodes of a federation come and go"),
        ("ByzantineSGD(v=1, t_a=9, t_b=9)", "the nodes of a federation come and go"),
    ],
)
def test_rules_for_trainings_alone_are_refused(rule: str, sentence: str, root: Any) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence):
        RobustStrategy(rule, f=1, root=root)


def test_a_root_is_a_function() -> None:
    with pytest.raises(TypeError, match="root must be a function of the global model, got"):
        RobustStrategy("RootMatching()", f=1, root={"weight": np.zeros(3)})  # type: ignore[arg-type]


def test_a_function_of_n_may_use_a_root_or_not() -> None:
    calls = []

    def root(model: Arrays) -> Arrays:
        calls.append(1)
        return good_root(model)

    def rule(n: int) -> str:
        return "RootMatching()" if n > 5 else "Median()"

    strategy = RobustStrategy(rule, f=1, root=root)
    _, metrics = one_round(strategy, grid(4, 1), federation.plain(), 1)
    assert not calls
    assert "root-norm" not in metrics
    one_round(strategy, grid(5, 1), federation.plain(), 2)
    assert len(calls) == 1
    with pytest.raises(bz.ByzantiumError, match="needs root="):
        one_round(RobustStrategy(rule, f=1), grid(5, 1), federation.plain())


# -- a root that goes wrong -----------------------------------------------------------------------


def broken(model: Arrays) -> Arrays:
    raise OSError("no space\nleft on device")


def changed_entry(key: str, array: Any) -> Callable[[Arrays], Any]:
    return lambda model: {**good_root(model), key: array}


WRONG: dict[str, tuple[Callable[[Arrays], Any], str]] = {
    "raises": (broken, "root= failed in round 3: OSError: no space left on device"),
    "nothing": (
        lambda model: None,
        "root= returned a NoneType in round 3, but must return a model",
    ),
    "a list": (lambda model: list(model.values()), "root= returned a list in round 3"),
    "NaN": (
        changed_entry("weight", np.full(6, np.nan, dtype=np.float32)),
        "cannot be used in round 3: the root holds numbers that are not finite",
    ),
    "infinity": (
        changed_entry("weight", np.full(6, np.inf, dtype=np.float32)),
        "cannot be used in round 3: the root holds numbers that are not finite",
    ),
    "a shape": (
        changed_entry("weight", np.zeros((6, 1), dtype=np.float32)),
        "cannot be used in round 3: the root has the shape",
    ),
    "a dtype": (changed_entry("weight", np.zeros(6)), "in round 3: the root has the dtype"),
    "one more": (changed_entry("more", np.zeros(6)), "in round 3: the root"),
    "one less": (lambda model: {}, "in round 3: the root"),
    "text": (changed_entry("weight", "text"), "in round 3: the root"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_root_is_one_error_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    wrong, told = WRONG[kind]
    calls = []

    def root(model: Arrays) -> Any:
        calls.append(1)
        return wrong(model) if len(calls) == 3 else good_root(model)

    def strategy(function: Callable[[Arrays], Any]) -> RobustStrategy:
        return RobustStrategy(
            "RootMatching()", f=1, root=function, folder=tmp_path, fraction_evaluate=0.0
        )

    model = federation.record(federation.plain())
    nodes = grid(4, 1)
    with pytest.raises(bz.ByzantiumError) as caught:
        strategy(root).start(nodes, model, 4)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(nodes.sent) == 2, "nobody trained for a round that could not be"
    (result,) = Store(tmp_path)
    assert result.status == "failed"
    assert "round 3" in result.reason
    assert [line["round"] for line in result.metrics] == [1, 2]
    # The next start goes on after round 2, to the same model as without the fault.
    again = strategy(good_root)
    found = federation.arrays_of(again.start(grid(4, 1), model, 4).arrays)["weight"]
    assert [at.number for at in again.rounds] == [3, 4]
    whole = RobustStrategy("RootMatching()", f=1, root=good_root, fraction_evaluate=0.0)
    expected = federation.arrays_of(whole.start(grid(4, 1), model, 4).arrays)["weight"]
    assert np.allclose(found, expected, rtol=1e-5)


def test_the_folder_has_the_distances_of_each_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The root of the second round points away: its distance is larger than its norm."""
    roots = iter([0.52, -0.1])

    def root(model: Arrays) -> Arrays:
        size = next(roots)
        return federation.changed(model, lambda key, a: size)

    strategy = RobustStrategy(
        "RootMatching()", f=1, root=root, folder=tmp_path, fraction_evaluate=0.0
    )
    with caplog.at_level("INFO", logger="flwr"):
        strategy.start(grid(5, 0), federation.record(federation.plain()), 2)
    (result,) = Store(tmp_path)
    first, second = result.metrics
    assert first["root_norm"] == pytest.approx(0.52 * 6**0.5, rel=1e-5)
    assert first["root_distance"] < first["root_norm"]
    assert second["root_norm"] == pytest.approx(0.1 * 6**0.5, rel=1e-5)
    assert second["root_distance"] > second["root_norm"]
    lines = [json.loads(s) for s in (result.folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["root_distance"] for line in lines] == [
        first["root_distance"],
        second["root_distance"],
    ]
    told = [record for record in caplog.records if "root update has the norm" in record.message]
    assert [record.levelname for record in told] == ["INFO", "WARNING"]


def test_a_root_update_of_zero_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    strategy = RobustStrategy("RootMatching()", f=1, root=lambda model: model)
    with caplog.at_level("WARNING", logger="flwr"):
        after, metrics = one_round(strategy, grid(4, 1), federation.plain())
    assert after is not None
    assert metrics["root-norm"] == 0
    assert "root= returned the model unchanged" in caplog.text


def test_too_few_replies_leave_the_model_unchanged() -> None:
    """With a root one honest reply is enough; none is not."""
    strategy = RobustStrategy("FLTrust()", f=3, root=good_root)
    silent = {FIRST + 10 + k: lambda message: None for k in range(3)}
    nodes = Nodes({**honest_ones(4), **silent})
    after, metrics = one_round(strategy, nodes, federation.plain(), 1)
    assert after is not None
    assert metrics["used"] == 4
    nodes = Nodes({**honest_ones(3), **silent, FIRST + 20: lambda message: None})
    after, metrics = one_round(strategy, nodes, federation.plain(), 2)
    assert after is None
    assert metrics["kept-no-honest"] == 1
    assert "root-distance" not in metrics


# -- with a model ---------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2)
    )


def data(seed: int, n: int = 60) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    y = (x[:, 0] > x[:, 1]).long()
    return [(x[k : k + 20], y[k : k + 20]) for k in range(0, n, 20)]


def client(seed: int) -> federation.Node:
    """A node that trains a model, as the root does."""
    local = RootUpdate(network(), data(seed), learning_rate=0.3, seed=seed)

    def node(message: Any) -> Any:
        return federation.reply(message, local(federation.received(message)), num_examples=60)

    return node


def flipped(message: Any) -> Any:
    local = RootUpdate(network(), [(x, 1 - y) for x, y in data(99)], learning_rate=0.3)
    return federation.reply(message, local(federation.received(message)), num_examples=60)


def accuracy(arrays: ArrayRecord) -> float:
    model = network().eval()
    model.load_state_dict(arrays.to_torch_state_dict())
    x = torch.cat([one for one, _ in data(7, 400)])
    y = torch.cat([one for _, one in data(7, 400)])
    return float((model(x).argmax(1) == y).float().mean())


def test_a_federation_learns_although_most_nodes_flip_labels(tmp_path: Path) -> None:
    """Batch normalization, its counter, dropout and momentum included; interrupted, it goes on."""
    start = ArrayRecord(network().state_dict())

    def run(rule: str, folder: Path | None, rounds: int, **options: Any) -> ArrayRecord:
        nodes: dict[int, federation.Node] = {FIRST + k: client(k) for k in range(3)}
        nodes |= {FIRST + 3 + k: flipped for k in range(4)}
        strategy = RobustStrategy(rule, folder=folder, fraction_evaluate=0.0, **options)
        arrays = strategy.start(Nodes(nodes), start, rounds).arrays
        assert arrays is not None
        return arrays

    def root() -> RootUpdate:
        return RootUpdate(network(), data(5, 20), learning_rate=0.3, momentum=0.5)

    with_root = run("RootMatching()", None, 6, f=4, root=root())
    assert accuracy(with_root) > 0.9
    assert accuracy(run("Mean()", None, 6, f=0)) < 0.5
    run("RootMatching()", tmp_path, 3, f=4, root=root())
    resumed = run("RootMatching()", tmp_path, 6, f=4, root=root())
    # Clients start again, with what they drew in their first rounds; the root does not.
    assert accuracy(resumed) > 0.9


def test_the_state_of_a_root_is_part_of_the_checkpoints(tmp_path: Path) -> None:
    def run(folder: Path, rounds: int) -> RootUpdate:
        root = RootUpdate(network(), data(5, 20), momentum=0.5)
        nodes = Nodes({FIRST + k: client(k) for k in range(3)})
        options: dict[str, Any] = {"folder": folder, "fraction_evaluate": 0.0}
        strategy = RobustStrategy("RootMatching()", f=1, root=root, **options)
        strategy.start(nodes, ArrayRecord(network().state_dict()), rounds)
        return root

    first = run(tmp_path, 2)
    assert first.calls == 2
    later = run(tmp_path, 3)
    assert later.calls == 3
    m, before = later.momentum.state_dict()["m"], first.momentum.state_dict()["m"]
    assert m.keys() == before.keys()
    assert not torch.equal(m["0.weight"], before["0.weight"])
