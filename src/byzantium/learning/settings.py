"""How a simulation is set up, and what is recorded of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from byzantium import guarantees
from byzantium.core import (
    Beta,
    ByzantiumError,
    Count,
    Positive,
    PositiveMeasure,
    Seed,
    check_fields,
    option,
    with_options,
)
from byzantium.learning import metrics
from byzantium.learning.clocks import SYNCHRONOUS, parse_clock


@dataclass(frozen=True)
class TrainingOptions:
    """The options of a training that `Settings` and `Run` share, with their defaults and help."""

    n: Positive = option(25, "How many workers there are, attackers included.")
    rounds: Positive = option(
        600, "How many rounds to train; the server takes one step in each round."
    )
    attackers: Count | None = option(
        None, "How many workers attack, the last ones: by default f, or 0 under NoAttack()."
    )
    batch: Positive = option(32, "How many samples a worker draws for each of its gradients.")
    momentum: Beta = option(
        0.0, "The momentum of the workers, 0 (none) to below 1: beta of Algorithm 2."
    )
    heavy_ball: bool = option(
        False,
        "Let momentum be m = beta m + g, as in the published runs, without a factor 1 - beta.",
    )
    learning_rate: PositiveMeasure = option(0.1, "The learning rate of the server.")
    local_steps: Positive = option(
        1, "How many local steps a worker takes before it sends; 1 sends the gradient."
    )
    local_rate: PositiveMeasure = option(
        0.01, "The learning rate of local steps; not used where local_steps is 1."
    )
    participants: Positive | None = option(
        None, "How many workers, drawn at random, take part in each round: by default all."
    )
    reshuffle_every: Positive | None = option(
        None,
        "Let workers start a new pass over their data after this many rounds: by default when "
        "their samples no longer fill a batch.",
    )
    evaluate_every: Positive = option(
        30, "How many rounds lie between two evaluations on the test set."
    )
    record: tuple[str, ...] = option(
        ("distance", "spread", "weights"),
        "What to record beside losses and accuracy (on the command line separated by commas): any "
        f"of {', '.join(metrics.words())}.",
    )
    seed: Seed = option(
        0, "The seed of everything random: equal options and seeds give equal results."
    )
    loss: str = option(
        "cross_entropy",
        "The loss to minimize: cross_entropy for classes; squared, absolute or huber(delta) for "
        "regression.",
        later=True,
    )
    device: str = option(
        "cpu", "The torch device to compute on, such as cpu or cuda:0.", later=True
    )
    dtype: Literal["float32", "float64"] = option(
        "float32", "The number format of the model, the data and the gradients.", later=True
    )
    dropout: Literal["fresh", "shared"] = option(
        "fresh",
        "Whether each worker draws its dropout anew in each round (fresh), or all workers have the "
        "same in all rounds (shared), as in the published runs.",
        later=True,
    )
    root: Count = option(
        0,
        "How many training samples of each class (without classes: how many in all) the server "
        "holds as root data, which no worker has; RootMatching, FLTrust and RootOnly need them.",
        later=True,
    )
    weights: Literal["equal", "sizes"] = option(
        "equal",
        "Whether all workers count the same (equal), or as many samples as each has (sizes), for "
        "which the server vouches; an attacker counts as much as the mean honest worker.",
        later=True,
    )
    cache: bool = option(
        False,
        "Let the server keep the last vector of each worker, replace those of the participants and "
        "aggregate all of them, so that attackers cannot capture a round.",
        later=True,
    )
    clock: str = option(
        SYNCHRONOUS,
        "When the server takes a step, and how long workers take in simulated time: Synchronous(), "
        "BASGD(buffers) or FedBuff(size), each with times='constant', 'exponential' or 'pareto'.",
        later=True,
    )
    topology: str | None = option(
        None,
        "The graph whose nodes train without a server: a name from `byzantium list topologies`, "
        "such as ring or torus, or a file with a line such as '0 1' for each edge; by default a "
        "server aggregates.",
        later=True,
    )
    redundancy: Positive = option(
        1,
        "How many workers compute each batch, for MajorityVote: n is divided into groups of so "
        "many, worker i is in group i mod (n / redundancy), and data are dealt to groups.",
        later=True,
    )

    @property
    def attacker_count(self) -> int:
        """How many workers attack."""
        return self.attackers or 0

    @property
    def vectors(self) -> int:
        """How many vectors the rule is given in each round; without a server, the fewest.

        The clock may be one of a plugin that is not loaded: then it is as if there were none.
        """
        if self.topology is not None:
            from byzantium.learning import topology  # imports NumPy

            degrees = topology.read(self.topology, self.n).degrees
            return 1 + int(degrees[: self.n - self.attacker_count].min())
        if self.clock != SYNCHRONOUS:
            with suppress(ByzantiumError):
                return parse_clock(self.clock).vectors(self.n)
        return self.n if self.cache else self.participants or self.n


@with_options
@dataclass(frozen=True)
class Settings(TrainingOptions):
    r"""The settings of a simulation, apart from the data, the model, the rule and the attack.

    A worker with momentum :math:`\beta` sends :math:`m \leftarrow \beta m + (1 - \beta) g` instead
    of its gradient g; m = g in its first round. With several local steps it sends (start - end) /
    local_rate, as in federated averaging. The learning rate is that of plain SGD; it is not used
    where the simulation is given another optimizer. Participants are drawn such that at least one
    is honest; with a cache the draw is unconditional, and the model stays as it is until 2f + 1
    workers have taken part. There is always an evaluation after the last round. "heterogeneity"
    records the paper's :math:`\zeta^2` and :math:`B^2` at evaluations; the weights of
    coordinate-wise rules are recorded only in rounds with an evaluation, because they take longer
    than the rule itself.

    >>> Settings(n=25, attackers=5, rounds=300, momentum=0.9).learning_rate
    0.1
    >>> Settings(n=25, attackers=25, rounds=300)
    Traceback (most recent call last):
    byzantium.ByzantiumError: a simulation needs honest workers: attackers < n, got 25 of 25
    """

    attackers: Count = option(
        0,
        "How many of the n workers attack, the last ones; a warning is logged where half or more "
        "of the workers of a round may attack.",
    )

    def __post_init__(self) -> None:
        from byzantium.learning import checks

        check_fields(self, "a simulation")
        checks.check_options(self)
        # With root data, the rule decides how many may attack; without a server, each node's.
        if not self.root and self.topology is None:
            guarantees.announce(None, self.vectors, min(self.attackers, self.vectors))
