"""Text to pipeline: the inverse of repr."""

from __future__ import annotations

import dataclasses
import inspect

from byzantium.aggregation.pipeline import Aggregator, Mixing
from byzantium.aggregation.stage import Stage
from byzantium.core import ByzantiumError, notation


def parse(text: str, **known_arguments: object) -> Aggregator | Mixing:
    """Read a rule or mixing back from its repr; arguments that are known may be left out.

    >>> parse("Bucketing(s=2) >> Krum(f=5)")
    Bucketing(s=2) >> Krum(f=5)
    >>> parse("Krum()", f=5)
    Krum(f=5)
    >>> parse("Krun(f=5)")
    Traceback (most recent call last):
    byzantium.ByzantiumError: 'Krun(f=5)' names 'Krun', which does not exist; did you mean 'Krum'?
    """
    from byzantium import aggregation

    members = (getattr(aggregation, name) for name in aggregation.__all__)
    classes = [member for member in members if inspect.isclass(member)]
    result = notation.read(
        text,
        {
            member.__name__: member
            for member in classes
            if issubclass(member, Stage) and dataclasses.is_dataclass(member)
        },
        known_arguments,
        form=notation.PIPELINE,
    )
    assert isinstance(result, (Aggregator, Mixing))
    return result


def parse_rule(text: str, **known_arguments: object) -> Aggregator:
    """Read a rule, or a pipeline that ends in one.

    >>> parse_rule("Bucketing(s=2)")
    Traceback (most recent call last):
    byzantium.ByzantiumError: 'Bucketing(s=2)' mixes and does not aggregate; it must end in a rule
    """
    rule = parse(text, **known_arguments)
    if not isinstance(rule, Aggregator):
        raise ByzantiumError(f"{text!r} mixes and does not aggregate; it must end in a rule")
    return rule


def parse_mixing(text: str, **known_arguments: object) -> Mixing:
    """Read a mixing, or a chain of them.

    >>> parse_mixing("Bucketing(s=2) >> NearestNeighborMixing(f=1)").rows(10)
    5
    """
    mixing = parse(text, **known_arguments)
    if not isinstance(mixing, Mixing):
        raise ByzantiumError(f"{text!r} aggregates; a mixing leaves that to the rule behind it")
    return mixing
