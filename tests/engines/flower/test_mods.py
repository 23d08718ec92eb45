"""Mods of Flower's clients: momentum without a change to their code, and misbehaviour."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch

import byzantium as bz

pytest.importorskip(
    "flwr", reason="flwr is not installed: pip install '.[flower]' runs Flower's tests"
)

import federation
import flower_quickstart
from federation import Arrays
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import Mod

from byzantium.engines.flower import RobustStrategy, byzantine, worker_momentum
from byzantium.engines.flower.mods import FAULTS, MOMENTUM

Train = Callable[[Message, Context], Message]


def context() -> Context:
    return Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})


def message(model: Arrays, kind: str = "train") -> Message:
    content = RecordDict({"arrays": federation.record(model)})
    return Message(content, dst_node_id=2, message_type=kind, group_id="1")


def client(change: float) -> Train:
    """A client of the user, which knows nothing of mods."""

    def train(got: Message, state: Context) -> Message:
        if got.metadata.message_type == "evaluate":
            return federation.reply(got, None, num_examples=5, loss=1.0)
        arrays = federation.changed(federation.received(got), lambda key, a: change)
        return federation.reply(got, arrays, num_examples=5, loss=1.0)

    return train


def sent_by(mod: Mod, change: float, state: Context, model: Arrays | None = None) -> Message:
    return mod(message(federation.model() if model is None else model), state, client(change))


def change_of(reply: Message, model: Arrays | None = None) -> float:
    model = federation.model() if model is None else model
    arrays = federation.arrays_of(next(iter(reply.content.array_records.values())))
    changes = {k: arrays[k] - a for k, a in model.items() if a.dtype.kind == "f" and a.size}
    values = np.concatenate([np.ravel(change.astype(float)) for change in changes.values()])
    assert np.ptp(values) < 2e-3  # half precision is among them
    return float(np.median(values))


def test_a_client_sends_the_momentum_of_its_changes() -> None:
    mod, state = worker_momentum(0.9), context()
    first = sent_by(mod, 1.0, state)
    assert change_of(first) == pytest.approx(1.0, abs=1e-3)
    second = sent_by(mod, 2.0, state)
    assert change_of(second) == pytest.approx(0.9 * 1.0 + 0.1 * 2.0, abs=1e-3)
    arrays = federation.arrays_of(second.content.array_records["arrays"])
    for key, array in federation.model().items():
        assert (arrays[key].dtype, arrays[key].shape) == (array.dtype, array.shape)


def test_without_momentum_nothing_changes() -> None:
    state = context()
    for change in (1.0, 2.0):
        assert change_of(sent_by(worker_momentum(0.0), change, state)) == pytest.approx(change)


@pytest.mark.parametrize(
    "lost",
    [
        lambda state: state.state.clear(),
        lambda state: state.state.update({MOMENTUM: ArrayRecord()}),
        lambda state: state.state.update(
            {MOMENTUM: ArrayRecord({"weight": Array(np.zeros(3, dtype=np.float32))})}
        ),
    ],
)
def test_a_node_that_lost_its_state_begins_again(lost: Callable[[Context], None]) -> None:
    mod, state = worker_momentum(0.9), context()
    sent_by(mod, 1.0, state)
    lost(state)
    assert change_of(sent_by(mod, 2.0, state)) == pytest.approx(2.0, abs=1e-3)


def test_a_model_of_another_shape_begins_again() -> None:
    mod, state = worker_momentum(0.9), context()
    sent_by(mod, 1.0, state)
    other = federation.plain()
    assert change_of(sent_by(mod, 2.0, state, other), other) == pytest.approx(2.0)


def test_momentum_leaves_evaluations_and_errors_alone() -> None:
    state = context()
    reply = worker_momentum(0.9)(message(federation.plain(), "evaluate"), state, client(1.0))
    assert MOMENTUM not in state.state
    assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 5, "loss": 1.0}


def test_the_statistics_of_a_normalisation_have_no_momentum() -> None:
    """A variance that went on shrinking would be negative in the second round."""
    mod, state = worker_momentum(0.9), context()
    name = "norm.running_var"
    for before, change in ((1.0, -0.9), (0.1, 0.0)):
        model = {name: np.array([before], dtype=np.float32), **federation.plain()}
        arrays = sent_by(mod, change, state, model).content.array_records["arrays"]
        assert arrays[name].numpy() == pytest.approx(before + change)


@pytest.mark.parametrize("beta", [1.0, -0.1, float("nan")])
def test_a_beta_that_cannot_be_is_refused_when_the_mod_is_made(beta: float) -> None:
    with pytest.raises(bz.ByzantiumError, match="beta"):
        worker_momentum(beta)


# -- misbehaviour ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "change"),
    [
        (bz.BitFlip(), -1.0),
        ("BitFlip", -1.0),
        ("Scaling(factor=-10)", -10.0),
        ("NoAttack()", 1.0),
    ],
)
def test_a_node_sends_what_an_attack_makes_of_its_change(
    attack: bz.Attack | str, change: float
) -> None:
    reply = sent_by(byzantine(attack), 1.0, context())
    assert change_of(reply) == pytest.approx(change, abs=1e-2)


@pytest.mark.parametrize(
    "attack", ["NonFinite()", "WrongShapes()", "ExtraKeys()", "Claim(examples=-1)"]
)
def test_a_rehearsed_misdeed_is_rejected_by_the_strategy(attack: str) -> None:
    def node(mod: Mod | None) -> federation.Node:
        if mod is None:
            return lambda got: client(1.0)(got, context())
        return lambda got: mod(got, context(), client(1.0))

    liar = federation.FIRST + 4
    grid = federation.Nodes({federation.FIRST + k: node(None) for k in range(4)})
    grid.nodes[liar] = node(byzantine(attack))
    strategy = RobustStrategy("Median()", f=1)
    strategy.start(grid, federation.record(federation.model()), num_rounds=1)
    assert list(strategy.rounds[0].rejected) == [liar]


def test_a_failing_node_raises_and_a_silent_one_waits() -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        sent_by(byzantine("Failure"), 1.0, context())
    assert change_of(sent_by(byzantine("Silence(seconds=0)"), 1.0, context())) == pytest.approx(
        1.0, abs=1e-3
    )
    assert change_of(sent_by(byzantine("Exit(probability=0)"), 1.0, context())) == pytest.approx(
        1.0, abs=1e-3
    )


@pytest.mark.parametrize("attack", ["InnerProduct()", "Mimic()", "LabelFlip()", "MinMax()"])
def test_attacks_that_see_everybody_are_sent_to_the_strategy(attack: str) -> None:
    with pytest.raises(bz.ByzantiumError, match="rehearse=attack"):
        byzantine(attack)


def test_every_misdeed_is_written_as_it_is_read() -> None:
    for name, kind in FAULTS.items():
        assert repr(kind()) == f"{name}()"


# -- a client of somebody else ---------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["Bucketing(s=2) >> GeometricMedian()", "TrimmedMean()"])
def test_a_client_of_flowers_quickstart_works_unchanged(rule: str) -> None:
    """With two that misbehave: it learns, and what counts batches stays whole."""

    def node(k: int) -> federation.Node:
        state = Context(1, k, {"partition-id": k, "num-partitions": 7}, RecordDict(), {})
        mods = {0: [byzantine("NonFinite()")], 1: [byzantine("Scaling(-10)")]}.get(k, [])
        app = flower_quickstart.app

        def reply(got: Message) -> Message:
            call: Train = lambda message, context: app(message=message, context=context)  # noqa: E731
            for mod in [worker_momentum(0.5), *mods]:
                call = functools.partial(lambda mod, call, m, c: mod(m, c, call), mod, call)
            return call(got, state)

        return reply

    torch.manual_seed(0)
    strategy = RobustStrategy(rule, f=2)
    grid = federation.Nodes({federation.FIRST + k: node(k) for k in range(7)})
    initial = ArrayRecord(flower_quickstart.Net().state_dict())
    result = strategy.start(grid, initial, 5, train_config=ConfigRecord({"lr": 0.05}))
    scores = [m["eval_acc"] for m in result.evaluate_metrics_clientapp.values()]
    assert float(scores[-1]) > 0.7, scores  # type: ignore[arg-type]
    assert all(list(at.rejected) == [federation.FIRST] for at in strategy.rounds)
    counted = result.arrays["norm.num_batches_tracked"].numpy()
    assert counted.dtype == np.int64
    assert counted == 5 * 8
    flower_quickstart.Net().load_state_dict(result.arrays.to_torch_state_dict())
