"""Checks of a whole state, before a simulation loads any part of it.

An intact file may hold anything. A simulation can load a state that passes, and go on from it; one
that does not pass leaves the simulation unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from byzantium.core import ByzantiumError, one_line
from byzantium.core.options import identity_fields
from byzantium.learning.checkpoint import CheckpointError, OtherSimulationError, State
from byzantium.learning.history import History
from byzantium.learning.randomness import Randomness
from byzantium.learning.worker import Momentum

if TYPE_CHECKING:
    from byzantium.learning.loop import Loop
    from byzantium.learning.simulation import Simulation


@contextmanager
def checkpoint_errors(name: str) -> Iterator[None]:
    """Turn any error that a part of a state causes into a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        why = one_line(f"{type(error).__name__} {error}")
        raise CheckpointError(f"its {name} cannot be used: {why}") from error


def fingerprint(training: Loop) -> str:
    """A text of all settings; a checkpoint fits only a simulation with the same one."""
    shapes = [tuple(p.shape) for p in training.gradients.parameters.values()]
    values = identity_fields(training.settings)
    values.pop("device", None)  # a simulation may go on on another device
    last = list(values).index("seed") + 1  # the options that were added later follow it
    first, later = list(values.items())[:last], list(values.items())[last:]
    if training.randomness.name != Randomness.name:
        later.append(("randomness", training.randomness.name))
    if not isinstance(training.worker, Momentum):
        later.append(("worker", repr(training.worker)))
    settings = ", ".join(f"{name}={value!r}" for name, value in first)
    data, optimizer = training.data, type(training.optimizer).__name__
    return (
        f"Settings({settings}) {training.rule!r} {training.attack!r} {training.partition!r} "
        f"{data.name} {len(data.train_y)} {optimizer} {shapes}"
        + "".join(f" {name}={value}" for name, value in later)
    )


@checkpoint_errors("state")
def check(training: Loop, state: State) -> History:
    """The history of this state; a `CheckpointError` unless the simulation can go on from it."""
    history = check_result(training, state)
    templates = {
        "seen": training.workers.seen,
        "sent": training.sent if training.keeps_rows else None,
        "worker": training.worker.state or None,
        "generators": {name: g.get_state() for name, g in training.generators.items()},
        "batches": training.batches.state_dict(),
        "own batches": training.own_batches.state_dict(),
        **training._state_forms(history),
    }
    for name, template in templates.items():
        check_form(state.get(name), template, name)
    for name, generator in training.generators.items():
        check_generator(generator, state["generators"][name])
    for name, batches in (("batches", training.batches), ("own batches", training.own_batches)):
        if batches.generator is not None:
            check_generator(batches.generator, state[name]["generator"])
        with checkpoint_errors(name):
            fits = batches.fits(state[name])
        if not fits:
            raise CheckpointError(f"its {name} hold samples of other workers")
    training._try_state(state)
    return history


@checkpoint_errors("state")
def check_result(training: Loop, state: State) -> History:
    """The history of a result: the model and the history of a finished simulation."""
    text = state.get("fingerprint")
    if not isinstance(text, str):
        raise CheckpointError("it is not the state of a simulation")
    if text != training.fingerprint():
        raise OtherSimulationError("this is the state of another simulation")
    check_form(state.get("model"), training.model.state_dict(), "model")
    check_form(
        state.get("history"), {"rounds": list, "evaluations": list, "status": str}, "history"
    )
    return _check_history(training, state["history"])


def check_form(value: Any, template: Any, name: str) -> None:
    """Raise an error unless a value has the form of a template: names, lengths, shapes, types.

    A type in a template stands for any value of it.
    """
    parts: list[tuple[Any, Any]] = []
    if isinstance(template, type):
        fits = type(value) is template
    elif isinstance(template, dict):
        fits = isinstance(value, dict) and value.keys() == template.keys()
        parts = [(value[key], template[key]) for key in template] if fits else []
    elif isinstance(template, list):
        fits = isinstance(value, list) and len(value) == len(template)
        parts = list(zip(value, template, strict=True)) if fits else []
    elif isinstance(template, Tensor):
        fits = isinstance(value, Tensor) and _form(value) == _form(template)
    else:
        fits = type(value) is type(template)
    if not fits:
        raise CheckpointError(f"its {name} is not one of this simulation")
    for part, other in parts:
        check_form(part, other, name)


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.layout, tensor.device


