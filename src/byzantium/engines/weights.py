"""Weights of sites that the operator of a federation vouches for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from byzantium.core import ArgumentTypeError, Measure, type_name, validated
from byzantium.rules import Aggregator
from byzantium.rules.shares import check_takes_weights

Site = TypeVar("Site", bound=Hashable)


class SiteWeights:
    """How much each site counts: numbers that the operator vouches for.

    A site for which it does not vouch has weight 0: it is not asked, and nobody can gain weight by
    joining.

    - `weights`: the weight of each site, or a function that returns that of one site; None if all
      sites count the same.

    >>> weights = SiteWeights({"site-1": 190, "site-2": 17834})
    >>> weights.of(["site-2", "site-1", "site-3"]), weights.with_weight(["site-3", "site-1"])
    ([17834.0, 190.0, 0.0], ['site-1'])
    """

    def __init__(
        self, weights: Mapping[Any, float] | Callable[[Any], float] | None, owner: str = "weights"
    ) -> None:
        if not (weights is None or isinstance(weights, Mapping) or callable(weights)):
            raise ArgumentTypeError(
                f"{owner} needs for weights a mapping from sites to numbers, or a function of a "
                f"site, got {type_name(weights)}"
            )
        self.weights, self.owner = weights, owner
        if isinstance(weights, Mapping):
            for site in weights:
                self._of(site)

    def check(self, rule: Aggregator) -> None:
        """Raise an error if there are weights, and a rule takes none."""
        if self.weights is not None:
            check_takes_weights(rule.stages)

    def of(self, sites: Sequence[Any]) -> list[float] | None:
        """The weights of some sites; None if all sites count the same."""
        return None if self.weights is None else [self._of(site) for site in sites]

    def with_weight(self, sites: Sequence[Site]) -> list[Site]:
        """The sites that have weight."""
        return [site for site in sites if self.weights is None or self._of(site)]

    def _of(self, site: Any) -> float:
        weights = self.weights
        value = weights.get(site, 0.0) if isinstance(weights, Mapping) else weights(site)  # type: ignore[misc]
        return validated(self.owner, "weights", value, Measure)
