"""Pipelines: mixings, and the rule that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from byzantium.core import ByzantiumError
from byzantium.rules.admission import check_sizes
from byzantium.rules.outcome import Attempt
from byzantium.rules.pipeline import Aggregator, BaseRule, Mixing, _Composed, mixed_geometry
from byzantium.rules.stage import Stage
from byzantium.vectors.distances import Array
from byzantium.vectors.geometry import Geometry
from byzantium.vectors.points import SourcePoints
from byzantium.vectors.source import Source
from byzantium.vectors.team import ALONE


@dataclass(frozen=True, repr=False)
class Pipeline(_Composed, Aggregator):
    """The result of `mixing >> rule`: a rule."""

    parts: tuple[Stage, ...]

    def check_parameters(self) -> None:
        for part in self.parts[:-1]:
            assert isinstance(part, Mixing)
            if self.rule.remembers_workers and not part.keeps_workers:
                raise ByzantiumError(
                    f"{self.rule!r} remembers what each worker sent, but {part!r} before it makes "
                    "vectors that are no worker's own; leave it out"
                )

    @property
    def rule(self) -> Aggregator:
        rule = self.parts[-1]
        assert isinstance(rule, Aggregator)
        return rule

    def _attempt(self, source: Source, generator: torch.Generator | None, explain: bool) -> Attempt:
        """Aggregate before admission where mixings need not look at the vectors.

        What they draw here they draw again afterwards: here they draw from a copy of the generator.
        """
        last = self.rule
        if explain or not isinstance(last, BaseRule) or type(last).try_mixed is BaseRule.try_mixed:
            return Attempt()  # of a rule that computes nothing before admission
        stages = check_sizes(self.stages, source.n)
        *mixings, rule = (one for stage in stages for one in stage.expansion)
        oblivious = all(isinstance(one, Mixing) and one.oblivious for one in mixings)
        repeatable = generator is None or type(generator) is torch.Generator
        if not (oblivious and repeatable) or source.team is not ALONE:
            return Attempt()
        copied = None if generator is None else generator.clone_state()
        geometry = mixed_geometry(Geometry.of(SourcePoints(source)), mixings, copied)
        assert isinstance(rule, BaseRule)
        return rule.try_mixed(source, geometry.matrix())

    @property
    def center(self) -> Tensor | None:
        return self.rule.center

    def advance(self, geometry: Geometry, aggregate: Tensor, weights: Array | None) -> None:
        self.rule.advance(geometry, aggregate, weights)

    def remember(self, aggregate: Tensor) -> None:
        self.rule.remember(aggregate)

    def state_dict(self) -> dict[str, Tensor]:
        return self.rule.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.rule.load_state_dict(state)
