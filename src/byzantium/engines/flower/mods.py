"""Mods for clients: momentum, without a change to their code; and misbehaviour, to rehearse."""

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
from byzantium.core import (
    ArgumentTypeError,
    ByzantiumError,
    Formula,
    Measure,
    notation,
    type_name,
)
from byzantium.engines.flower.replies import Arrays, record_of
from byzantium.engines.flower.vectors import change, moved
from byzantium.learning import Momentum

# Where a node keeps its momentum between rounds.
MOMENTUM = "byzantium.momentum"
# What layers of torch call the statistics that they keep beside their parameters.
STATISTICS = ("running_mean", "running_var")

Share = Annotated[float, Ge(0), Le(1)]


# -- momentum -------------------------------------------------------------------------------------


def worker_momentum(beta: float, without: Collection[str] = STATISTICS) -> Mod:
    r"""A mod with which a client sends the momentum of its changes to the model.

    .. math:: m_t = \beta m_{t-1} + (1 - \beta)\, \Delta_t, \qquad m_1 = \Delta_1

    where :math:`\Delta_t` is what the client changed in round t. It is what workers do in Algorithm
    2 of the bucketing paper. It begins anew where a node has lost its state, or the model has
    another shape. Entries of whole numbers have no momentum.

    - `beta`: how much of the last momentum stays, from 0 (none) to below 1.
    - `without`: the last parts of the names of entries that have no momentum. By default these are
      the statistics of batch normalisation, which are averages already; with momentum, a variance
      could become negative.

    Returns the mod, for Flower's ClientApp.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[worker_momentum(0.9)])
    """
    Momentum(beta)  # raises a sentence about a beta that cannot be

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        sent = _only(message.content.array_records)
        reply = call_next(message, context)
        if not _trains(message) or reply.has_error():
            return reply
        key, trained = _named(reply.content.array_records)
        if sent is None or trained is None or not _alike(sent, trained):
            return reply
        model, arrays = _numpy(sent), _numpy(trained)
        changes = {
            name: np.array(np.subtract(arrays[name], array, dtype=_wide(array)))
            for name, array in model.items()
            if array.dtype.kind == "f" and name.rpartition(".")[2] not in without
        }
        momentum = _remembered(context, beta, changes)
        momentum.update(changes)
        context.state[MOMENTUM] = record_of(
            {name: m.numpy() for name, m in (momentum.state_dict()["m"] or {}).items()}
        )
        for name, m in changes.items():
            arrays[name] = np.asarray(model[name] + m, dtype=model[name].dtype)
        reply.content[key] = record_of(arrays)
        return reply

    return mod


def _remembered(context: Context, beta: float, changes: Arrays) -> Momentum:
    """The momentum of the rounds before, if it is one of such changes; else a new one."""
    momentum, kept = Momentum(beta), context.state.get(MOMENTUM)
    if isinstance(kept, ArrayRecord) and kept.keys() == changes.keys():
        m = _numpy(kept)
        if all((m[k].shape, m[k].dtype) == (a.shape, a.dtype) for k, a in changes.items()):
            momentum.load_state_dict({"m": {k: torch.from_numpy(a) for k, a in m.items()}})
    return momentum


# -- misbehaviour ---------------------------------------------------------------------------------


class Misdeed(Formula):
    """A way in which one node misbehaves, without seeing what others send."""

    @abstractmethod
    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        """What it sends instead of its arrays; metrics are changed in place.

        In an evaluation there are no arrays.
        """


@dataclass(frozen=True, repr=False)
class Scaling(Misdeed):
    """Sends its own change times a factor; -10 points the opposite way, ten times as far."""

    factor: float = -10.0

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        return _changed(model, arrays, lambda own: self.factor * own)


@dataclass(frozen=True, repr=False)
class WrongShapes(Misdeed):
    """Sends every array flattened, and one number too long."""

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        return {key: np.append(a.reshape(-1), a.dtype.type(0)) for key, a in arrays.items()}


@dataclass(frozen=True, repr=False)
class ExtraKeys(Misdeed):
    """Sends one array and one metric too many."""

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        metrics["unexpected"] = 1.0
        return {**arrays, "unexpected": np.zeros(1, dtype=np.float32)}


@dataclass(frozen=True, repr=False)
class Claim(Misdeed):
    """Claims a false number of examples, and multiplies every other metric by a factor."""

    examples: float = 1e9
    factor: float = 1e6

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        for name, value in metrics.items():
            if not isinstance(value, list):
                metrics[name] = self.examples if name == "num-examples" else value * self.factor
        return arrays


