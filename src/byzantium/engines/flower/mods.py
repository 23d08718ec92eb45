"""Mods for clients: momentum without a change to their code, and Byzantine behavior to rehearse."""

from __future__ import annotations

import os
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from byzantium.attacks import Attack, BitFlip, GaussianNoise, NoAttack, NonFinite, parse_attack
from byzantium.core import ArgumentTypeError, ByzantiumError, Formula, Measure, notation, type_name
from byzantium.engines.federation.vectors import (
    Arrays,
    apply_change,
    change_vector,
    layout,
    wide_dtype,
)
from byzantium.engines.flower.replies import record_of
from byzantium.learning import Momentum

# The name of the momentum in the state of a node.
MOMENTUM = "byzantium.momentum"
# The names of statistics in layers of torch, which are no parameters.
STATISTICS = ("running_mean", "running_var")

Share = Annotated[float, Ge(0), Le(1)]


def worker_momentum(beta: float, without: Collection[str] = STATISTICS) -> Mod:
    r"""A mod that lets a client send the momentum of its changes to the model.

    .. math:: m_t = \beta m_{t-1} + (1 - \beta)\, \Delta_t, \qquad m_1 = \Delta_1

    where :math:`\Delta_t` is the change of the client in round t, as in Algorithm 2 of the
    bucketing paper. It starts again if a node has lost its state, or the model has another shape.
    Entries of integers have no momentum.

    - `beta`: the factor of the previous momentum, from 0 (no momentum) to below 1.
    - `without`: the last parts of the names of entries that have no momentum. By default these are
      the statistics of batch normalization, which are averages already; with momentum, a variance
      could become negative.

    Returns the mod, for Flower's ClientApp.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[worker_momentum(0.9)])
    """
    Momentum(beta)  # raises an error if beta is out of range

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        received = _only_record(message.content.array_records)
        reply = call_next(message, context)
        trains = message.metadata.message_type.partition(".")[0] == "train"
        if not trains or reply.has_error():
            return reply
        key, sent = _only_item(reply.content.array_records)
        if received is None or sent is None or layout(received) != layout(sent):
            return reply
        model, arrays = _numpy(received), _numpy(sent)
        changes = {
            name: np.array(np.subtract(arrays[name], array, dtype=wide_dtype(array)))
            for name, array in model.items()
            if array.dtype.kind == "f" and name.rpartition(".")[2] not in without
        }
        momentum, record = Momentum(beta), context.state.get(MOMENTUM)
        if isinstance(record, ArrayRecord) and layout(last := _numpy(record)) == layout(changes):
            before = {name: torch.from_numpy(array) for name, array in last.items()}
            momentum.load_state_dict({"m": before})
        momentum.update(changes)
        context.state[MOMENTUM] = record_of(
            {name: m.numpy() for name, m in (momentum.state_dict()["m"] or {}).items()}
        )
        for name, m in changes.items():
            arrays[name] = np.asarray(model[name] + m, dtype=model[name].dtype)
        reply.content[key] = record_of(arrays)
        return reply

    return mod


class Fault(Formula):
    """A fault of one node, which does not see what others send."""

    @abstractmethod
    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        """The arrays that it sends instead of its own; metrics are changed in place.

        In an evaluation there are no arrays.
        """


@dataclass(frozen=True, repr=False)
class Scaling(Fault):
    """Sends its own change times a factor; -10 means the opposite direction, ten times as far."""

    factor: float = -10.0

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        return _attack_change(model, arrays, lambda own: self.factor * own)


@dataclass(frozen=True, repr=False)
class WrongShapes(Fault):
    """Sends every array flattened, with one additional number."""

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        return {key: np.append(a.reshape(-1), a.dtype.type(0)) for key, a in arrays.items()}


@dataclass(frozen=True, repr=False)
class ExtraKeys(Fault):
    """Sends one additional array and one additional metric."""

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        metrics["unexpected"] = 1.0
        return {**arrays, "unexpected": np.zeros(1, dtype=np.float32)}


@dataclass(frozen=True, repr=False)
class Claim(Fault):
    """Claims a false number of examples, and multiplies every other metric by a factor."""

    examples: float = 1e9
    factor: float = 1e6

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        for name, value in metrics.items():
            if not isinstance(value, list):
                metrics[name] = self.examples if name == "num-examples" else value * self.factor
        return arrays


