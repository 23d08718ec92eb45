"""Whether the options of a training, its rule and its attack go together."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from byzantium.core import ByzantiumError
from byzantium.learning import metrics
from byzantium.learning.clocks import SYNCHRONOUS, parse_clock

if TYPE_CHECKING:
    from collections.abc import Collection

    from byzantium.attacks import Attack
    from byzantium.learning.settings import TrainingOptions
    from byzantium.rules import Aggregator, Mixing

#: Options that others must not go with: where one is set, these have their defaults.
EXCLUDED: dict[str, tuple[str, ...]] = {
    "clock": ("participants", "cache", "weights", "redundancy"),
    "topology": ("participants", "cache", "weights", "redundancy", "root", "clock"),
    "redundancy": ("participants", "weights"),
}


def check_workers(options: TrainingOptions) -> None:
    """Raise an error unless there are honest workers, enough participants and such a device."""
    n, attackers, participants = options.n, options.attacker_count, options.participants
    if attackers >= n:
        raise ByzantiumError(
            f"a simulation needs honest workers: attackers < n, got {attackers} of {n}"
        )
    if participants is not None and participants > n:
        raise ByzantiumError(f"a simulation needs participants <= n, got {participants} of {n}")
    _check_device(options.device)


def check_options(options: TrainingOptions) -> None:
    """Spell options in the usual way; raises an error unless they go together."""
    from byzantium.learning import losses  # imports torch

    check_workers(options)
    n = options.n
    if n % options.redundancy:
        raise ByzantiumError(
            "a simulation needs n to be a multiple of redundancy, because groups of so many "
            f"workers compute the same; got n={n}, redundancy={options.redundancy}"
        )
    clock = parse_clock(options.clock)
    if repr(clock) != SYNCHRONOUS:
        clock.check_size(n, options.attacker_count)
    object.__setattr__(options, "clock", repr(clock))
    try:
        object.__setattr__(options, "loss", losses.spelled(options.loss)[0])
    except ByzantiumError as error:
        raise ByzantiumError(f"a simulation needs a loss: {error}") from error
    if options.topology is not None:
        from byzantium.learning import topology  # imports NumPy

        object.__setattr__(options, "topology", topology.spelled(options.topology))
        topology.read(str(options.topology), n)
    _check_excluded(options)
    _check_record(options)


def check_rule(options: TrainingOptions, rule: Aggregator | Mixing, attack: Attack | None) -> None:
    """Raise an error where a rule or an attack needs what a training with these options lacks."""
    for one in (rule, attack):
        if one is not None and one.needs_root and not options.root:
            raise ByzantiumError(
                f"{one!r} needs root data, which the server holds and no worker has: root=10 "
                "(--root 10) holds out ten training samples of each class, got root=0"
            )
    if attack is not None and attack.needs_node and options.topology is None:
        raise ByzantiumError(
            f"{attack!r} sends to nodes of a graph: name one, such as topology='ring' "
            "(--topology ring), got a training with a server"
        )
    for stage in rule.stages:
        if options.redundancy % stage.redundancy:
            raise ByzantiumError(
                f"{stage!r} needs workers that compute the same: redundancy={stage.redundancy} "
                f"(--redundancy {stage.redundancy}) lets groups of so many do so, got redundancy="
                f"{options.redundancy}"
            )
    if rule.stages[-1].remembers_workers:
        for name in ("participants", "clock", "topology"):
            if _is_set(options, name):
                raise ByzantiumError(
                    f"{rule!r} remembers what each worker sent and needs all of them in each "
                    f"round, got {name}={getattr(options, name)!r}"
                )


def check_loop(options: TrainingOptions, name: str, has: Collection[str]) -> None:
    """Raise an error where a loop of this name has not what the options ask for."""
    for part, option, loop in (
        ("clock", "clock", "AsynchronousSimulation"),
        ("nodes", "topology", "DecentralizedSimulation"),
    ):
        if _is_set(options, option) and part not in has:
            raise ByzantiumError(
                f"a {name} takes no {option}, got {option}={getattr(options, option)!r}: {loop} "
                "does, and simulate() finds the right one"
            )


def _default(options: TrainingOptions, name: str) -> Any:
    return next(field.default for field in fields(options) if field.name == name)


def _is_set(options: TrainingOptions, name: str) -> bool:
    """Whether an option has another value than its default, or one that means the same."""
    value = getattr(options, name)
    return bool(value != _default(options, name)) and (name, value) != ("participants", options.n)


def _check_excluded(options: TrainingOptions) -> None:
    """Raise an error where two options are set that do not go together."""
    for name, excluded in EXCLUDED.items():
        for other in excluded if _is_set(options, name) else ():
            if _is_set(options, other):
                raise ByzantiumError(
                    f"a simulation with {name}={getattr(options, name)!r} needs "
                    f"{other}={_default(options, other)!r}, got {other}="
                    f"{getattr(options, other)!r}: omit one of them"
                )


def _check_record(options: TrainingOptions) -> None:
    """Raise an error unless each word of `record` names something that can be recorded."""
    known = metrics.words()
    if unknown := set(options.record) - set(known):
        raise ByzantiumError(
            f"a simulation can record {', '.join(known)}, got {', '.join(sorted(unknown))}"
        )
    if metrics.need_root(options.record) and not options.root:
        raise ByzantiumError(
            "a simulation can record 'root' only where the server holds root data, such as root=10 "
            "samples of each class, got root=0"
        )


def _check_device(name: str) -> None:
    """Raise an error unless torch knows such a device, on this machine or on another."""
    import torch

    try:
        torch.device(name)
    except (RuntimeError, ValueError) as error:
        raise ByzantiumError(
            f"a simulation needs a device that torch knows, such as 'cpu' or 'cuda:0', "
            f"got device={name[:80]!r}"
        ) from error