@dataclass(frozen=True, repr=False)
class Silence(Misdeed):
    """Does not reply for so many seconds."""

    seconds: Measure = 3600.0

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        time.sleep(self.seconds)
        return arrays


@dataclass(frozen=True, repr=False)
class Failure(Misdeed):
    """Fails with an error instead of a reply."""

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        raise RuntimeError("this node fails on purpose")


@dataclass(frozen=True, repr=False)
class Exit(Misdeed):
    """Ends the process of the client, with a probability in each round.

    In a simulation, other clients share that process.
    """

    probability: Share = 0.5

    def done(self, model: Arrays, arrays: Arrays, metrics: MetricRecord) -> Arrays:
        if random.random() < self.probability:
            os._exit(66)
        return arrays


MISDEEDS = {
    kind.__name__: kind for kind in (Scaling, WrongShapes, ExtraKeys, Claim, Silence, Failure, Exit)
}
# Attacks for which a node needs to see nobody else, and no labels.
ALONE = (NoAttack, BitFlip, GaussianNoise, NonFinite)


def byzantine(attack: Attack | Misdeed | str) -> Mod:
    """A mod that makes a client misbehave, to rehearse what a federation stands.

    It changes what the client changed of the model, or its metrics. Attackers that must see what
    others send are rehearsed in the strategy: `RobustStrategy(..., rehearse=attack, nodes=2)`.

    - `attack`: an attack that a node can make alone: `BitFlip()`, `GaussianNoise()`, `NonFinite()`;
      or one of these, as a text: Scaling(factor), WrongShapes(), ExtraKeys(), Claim(examples,
      factor), Silence(seconds), Failure() and Exit(probability).

    Returns the mod, for Flower's ClientApp.

    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[byzantine("Scaling(factor=-10)")])
    """
    deed = misbehaviour(attack)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        sent = _only(message.content.array_records)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        key, trained = _named(reply.content.array_records)
        _, metrics = _named(reply.content.metric_records)
        metrics = MetricRecord() if metrics is None else metrics
        model, arrays = ({} if record is None else _numpy(record) for record in (sent, trained))
        if isinstance(deed, Misdeed):
            arrays = deed.done(model, arrays, metrics)
        elif trained is not None:
            arrays = _changed(model, arrays, lambda own: deed(own, own))
        elif isinstance(deed, NonFinite):
            metrics.update({name: float("nan") for name in metrics})
        if trained is not None:
            reply.content[key] = record_of(arrays)
        return reply

    return mod


def misbehaviour(attack: Attack | Misdeed | str) -> Attack | Misdeed:
    """The attack or misdeed that a text names; raises an error if one node cannot do it alone."""
    if isinstance(attack, str):
        name = attack.partition("(")[0].strip()
        text = attack if "(" in attack else f"{attack}()"
        attack = notation.read(text, MISDEEDS) if name in MISDEEDS else parse_attack(text)
    if isinstance(attack, Misdeed) or type(attack) in ALONE:
        return attack
    if isinstance(attack, Attack):
        raise ByzantiumError(
            f"{attack!r} must see what other nodes send; the strategy rehearses it: "
            "RobustStrategy(..., rehearse=attack, nodes=2)"
        )
    raise ArgumentTypeError(f"byzantine needs an attack or its notation, got {type_name(attack)}")


def _changed(model: Arrays, arrays: Arrays, attack: Callable[[Tensor], Tensor]) -> Arrays:
    """The model, moved by what an attack makes of the change, as a matrix of one row."""
    if not arrays or not _alike(record_of(model), record_of(arrays)):
        return arrays
    own = torch.from_numpy(change(model, arrays))[None]
    return moved(model, arrays, attack(own)[0].numpy())


# -- records --------------------------------------------------------------------------------------


def _trains(message: Message) -> bool:
    return message.metadata.message_type.partition(".")[0] == "train"


def _named(records: Mapping[str, Any]) -> tuple[str, Any]:
    """The only record of its kind, and its name."""
    return next(iter(records.items())) if len(records) == 1 else ("", None)


def _only(records: Mapping[str, Any]) -> Any:
    return _named(records)[1]


def _numpy(record: Mapping[str, Array]) -> Arrays:
    return {key: array.numpy() for key, array in record.items()}


def _alike(one: Mapping[str, Array], other: Mapping[str, Array]) -> bool:
    kinds = [{k: (a.dtype, tuple(a.shape)) for k, a in arrays.items()} for arrays in (one, other)]
    return kinds[0] == kinds[1]


def _wide(array: np.ndarray[Any, Any]) -> Any:
    return np.float64 if array.dtype.itemsize == 8 else np.float32
