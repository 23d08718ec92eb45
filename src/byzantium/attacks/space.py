"""The space in which an attacker tries candidates: few dimensions, the same inner products."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.attacks.attack import Scene
from byzantium.rules import Aggregator
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix

Array = NDArray[np.float64]

# A random rule is tried with this many random numbers of the attackers' own.
DRAWS = 3


class Space:
    """Features as points in few dimensions, and the rule on them.

    - `features`: (k, d), the vectors that candidates are combined from; the first h are honest.
    - `points`: (k, r), vectors with the same inner products.
    - `gram`: (k, k), these inner products.
    - `places`: the indices of the features "root" and "model", where there are such.
    """

    def __init__(self, scene: Scene) -> None:
        assert scene.rule is not None
        self.scene, self.h = scene, len(scene.honest)
        self.state = {
            name: value
            for name, value in scene.rule.state_dict().items()
            if value.shape == scene.honest.shape[1:]
        }
        extras = [scene.deviation, *self.state.values()]
        self.places: dict[str, int] = {}
        for name in ("root", "model"):
            vector = getattr(scene, name)
            if vector is not None:
                self.places[name] = self.h + len(extras)
                extras.append(vector)
        self.features = torch.cat([scene.honest, torch.stack(extras).to(scene.honest)])
        points = SourcePoints(Matrix(self.features), anchors={"origin": None})
        geometry = Geometry.of(points)
        k = len(self.features)
        self.gram: Array = geometry.gram_about(geometry.origin)[:k, :k] * geometry.unit**2
        self.reduced = scene.rule.knows_weights == "always"
        if self.reduced:
            values, vectors = np.linalg.eigh(self.gram)
            self.points = torch.from_numpy(vectors * np.sqrt(values.clip(min=0)))
        else:
            self.points = self.features
        self.rule = self._rule(scene.rule)
        self.rows = self.points.new_empty(self.h + scene.q, self.points.shape[1])
        self.rows[: self.h] = self.points[: self.h]
        self.mean = self.rows[: self.h].mean(dim=0)
        self.seed = int(torch.randint(2**62, (), generator=_cpu(scene.generator)))
        self.draws = range(DRAWS if self._is_random() else 1)

    def _rule(self, rule: Aggregator) -> Aggregator:
        """A copy of the rule whose state is in the space of the points."""
        rule = copy.deepcopy(rule)
        if self.state and self.reduced:
            first = self.h + 1
            places = {name: first + k for k, name in enumerate(self.state)}
            rule.load_state_dict({name: self.points[place] for name, place in places.items()})
        return rule

    def _is_random(self) -> bool:
        generator = torch.Generator().manual_seed(self.seed)
        before = generator.get_state()
        self.rows[self.h :] = self.mean
        self._result(generator)
        return not torch.equal(before, generator.get_state())

    def _result(self, generator: torch.Generator) -> Tensor:
        state = self.rule.state_dict()
        result: Tensor = self.rule(self.rows, generator, root=self.point("root"))
        if state:
            self.rule.load_state_dict(state)
        return result

    def results(self, coefficients: Array) -> list[Tensor]:
        """The rule's results where attackers send these combinations, one for each draw.

        - `coefficients`: (k,), or (q, k) where the attackers differ.
        """
        self.rows[self.h :] = torch.from_numpy(coefficients).to(self.points) @ self.points
        return [
            self._result(torch.Generator().manual_seed(self.seed + draw)) for draw in self.draws
        ]

    def point(self, name: str) -> Tensor | None:
        """The point of the root gradient or of the model; None where there is none."""
        return self.points[self.places[name]] if name in self.places else None

    def full(self, coefficients: Array) -> Tensor:
        """The vectors themselves, (d,) or (q, d)."""
        return torch.from_numpy(coefficients).to(self.features) @ self.features

    def length(self, coefficients: Array) -> float:
        """The norm of a combination."""
        return math.sqrt(max(0.0, float(coefficients @ self.gram @ coefficients)))


def _cpu(generator: torch.Generator) -> torch.Generator:
    if generator.device.type == "cpu":
        return generator
    drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(drawn))
