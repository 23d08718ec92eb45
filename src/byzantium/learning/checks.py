"""Whether the options of a training, its rule and its attack go together."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from byzantium.core import ByzantiumError, one_line
from byzantium.learning import metrics
from byzantium.learning.clocks import SYNCHRONOUS, parse_clock

if TYPE_CHECKING:
    from collections.abc import Collection

    from byzantium.attacks import Attack
    from byzantium.learning.settings import TrainingOptions
    from byzantium.rules import Aggregator, Mixing

logger = logging.getLogger("byzantium")

# What this process warned of already.
_WARNED: set[str] = set()

#: Options that others must not go with: where one is set, these have their defaults.
EXCLUDED: dict[str, tuple[str, ...]] = {
    "clock": ("participants", "cache", "weights", "redundancy"),
    "topology": ("participants", "cache", "weights", "redundancy", "root", "clock"),
    "redundancy": ("participants", "weights"),
}


def check_workers(options: TrainingOptions) -> None:
    """Raise an error unless there are honest workers, enough participants and such a device.

    Of a graph, whether there is such a one; its name is then spelled in the usual way.
    """
    n, attackers, participants = options.n, options.attacker_count, options.participants
    if attackers >= n:
        raise ByzantiumError(
            f"a simulation needs honest workers: attackers < n, got {attackers} of {n}"
        )
    if participants is not None and participants > n:
        raise ByzantiumError(f"a simulation needs participants <= n, got {participants} of {n}")
    _check_device(options.device)
    if options.topology is not None:
        from byzantium.learning import topology  # imports NumPy

        _spell(options, "topology", topology.spelled(options.topology))
        topology.read(str(options.topology), n)


def check_options(options: TrainingOptions) -> None:
    """Spell options in the usual way; raises an error unless they go together."""
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
    _spell(options, "clock", repr(clock))
    _spell(options, "loss", spelled_loss(options.loss))
    _check_excluded(options)
    _check_record(options)


def spelled_loss(loss: str) -> str:
    """The usual spelling of a loss; raises an error where there is none of this name."""
    from byzantium.learning import losses  # imports torch

    try:
        return losses.spelled(loss)[0]
    except ByzantiumError as error:
        raise ByzantiumError(f"a simulation needs a loss: {error}") from error


def _spell(options: TrainingOptions, name: str, text: str) -> None:
    object.__setattr__(options, name, text)


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
    if options.topology is not None:
        _check_nodes(options, rule, attack)
    if rule.stages[-1].remembers_workers:
        for name in ("participants", "clock", "topology"):
            if _is_set(options, name):
                raise ByzantiumError(
                    f"{rule!r} remembers what each worker sent and needs all of them in each "
                    f"round, got {name}={getattr(options, name)!r}"
                )


def _check_nodes(
    options: TrainingOptions, rule: Aggregator | Mixing, attack: Attack | None
) -> None:
    """The same for a training without a server."""
    from byzantium.learning import topology
    from byzantium.rules import Mixing
    from byzantium.rules.admission import check_sizes

    if attack is not None and attack.needs_server:
        raise ByzantiumError(
            f"{attack!r} aims at the steps of a server; nodes send models: aim at the 'distance' "
            "or the 'loss', as Adaptive('distance') does"
        )
    for k, stage in enumerate(rule.stages):
        own = isinstance(rule, Mixing) or any(after.uses_graph for after in rule.stages[k:])
        if isinstance(stage, Mixing) and own and not stage.keeps_workers:
            raise ByzantiumError(
                f"after {stage!r} no vector is that of one node, and {rule!r} must give a node its "
                "own: let a rule follow, such as Median()"
            )
    graph = topology.read(str(options.topology), options.n)
    for node, degree in enumerate(graph.degrees.tolist()[: options.n - options.attacker_count]):
        try:
            check_sizes(rule.stages, degree + 1)
        except ByzantiumError as error:
            raise ByzantiumError(
                f"{error}: node {node} of {one_line(str(options.topology), 60)} has {degree} "
                f"neighbor{'s' * (degree != 1)} and itself"
            ) from None


def graph_in_words(options: TrainingOptions) -> str:
    """How well the graph of a training is connected, and that of its honest nodes; "" without one.

    The latter is described only if others attack.
    """
    from byzantium.learning import topology

    if options.topology is None:
        return ""
    graph = topology.read(options.topology, options.n)
    words = f"graph: {graph.describe()}"
    if options.attacker_count:
        honest = graph.subgraph(range(options.n - options.attacker_count))
        words += f"; its honest nodes: {honest.describe()}"
    return words


def announce_doubts(
    options: TrainingOptions, rule: Aggregator | Mixing, *, again: bool = False
) -> None:
    """Warn, once in a process, of what may keep the honest nodes of a graph from agreeing.

    - `rule`: what each node does.
    - `again`: warn even of what was warned of before.
    """
    for doubt in doubts(options, rule):
        sentence = f"on {one_line(str(options.topology), 60)}: {doubt}"
        if again or sentence not in _WARNED:
            _WARNED.add(sentence)
            logger.warning("%s", sentence)


def doubts(options: TrainingOptions, rule: Aggregator | Mixing) -> list[str]:
    """What may keep the honest nodes of a graph from agreeing, in sentences."""
    from byzantium.learning import topology

    graph = topology.read(str(options.topology), options.n)
    honest = options.n - options.attacker_count
    sentences = []
    if graph.subgraph(range(honest)).components > 1:
        sentences.append("the attackers separate honest nodes, who cannot agree")
    most = max(sum(other >= honest for other in graph.neighbors(i)) for i in range(honest))
    f = min((stage.bad for stage in rule.stages if stage.bad is not None), default=0)
    if most > f:
        sentences.append(
            f"an honest node has {most} attacker{'s' * (most > 1)} among its neighbors, more than "
            f"f = {f}"
        )
    return sentences


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
