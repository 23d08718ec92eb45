"""Whether a state is one of a simulation: looked at as a whole, before anything is taken from it.

A file may be whole and hold anything. What passes here can be loaded and gone on with; the
simulation is as it was before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byzantium.learning.batches import Batches
from byzantium.learning.checkpoint import CheckpointError, OtherSimulationError, State

if TYPE_CHECKING:
    from byzantium.learning.simulation import Simulation


def check(training: Simulation, state: State) -> None:
    """Raise a `CheckpointError` unless the simulation can go on from this state."""
    check_result(training, state)
    wanted = {
        "seen": training.seen,
        "sent": training.sent if training.settings.momentum else None,
        "generators": {name: g.get_state() for name, g in training.generators.items()},
        "batches": training.batches.state_dict(),
        "own batches": training.own_batches.state_dict(),
    }
    for name, template in wanted.items():
        like(state.get(name), template, name)
    for generator in state["generators"].values():
        _check_generator(generator)
    for name, batches in (("batches", training.batches), ("own batches", training.own_batches)):
        _check_batches(batches, state[name], name)
    _try_rule_and_attack(training, state)
    _try_optimiser(training, state)


def check_result(training: Simulation, state: State) -> None:
    """The same of what a finished one leaves: its model and its history."""
    fingerprint = state.get("fingerprint")
    if not isinstance(fingerprint, str):
        raise CheckpointError("it is not the state of a simulation")
    if fingerprint != training.fingerprint():
        raise OtherSimulationError("this is the state of another simulation")
    like(state.get("model"), training.model.state_dict(), "model")
    like(state.get("history"), {"rounds": list, "evaluations": list, "status": str}, "history")
    _check_history(training, **state["history"])


def like(value: Any, template: Any, name: str) -> None:
    """Raise unless a value has the form of another one: names, lengths, shapes, types.

    A type stands for any value of it.
    """
    if isinstance(template, type):
        fits = type(value) is template
    elif isinstance(template, dict):
        fits = isinstance(value, dict) and value.keys() == template.keys()
    elif isinstance(template, list):
        fits = isinstance(value, list) and len(value) == len(template)
    elif isinstance(template, Tensor):
        fits = isinstance(value, Tensor) and _form(value) == _form(template)
    else:
        fits = type(value) is type(template)
    if not fits:
        raise CheckpointError(f"its {name} is not one of this simulation")
    if isinstance(template, dict):
        for key in template:
            like(value[key], template[key], name)
    elif isinstance(template, list):
        for item, other in zip(value, template, strict=True):
            like(item, other, name)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout, tensor.device


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Whatever goes wrong with a part is an error of the checkpoint."""
    try:
        yield
    except Exception as error:
        why = f"{type(error).__name__} {error}".partition("\n")[0][:200]
        raise CheckpointError(f"its {name} cannot be used: {why}") from error


# -- parts --------------------------------------------------------------------------------------


def _check_history(
    training: Simulation, rounds: list[Any], evaluations: list[Any], status: str
) -> None:
    settings, t = training.settings, len(rounds)
    diverged = status == f"diverged in round {t}"
    within = t < settings.rounds if status == "running" else t == settings.rounds
    if not (diverged and 0 < t <= settings.rounds) and not (
        status in ("running", "completed") and within
    ):
        raise CheckpointError(f"its history of {t} rounds is {status[:40]!r}")
    plain = [name for name in settings.record if name in ("distance", "spread", "norm")]
    for k, record in enumerate(rounds):
        template: dict[str, Any] = {"round": int, "loss": float, **dict.fromkeys(plain, float)}
        if "weights" in settings.record and (training.rule.weighs or training.evaluated(k)):
            template["weights"] = [float] * settings.n
        if "rejected" in settings.record:
            template["rejected"] = list
        if diverged and k + 1 == t and isinstance(record, dict):  # it ended amid the round
            template = {name: template[name] for name in template if name in record}
        like(record, template, "history")
        workers = record.get("rejected", [])
        for worker in workers:
            like(worker, int, "history")
        if record.get("round") != k + 1 or not set(workers) <= set(range(settings.n)):
            raise CheckpointError(f"its history has a strange round {k + 1}")
    looked = {"round": int, "loss": float, "accuracy": float}
    if "heterogeneity" in settings.record:
        looked |= {"zeta2": float, "b2": float}
    for evaluation in evaluations:
        like(evaluation, looked, "history")
    expected = [k + 1 for k in range(t - diverged) if training.evaluated(k)]
    if [evaluation["round"] for evaluation in evaluations] != expected:
        raise CheckpointError("its history lacks evaluations")


def _check_generator(state: Tensor) -> None:
    with _refusing("generators"):
        torch.Generator().set_state(state)


def _check_batches(batches: Batches, state: State, name: str) -> None:
    """Every worker holds its own samples, and is somewhere among them."""
    _check_generator(state["generator"])
    pieces = zip(batches.parts, batches.lengths, state["orders"], state["positions"], strict=True)
    for part, length, order, position in pieces:
        own = part.repeat(length // len(part))
        if not torch.equal(order.sort().values, own.sort().values) or not 0 <= position <= length:
            raise CheckpointError(f"its {name} hold samples of other workers")


def _try_rule_and_attack(training: Simulation, state: State) -> None:
    """What they remember is theirs alone to know: copies of them are tried on vectors of zeros."""
    settings = training.settings
    count = settings.participants or settings.n
    honest = min(count - 1, settings.n - settings.q) if settings.q else count
    rows = training.sent.new_zeros(count, training.gradients.d)
    with _refusing("rule"):
        rule = copy.deepcopy(training.rule)
        rule.load_state_dict(state["rule"])
        copy.deepcopy(rule)(rows, torch.Generator())
    with _refusing("attack"):
        attack = copy.deepcopy(training.attack)
        attack.load_state_dict(state["attack"])
        if 0 < honest < count:
            attack(
                rows[:honest],
                rows[honest:] if attack.needs_own else None,
                q=count - honest,
                rule=rule,
                epoch=training.batches.epoch,
                generator=torch.Generator(),
            )


def _try_optimiser(training: Simulation, state: State) -> None:
    """A copy of it takes a step; those that are not torch's own may not survive being copied."""
    with _refusing("optimiser"):
        if not type(training.optimiser).__module__.startswith("torch."):
            like(state["optimiser"], {"state": dict, "param_groups": list}, "optimiser")
            return
        optimiser = copy.deepcopy(training.optimiser)
        optimiser.load_state_dict(copy.deepcopy(state["optimiser"]))  # it takes tensors as they are
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