@dataclass(frozen=True, repr=False)
class Silence(Fault):
    """Replies only after some seconds."""

    seconds: Measure = 3600.0

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        time.sleep(self.seconds)
        return arrays


@dataclass(frozen=True, repr=False)
class Failure(Fault):
    """Fails with an error instead of a reply."""

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        raise RuntimeError("this node fails on purpose")


@dataclass(frozen=True, repr=False)
class Exit(Fault):
    """Ends the process of the client in each round with some probability.

    In a simulation, other clients share that process.
    """

    probability: Share = 0.5

    def apply(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        if random.random() < self.probability:
            os._exit(66)
        return arrays


FAULTS = {
    kind.__name__: kind for kind in (Scaling, WrongShapes, ExtraKeys, Claim, Silence, Failure, Exit)
}
# Attacks for which a node needs neither the vectors of others nor labels.
LOCAL_ATTACKS = (NoAttack, BitFlip, GaussianNoise, NonFinite)


def byzantine(attack: Attack | Fault | str) -> Mod:
    """A mod that makes a client Byzantine, to rehearse what a federation tolerates.

    It changes the model or the metrics that the client sends. The strategy rehearses attackers that
    must see what others send: `RobustStrategy(..., rehearse=attack, nodes=2)`.

    - `attack`: an attack for which a node needs no others: `BitFlip()`, `GaussianNoise()`,
      `NonFinite()`; or a fault, as text: Scaling(factor), WrongShapes(), ExtraKeys(),
      Claim(examples, factor), Silence(seconds), Failure() or Exit(probability).

    Returns the mod, for Flower's ClientApp.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[byzantine("Scaling(factor=-10)")])
    """
    behavior = parse_behavior(attack)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        received = _only_record(message.content.array_records)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        key, sent = _only_item(reply.content.array_records)
        metrics = _only_record(reply.content.metric_records)
        metrics = MetricRecord() if metrics is None else metrics
        model, arrays = ({} if record is None else _numpy(record) for record in (received, sent))
        if isinstance(behavior, Fault):
            arrays = behavior.apply(model, arrays, metrics)
        elif sent is not None:
            arrays = _attack_change(model, arrays, lambda own: behavior(own, own))
        elif isinstance(behavior, NonFinite):
            metrics.update({name: float("nan") for name in metrics})
        if sent is not None:
            reply.content[key] = record_of(arrays)
        return reply

    return mod


def parse_behavior(attack: Attack | Fault | str) -> Attack | Fault:
    """An attack or a fault, from an object or text; raises an error if it needs other nodes."""
    if isinstance(attack, str):
        name = attack.partition("(")[0].strip()
        text = attack if "(" in attack else f"{attack}()"
        attack = notation.read(text, FAULTS) if name in FAULTS else parse_attack(text)
    if isinstance(attack, Fault) or type(attack) in LOCAL_ATTACKS:
        return attack
    if isinstance(attack, Attack):
        raise ByzantiumError(
            f"{attack!r} must see what other nodes send; the strategy rehearses it: "
            "RobustStrategy(..., rehearse=attack, nodes=2)"
        )
    raise ArgumentTypeError(f"byzantine needs an attack or its notation, got {type_name(attack)}")


def _attack_change(model: Arrays, arrays: Arrays, attack: Callable[[Tensor], Tensor]) -> Arrays:
    """The model, changed by what an attack makes of the change, as a matrix of one row."""
    if not arrays or layout(model) != layout(arrays):
        return arrays
    own = torch.from_numpy(change_vector(model, arrays))[None]
    return apply_change(model, arrays, attack(own)[0].numpy())


def _only_item(records: Mapping[str, Any]) -> tuple[str, Any]:
    """The name of the only record and the record; None if there is not exactly one."""
    return next(iter(records.items())) if len(records) == 1 else ("", None)


def _only_record(records: Mapping[str, Any]) -> Any:
    return _only_item(records)[1]


def _numpy(record: Mapping[str, Array]) -> Arrays:
    return {key: array.numpy() for key, array in record.items()}