def _check_history(training: Loop, state: State) -> History:
    """The history, whose rounds must be as many as its status says, with all metrics."""
    try:
        history = History.of(state)
    except ByzantiumError as error:
        raise CheckpointError(str(error)) from None
    settings, t = training.settings, len(history.rounds)
    diverged = history.status == "diverged"
    bounds = {
        "running": range(settings.rounds),
        "completed": [settings.rounds],
        "diverged": range(1, settings.rounds + 1),
    }
    if t not in bounds[history.status]:
        raise CheckpointError(f"its history of {t} rounds is {history.outcome!r}")
    # The forms of metrics in the record of a round; those that are not listed are numbers.
    forms: dict[str, Any] = {"shares": [float] * settings.n, "edges": list, "workers": list}
    for k, record in enumerate(history.rounds):
        # Checkpoints of earlier versions have no early metrics.
        early = isinstance(record, dict) and "early_heterogeneity" in record
        measured = training.round_metrics(k, early and k < training.early_rounds)
        template = {"round": int, **{m.key: forms.get(m.kind, float) for m in measured}}
        if isinstance(record, dict) and (
            (diverged and k + 1 == t) or (settings.cache and record.keys() == {"round", "loss"})
        ):
            # The round in which it diverged ended before everything was measured; so does one in
            # which too few workers were heard.
            template = {name: template[name] for name in template if name in record}
        check_form(record, template, "history")
        for metric in measured:
            if metric.kind == "edges":
                edges = record.get(metric.key, [])
                check_form(edges, [float] * len(edges), "history")
            if metric.kind == "workers":
                workers = record.get(metric.key, [])
                check_form(workers, [int] * len(workers), "history")
                if not set(workers) <= set(range(settings.n)):
                    among = f"are not among the {settings.n}"
                    raise CheckpointError(f"its history names workers that {among}")
        if record.get("round") != k + 1:
            raise CheckpointError(f"its history has another number for round {k + 1}")
    template = {"round": int, **{m.key: float for m in training.evaluation_metrics()}}
    for evaluation in history.evaluations:
        check_form(evaluation, template, "history")
    expected = [k + 1 for k in range(t - diverged) if training.is_evaluated(k)]
    if [evaluation["round"] for evaluation in history.evaluations] != expected:
        raise CheckpointError("its history lacks evaluations")
    return history


def check_generator(generator: torch.Generator, state: Tensor) -> None:
    """Only the generator knows its states: load this one, then its own again."""
    before = generator.get_state()
    with checkpoint_errors("generators"):
        try:
            generator.set_state(state)
        finally:
            generator.set_state(before)


def try_rule_and_attack(training: Simulation, state: State) -> None:
    """Only rule and attack know their states: try copies of them on vectors of zeros."""
    settings = training.settings
    count = settings.vectors
    honest = min(count - 1, settings.n - settings.attackers) if settings.attackers else count
    rows = training.sent.new_zeros(count, training.gradients.d)
    root = None if training.root is None else rows.new_zeros(training.gradients.d)
    with checkpoint_errors("rule"):
        rule = copy.deepcopy(training.rule)
        rule.load_state_dict(state["rule"])
        trusted = rule.trusted(root, lambda step: 0.0)
        copy.deepcopy(rule)(rows, torch.Generator(), root=trusted)
    with checkpoint_errors("attack"):
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
                root=root,
                model=rows[0],
                step_loss=lambda aggregate: 0.0,
                root_loss=lambda step: 0.0,
                last_aggregate=state.get("last aggregate"),
            )


def try_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Let a copy of the optimizer take a step; one that is not torch's cannot always be copied."""
    with checkpoint_errors("optimizer"):
        if not type(optimizer).__module__.startswith("torch."):
            check_form(state["optimizer"], {"state": dict, "param_groups": list}, "optimizer")
            return
        optimizer = copy.deepcopy(optimizer)
        # An optimizer uses the tensors that it loads, and changes them: it gets a copy.
        optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
