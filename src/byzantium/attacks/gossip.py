"""Attacks on trainings without a server: they send something else to each neighbor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from byzantium.attacks.attack import Attack, Scene
from byzantium.core import Measure


@dataclass(frozen=True, repr=False)
class Dissensus(Attack):
    r"""Pushes each node away from its honest neighbors, as hard as they pull it.

    .. math:: x_i - \epsilon \frac{\sum_j w_{ij} (x_j - x_i)}{\sum_k w_{ik}}

    where j runs over the honest neighbors of the node i to which it is sent, and k over those who
    attack. With :math:`\epsilon = 1` plain gossip does not move; above it, nodes move apart.

    - `epsilon`: how hard they push, at least 0.

    He, Karimireddy, Jaggi: Byzantine-Robust Decentralized Learning via ClippedGossip, 2022.

    >>> from byzantium.attacks import Node
    >>> honest = torch.tensor([[1.0], [3.0]])  # the node and its honest neighbor
    >>> Dissensus()(honest, q=1, node=Node(0, [0.3, 0.3], honest, [0.7, -0.7]))
    tensor([[-1.]])
    """

    epsilon: Measure = 1.0
    strength: ClassVar[str | None] = "epsilon"
    needs_node: ClassVar[bool] = True

    def vectors(self, scene: Scene) -> Tensor:
        assert scene.node is not None
        own, others = scene.honest[0], scene.honest[1:]
        weights = others.new_tensor(scene.node.weights)
        pull = weights[: len(others)] @ (others - own)
        return own - self.epsilon * pull / weights[len(others) :].sum()


@dataclass(frozen=True, repr=False)
class SpectralHeterogeneity(Attack):
    r"""Pushes the two halves of a graph apart where few edges join them.

    .. math:: x_i + \epsilon v_i \sum_j v_j x_j

    where v is the Fiedler vector of the graph of all honest nodes j, and i is the node to which it
    is sent. Plain gossip reduces differences along v most slowly.

    - `epsilon`: how hard they push, at least 0.

    Gaucher, Dieuleveut, Hendrikx: Unified Breakdown Analysis for Byzantine Robust Gossip, ICML
    2025.

    >>> from byzantium.attacks import Node
    >>> honest = torch.tensor([[1.0], [3.0]])
    >>> SpectralHeterogeneity()(honest, q=1, node=Node(0, [0.3, 0.3], honest, [0.5, -0.5]))
    tensor([[0.5000]])
    """

    epsilon: Measure = 1.0
    strength: ClassVar[str | None] = "epsilon"
    needs_node: ClassVar[bool] = True

    def vectors(self, scene: Scene) -> Tensor:
        node = scene.node
        assert node is not None
        vector = node.models.new_tensor(node.fiedler_vector)
        return scene.honest[0] + self.epsilon * vector[node.index] * (vector @ node.models)
