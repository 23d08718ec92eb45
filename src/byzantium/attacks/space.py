"""The space in which an attacker tries candidates: few dimensions, the same inner products."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byzantium.attacks.attack import Scene
from byzantium.rules import Aggregator, Weighting
from byzantium.rules.admission import admit
from byzantium.rules.pipeline import last_rule, mixed_geometry
from byzantium.vectors.distances import distinct
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Matrix, largest_norm
from byzantium.vectors.weights import with_weight

Array = NDArray[np.float64]
#: Coefficients that attackers try, and what a random rule draws from meanwhile.
Trial = tuple[Array, torch.Generator]

# A random rule is tried with this many random numbers of the attackers' own.
DRAWS = 2
# So many inner products are there at a time, so that those of many vectors need little memory.
TOGETHER = 1 << 17
# Rules by coordinate are tried on a sample of so many columns.
COLUMNS = 1024
# Points of this length, relative to the largest along a principal direction, are rounding errors.
SMALLEST = 1e-7
# No vector is longer than this share of the largest norm that the server admits; computed from
# inner products, its length errs by less than the rest.
LONGEST = 0.99


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
        state = scene.rule.state_dict()
        one = scene.honest.shape[1:]
        self.state = {name: value for name, value in state.items() if value.shape == one}
        # A rule that tries steps, or whose state is more than single vectors, is tried on the
        # vectors themselves.
        whole = len(self.state) < len(state) or scene.rule.stages[-1].root_form == "loss"
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
        self.kind = "never" if whole else scene.rule.knows_weights
        d = self.features.shape[1]
        self.seed = int(torch.randint(2**62, (), generator=_cpu(scene.generator)))
        if self.kind == "always":
            values, vectors = np.linalg.eigh(self.gram)
            lengths = np.sqrt(values.clip(min=0))
            self.points = torch.from_numpy(vectors * lengths)
            # A point as a combination of those of the features: the inverse of `points`.
            large = lengths > lengths.max(initial=0) * SMALLEST
            self.inverse = np.where(large, 1 / np.where(large, lengths, 1), 0)[:, None] * vectors.T
        elif self.kind == "asked" and d > COLUMNS:
            generator = torch.Generator().manual_seed(self.seed)
            sample = torch.randperm(d, generator=generator)[:COLUMNS].to(self.features.device)
            self.points = self.features[:, sample] * math.sqrt(d / COLUMNS)
        else:
            self.points = self.features
        self.rows = self.points.new_empty(self.h + scene.q, self.points.shape[1])
        self.rows[: self.h] = self.points[: self.h]
        self.mean = self.rows[: self.h].mean(dim=0)
        self.rows[self.h :] = self.mean
        self.rule = self._rule(scene.rule)
        every = scene.weights is None or all(scene.weights)  # a row without weight is no row
        self._rows = MeasuredRows(self) if self.kind != "never" and every else None
        self.draws = range(DRAWS if self._is_random() else 1)

    def _rule(self, rule: Aggregator) -> Aggregator:
        """A copy of the rule whose state is in the space of the points."""
        rule = copy.deepcopy(rule)
        if self.state and self.points is not self.features:
            first = self.h + 1
            places = {name: first + k for k, name in enumerate(self.state)}
            rule.load_state_dict({name: self.points[place] for name, place in places.items()})
        return rule

    def _is_random(self) -> bool:
        generator = torch.Generator().manual_seed(self.seed)
        before = generator.get_state()
        coefficients = np.zeros(len(self.features))
        coefficients[: self.h] = 1 / self.h
        self._results([(coefficients, generator)])
        return not torch.equal(before, generator.get_state())

    def results(self, candidates: Sequence[Array]) -> list[list[Tensor]]:
        """The rule's results where attackers send combinations, one for each draw.

        - `candidates`: coefficients (k,), or (q, k) where the attackers differ.
        """
        trials = [
            (coefficients, torch.Generator().manual_seed(self.seed + draw))
            for coefficients in candidates
            for draw in self.draws
        ]
        results, draws = self._results(trials), len(self.draws)
        return [results[k : k + draws] for k in range(0, len(results), draws)]

    def _results(self, trials: Sequence[Trial]) -> list[Tensor]:
        if self._rows is not None:
            return self._rows.results(trials)
        results: list[Tensor] = []
        for coefficients, generator in trials:
            self.send(self.sent(coefficients))
            root = self.rule.trusted(self.point("root"), self.scene.root_loss)
            weights = self.scene.weights
            results.append(self.rule.preview(self.rows, generator, root=root, weights=weights))
        return results

    def sent(self, coefficients: Array) -> Tensor:
        """The points of combinations, (r,) or (q, r)."""
        return torch.from_numpy(coefficients).to(self.points) @ self.points

    def send(self, sent: Tensor) -> None:
        """Let the attackers' rows be these points."""
        self.rows[self.h :] = sent

    def point(self, name: str) -> Tensor | None:
        """The point of the root gradient or of the model; None where there is none."""
        return self.points[self.places[name]] if name in self.places else None

    def full(self, coefficients: Array) -> Tensor:
        """The vectors themselves, (d,) or (q, d)."""
        return torch.from_numpy(coefficients).to(self.features) @ self.features

    def full_result(self, coefficients: Array) -> Tensor:
        """The rule's result on the vectors themselves, for the first draw, (d,)."""
        if self.kind == "always":
            (point,) = self._results([(coefficients, torch.Generator().manual_seed(self.seed))])
            return self.full(point.numpy() @ self.inverse)
        scene, generator = self.scene, torch.Generator().manual_seed(self.seed)
        assert scene.rule is not None
        self.all_rows[self.h :] = self.full(coefficients)
        root = scene.rule.trusted(scene.root, scene.root_loss)
        result: Tensor = scene.rule.preview(self.all_rows, generator, root=root)
        return result

    @cached_property
    def all_rows(self) -> Tensor:
        """The vectors themselves, (h + q, d); those of the attackers are overwritten by trials."""
        honest = self.scene.honest
        return torch.cat([honest, honest.new_empty(self.scene.q, honest.shape[1])])

    def admits(self, coefficients: Array) -> bool:
        """Whether the server would not reject these combinations as too long, (k,) or (q, k)."""
        squares = (coefficients @ self.gram * coefficients).sum(axis=-1)
        longest = LONGEST * largest_norm(self.features.dtype)
        return bool(np.all(squares <= longest**2))

    def length(self, coefficients: Array) -> float:
        """The norm of a combination."""
        return math.sqrt(max(0.0, float(coefficients @ self.gram @ coefficients)))


