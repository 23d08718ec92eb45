"""Rehearsal on the server of attacks by nodes that see the replies of all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
import torch

from byzantium.attacks import Attack, parse_attack
from byzantium.core import ByzantiumError, Positive, validated
from byzantium.engines.federation.vectors import Arrays, apply_change, change_vector
from byzantium.engines.flower.nodes import logger
from byzantium.rules import Aggregator


class Rehearsal:
    """An attack to rehearse, by some nodes that see what the others send.

    - `attack`: the attack, or its text; it replaces the changes that these nodes made to the model.
    - `nodes`: the ids of the attackers, or their number: then they are the first nodes of the first
      round.
    """

    def __init__(self, attack: Attack | str, nodes: int | Collection[int] | None) -> None:
        self.attack = parse_attack(attack) if isinstance(attack, str) else attack
        if nodes is None:
            raise ByzantiumError("a rehearsal needs nodes: which ones attack, or how many")
        self.last_aggregate: torch.Tensor | None = None
        self.count = 0
        self.nodes: set[int] = set()
        if isinstance(nodes, Collection):
            self.nodes = set(nodes)
        else:
            self.count = validated("rehearse", "nodes", nodes, Positive)

    def __call__(
        self,
        model: Arrays,
        rows: dict[int, Arrays],
        rule: Aggregator,
        vouched: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        """Replace the rows of the attackers; this stacks all rows in memory.

        - `vouched`: the weight of each node for which the operator vouches, if there are any.
        """
        if not self.nodes:
            self.nodes = set(sorted(rows)[: self.count])
        # In the same order in each round: an attack may follow one node.
        attackers = [node for node in sorted(rows) if node in self.nodes]
        others = [node for node in sorted(rows) if node not in self.nodes]
        if not attackers or not others:
            return
        logger.warning("\t> REHEARSAL: %r by the nodes %s", self.attack, attackers)
        honest, own = (
            torch.from_numpy(np.stack([change_vector(model, rows[node]) for node in nodes]))
            for nodes in (others, attackers)
        )
        vectors = self.attack(
            honest,
            own,
            rule=rule,
            last_aggregate=self.last_aggregate,
            weights=[vouched[node] for node in (*others, *attackers)] if vouched else None,
        ).numpy()
        for node, vector in zip(attackers, vectors, strict=True):
            rows[node] = apply_change(model, rows[node], vector)

    def observe(self, model: Arrays, aggregate: Arrays) -> None:
        """Remember the change that the server's rule made of this round's changes."""
        if self.attack.needs_last_aggregate:
            self.last_aggregate = torch.from_numpy(change_vector(model, aggregate))
