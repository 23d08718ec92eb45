"""Attackers who see everybody, rehearsed on the server: what some nodes sent is replaced."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from byzantium.attacks import Attack, parse_attack
from byzantium.core import ByzantiumError, Positive, validated
from byzantium.engines.flower.replies import Arrays
from byzantium.engines.flower.rounds import logger
from byzantium.engines.flower.vectors import change, moved
from byzantium.rules import Aggregator


class Rehearsal:
    """An attack to rehearse, by some nodes that see what the others send.

    - `attack`: the attack, or its text; it changes what these nodes changed of the model.
    - `nodes`: the ids of the nodes that attack, or how many; then they are the first ones of the
      first round.
    """

    def __init__(self, attack: Attack | str, nodes: int | Collection[int] | None) -> None:
        self.attack = parse_attack(attack) if isinstance(attack, str) else attack
        if nodes is None:
            raise ByzantiumError("a rehearsal needs nodes: which ones attack, or how many")
        self.count = 0
        self.nodes: set[int] = set()
        if isinstance(nodes, Collection):
            self.nodes = set(nodes)
        else:
            self.count = validated("rehearse", "nodes", nodes, Positive)

    def __call__(self, model: Arrays, rows: dict[int, Arrays], rule: Aggregator) -> None:
        """Replace the rows of the attackers; the matrix of the others is built for it."""
        if not self.nodes:
            self.nodes = set(sorted(rows)[: self.count])
        # In the same order in each round: an attack may follow one node.
        bad = [node for node in sorted(rows) if node in self.nodes]
        good = [node for node in sorted(rows) if node not in self.nodes]
        if not bad or not good:
            return
        logger.warning("\t> REHEARSAL: %r by the nodes %s", self.attack, bad)
        honest, own = (
            torch.from_numpy(np.stack([change(model, rows[node]) for node in nodes]))
            for nodes in (good, bad)
        )
        for node, vector in zip(bad, self.attack(honest, own, rule=rule).numpy(), strict=True):
            rows[node] = moved(model, rows[node], vector)