class MeasuredRows:
    """A weighting on the rows of a space, tried with inner products that are known already.

    Only those of the attackers' rows differ from trial to trial, so a trial reads no vectors.
    Inner products are taken about the first honest row.

    - `space`: the space, whose `rows` are those that the rule gets.
    """

    def __init__(self, space: Space) -> None:
        self.space, self.n = space, len(space.rows)
        self.source = Matrix(space.rows)
        root, center = space.point("root"), space.rule.center
        weights = space.scene.weights
        vouched = None if weights is None else with_weight(weights, self.n)[1]
        admission = admit(space.rule.stages, self.source, center, 0.0, root, vouched)
        admitted, self.stages, _, self.vouched = admission
        self.anchors = admitted.anchors
        self.points = _FewDimensions(self.source, anchors=self.anchors)
        # Rows and anchors that stay, as combinations of features relative to the first row.
        k, h = len(space.features), space.h
        fixed = np.zeros((h + len(self.anchors), k))
        fixed[:, :h] = np.eye(*fixed[:, :h].shape)
        for place, name in enumerate(self.anchors, start=h):
            if name == "root":
                fixed[place, space.places["root"]] = 1
            elif name == "center":
                fixed[place, h + 1] = 1  # the only state that a rule has
        self.reference = fixed[0].copy()
        self.fixed = fixed - self.reference
        self.products = space.gram @ self.fixed.T
        n, points = self.n, self.n + len(self.anchors)
        staying = np.r_[:h, n:points]
        self.gram = np.zeros((points, points))
        self.gram[np.ix_(staying, staying)] = self.fixed @ self.products

    def results(self, trials: Sequence[Trial]) -> list[Tensor]:
        """The rule's results where attackers send combinations; some are computed together."""
        together, results = max(1, TOGETHER // self.gram.size), []
        for first in range(0, len(trials), together):
            results += self._some(trials[first : first + together])
        return results

    def _some(self, trials: Sequence[Trial]) -> list[Tensor]:
        rule, results, geometries = last_rule(self.stages), [], []
        sent = [self.space.sent(coefficients) for coefficients, _ in trials]
        for (coefficients, generator), rows in zip(trials, sent, strict=True):
            self.space.send(rows)
            points = self.points.with_products(self._gram_of(coefficients))
            geometry = mixed_geometry(Geometry.of(points, self.vouched), self.stages, generator)
            if not isinstance(rule, Weighting):
                results.append(rule.finish(geometry, explain=False)[0])
                continue
            _ = geometry.gram  # which may need the rows that are sent now
            geometries.append(geometry)
        if not isinstance(rule, Weighting):
            return results
        weights_of = rule.weights_of(geometries)
        for rows, geometry, weights in zip(sent, geometries, weights_of, strict=True):
            self.space.send(rows)
            results.append(geometry.combine(rule.checked(weights, geometry)))
        return results

    def _gram_of(self, coefficients: Array) -> Array:
        """The inner products of all points where attackers send these combinations."""
        h, n, gram = self.space.h, self.n, self.gram.copy()
        sent = coefficients - self.reference
        if coefficients.ndim == 1:
            across, own = sent @ self.products, sent @ self.space.gram @ sent
        else:
            # Equal rows must have equal products, to the bit.
            sent, which = distinct(sent)
            across = (sent @ self.products)[which].T
            own = sent @ self.space.gram @ sent.T
            own = ((own + own.T) / 2)[which][:, which]
        gram[h:n, h:n] = own
        gram[:h, h:n] = across[:h] if across.ndim == 2 else across[:h, None]
        gram[n:, h:n] = across[h:] if across.ndim == 2 else across[h:, None]
        gram[h:n] = gram[:, h:n].T
        return gram


class _FewDimensions(SourcePoints):
    """Points of so few dimensions that one small product combines them."""

    def with_products(self, gram: Array) -> Self:
        """The same points, with these inner products."""
        points = object.__new__(type(self))  # `copy.copy` takes ten times as long
        vars(points).update(vars(self), _gram=gram)
        return points

    def combine(self, weights: Array) -> Tensor:
        assert isinstance(self.source, Matrix)
        matrix = self.source.updates
        total = torch.from_numpy(weights[: self.n]).to(matrix) @ matrix
        for weight, anchor in zip(weights[self.n :], self.anchors.values(), strict=True):
            total = total if anchor is None else total + weight * anchor
        return total


def _cpu(generator: torch.Generator) -> torch.Generator:
    if generator.device.type == "cpu":
        return generator
    drawn = torch.randint(2**62, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(drawn))
