"""The base class of all attacks, what attackers know in a round, and what they may want."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from byzantium.core import ByzantiumError, Formula, Stateful, cached_property, fork_safe, type_name
from byzantium.rules import Aggregator
from byzantium.vectors.points import moments

#: The aims of attacks that search.
Aim = Literal["alignment", "distance", "loss", "collapse"]
#: Those among them that look at the direction of a server's step.
AIMS_AT_STEPS = ("alignment", "collapse")


@dataclass(frozen=True)
class Node:
    """The node of a graph to which attackers send, in a training without a server.

    Attackers may send something else to each neighbor. The first honest vector is the node's own,
    the others are those of its honest neighbors.

    - `index`: which of the honest nodes of the graph it is.
    - `weights`: how much its neighbors count in plain gossip, those who attack last.
    - `models`: (m, d), what all m honest nodes of the graph send.
    - `fiedler_vector`: (m,), that of the graph of the honest nodes, `Topology.fiedler_vector`.

    One of two honest nodes, with an attacker as its only other neighbor:

    >>> from byzantium import Dissensus
    >>> models = torch.tensor([[0.0], [3.0]])
    >>> node = Node(0, weights=[0.25, 0.25], models=models, fiedler_vector=[-0.7, 0.7])
    >>> Dissensus(epsilon=1.0)(models, q=1, node=node)  # away from the neighbor
    tensor([[-3.]])
    """

    index: int
    weights: Sequence[float]
    models: Tensor
    fiedler_vector: Sequence[float]


@dataclass(frozen=True)
class Scene:
    """All that the attackers know in one round; they see everything and work together.

    - `honest`: (h, d), the vectors that the honest workers send.
    - `own`: (q, d), the vectors that the attackers would send if they were honest; None if they
      were not computed, see `Attack.needs_own`.
    - `q`: how many attackers there are.
    - `rule`: the server's rule; None if it is not known. Attacks try it on copies only.
    - `epoch`: how many rounds an epoch has; None if it is not known.
    - `generator`: the attackers' source of randomness, never that of the server.
    - `root`: (d,), the root gradient that the server passes to its rule; None if there is none, or
      if it was not computed, see `Attack.needs_root`.
    - `model`: (d,), the parameters of the model, in the order of the vectors; None if they are not
      known, see `Attack.needs_model`.
    - `step_loss`: a function that returns the loss of honest workers after a step of the server
      with an aggregate; None if it is not known.
    - `last_aggregate`: (d,), the result of the server's rule in the round before; None in the first
      round, or if it is not known, see `Attack.needs_last_aggregate`.
    - `root_loss`: a function that returns the loss of the server's root data after a step, which is
      a vector that is subtracted from the model; for rules that try steps.
    - `weights`: how much each of the h + q workers counts, the attackers last: the numbers that the
      operator vouches for; None if all count the same.
    - `node`: the node to which they send; None with a server. Without one, `rule` is what the node
      does, `last_aggregate` its model before its step, and vectors are models.

    >>> honest = torch.tensor([[2.0], [4.0], [6.0]])
    >>> scene = Scene(honest, None, 1, None, None, torch.Generator())
    >>> scene.mean, scene.deviation
    (tensor([4.]), tensor([2.]))
    """

    honest: Tensor
    own: Tensor | None
    q: int
    rule: Aggregator | None
    epoch: int | None
    generator: torch.Generator
    root: Tensor | None = None
    model: Tensor | None = None
    step_loss: Callable[[Tensor], float] | None = None
    last_aggregate: Tensor | None = None
    weights: Sequence[float] | None = None
    node: Node | None = None
    root_loss: Callable[[Tensor], float] | None = None

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """`mean` and `deviation`, computed together."""
        return moments(self.honest)

    @property
    def mean(self) -> Tensor:
        """The mean of the honest vectors, (d,)."""
        return self.moments[0]

    @property
    def deviation(self) -> Tensor:
        """The standard deviation (divided by h - 1) of the honest vectors by coordinate, (d,)."""
        return self.moments[1]


class Attack(Formula, Stateful, ABC):
    """An attack: it computes what the q attackers send, (q, d), from what honest workers send.

    To write one, derive from this class and define `vectors`. These class variables describe it:

    - `needs_own`: whether the attackers must compute honest vectors of their own first.
    - `own_momentum`: whether these vectors carry momentum, as those of honest workers do.
    - `needs_root`: whether it uses the root gradient, even if the server's rule does not.
    - `needs_model`: whether it must know the parameters of the model.
    - `needs_last_aggregate`: whether it uses the server's aggregate of the round before.
    - `needs_node`: whether it sends to nodes of a graph, and means nothing with a server.
    - `needs_server`: whether it aims at steps of a server, and means nothing without one.
    - `has_trigger`: whether inputs can have a trigger, see `triggered`; then "success_rate" is
      measured at evaluations.
    - `strength`: the name of the field that says how hard it pushes, for `Tuned`; None without one.

    >>> class Opposite(Attack):
    ...     def vectors(self, scene):
    ...         return -scene.mean
    >>> Opposite()(torch.tensor([[2.0], [4.0]]), q=2)
    tensor([[-3.],
            [-3.]])
    """

    needs_own: ClassVar[bool] = False
    own_momentum: ClassVar[bool] = False
    needs_root: ClassVar[bool] = False
    needs_model: ClassVar[bool] = False
    needs_last_aggregate: ClassVar[bool] = False
    needs_node: ClassVar[bool] = False
    needs_server: ClassVar[bool] = False
    has_trigger: ClassVar[bool] = False
    strength: ClassVar[str | None] = None

    @abstractmethod
    def vectors(self, scene: Scene) -> Tensor:
        """What the attackers send: (q, d), or (d,) if all send the same."""

    def inputs(self, x: Tensor, y: Tensor) -> Tensor:
        """The inputs that the attackers train on, instead of the true inputs x.

        - `x`: the batches, in the shape of y with that of a sample after it. They are not changed.
        - `y`: the true labels, (batch,), or (attackers, steps, batch) in a simulation.
        """
        return x

    def labels(self, y: Tensor, classes: int) -> Tensor:
        """The labels that the attackers train on, instead of the true labels y.

        - `classes`: how many classes there are; 0 where the targets are numbers.
        """
        return y

    def triggered(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Test samples with the trigger, and what the attackers want the model to call each.

        Those that a right answer would call so are left out. Only for attacks with `has_trigger`.
        """
        raise ByzantiumError(f"{self!r} has no trigger")

    @fork_safe
    def __call__(
        self,
        honest: Tensor,
        own: Tensor | None = None,
        *,
        q: int | None = None,
        rule: Aggregator | None = None,
        epoch: int | None = None,
        generator: torch.Generator | None = None,
        root: Tensor | None = None,
        model: Tensor | None = None,
        step_loss: Callable[[Tensor], float] | None = None,
        last_aggregate: Tensor | None = None,
        weights: Sequence[float] | None = None,
        node: Node | None = None,
        root_loss: Callable[[Tensor], float] | None = None,
    ) -> Tensor:
        """What the q attackers send, (q, d).

        - `honest`: (h, d), what the honest workers send.
        - `own`: (q, d), what the attackers would send if they were honest; some attacks use it.
        - `q`: how many attackers there are; by default the number of rows of `own`.
        - `generator`: the attackers' randomness; None means the operating system's entropy.
        - `rule`, `epoch`, `root`, `model`, `step_loss`, `last_aggregate`, `root_loss`: what else
          they know, for attacks that use it; see `Scene`.
        - `weights`: how much each of the h + q workers counts, the attackers last, if the operator
          vouches for weights.
        """
        if self.needs_root and root is None:
            raise ByzantiumError(f"{self!r} needs the server's root gradient, root=...")
        if self.needs_node and node is None:
            raise ByzantiumError(
                f"{self!r} sends to a node of a graph, node=..., which only a training without a "
                "server has: topology='ring' (--topology ring)"
            )
        if self.needs_own and own is None:
            raise ByzantiumError(f"{self!r} needs the attackers' own vectors, own=...")
        if q is None:
            if own is None:
                raise ByzantiumError(
                    f"{self!r} needs the number of attackers, q=..., or their own vectors, own=..."
                )
            q = len(own)
        generator = generator or torch.Generator().manual_seed(secrets.randbits(63))
        knowledge = (rule, epoch, generator, root, model, step_loss, last_aggregate, weights)
        scene = Scene(honest.detach(), own, q, *knowledge, node, root_loss)
        rows = self.vectors(scene)
        d = honest.shape[1]
        if not isinstance(rows, Tensor) or rows.shape not in ((d,), (1, d), (q, d)):
            raise ByzantiumError(
                f"{self!r} must send {q} vectors of dimension {d}, or one for all attackers, got "
                f"{type_name(rows)} of shape {tuple(getattr(rows, 'shape', ()))}"
            )
        return rows.detach().to(honest).expand(q, d)


def harm(aim: Aim, result: Tensor, mean: Tensor, model: Tensor | None) -> float:
    """How harmful a result of the rule is, by an aim other than "loss".

    - `aim`: "alignment": how far the result points away from the honest mean; "distance": how far
      it is from the honest mean; "collapse": how much a step with it shrinks the model.
    - `model`: the parameters of the model, for "collapse".

    >>> mean = torch.tensor([1.0, 0.0])
    >>> harm("alignment", -2 * mean, mean, None), harm("distance", -2 * mean, mean, None)
    (2.0, 3.0)
    """
    if aim == "distance":
        return float(torch.linalg.vector_norm(result - mean))
    if aim == "collapse":
        assert model is not None
        return float(result @ model)
    return -float(result @ mean)


def check_aim(attack: Attack, aim: Aim, scene: Scene) -> None:
    """Raise an error if attackers know too little in a scene for an aim."""
    if aim == "loss" and scene.step_loss is None:
        raise ByzantiumError(
            f"{attack!r} needs the loss after a step, step_loss=..., which a simulation passes"
        )
    if aim == "collapse" and scene.model is None:
        raise ByzantiumError(
            f"{attack!r} needs the parameters of the model, model=..., which a simulation passes"
        )
