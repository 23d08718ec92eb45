"""Text to pipeline: the inverse of repr."""

from __future__ import annotations

import dataclasses
import inspect

from byzantium.aggregation.pipeline import Aggregator, Mixing
from byzantium.aggregation.stage import Stage
from byzantium.core.notation import PIPELINE, read


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
    result = read(
        text,
        {
            member.__name__: member
            for member in classes
            if issubclass(member, Stage) and dataclasses.is_dataclass(member)
        },
        known_arguments,
        form=PIPELINE,
    )
    assert isinstance(result, (Aggregator, Mixing))
    return result
