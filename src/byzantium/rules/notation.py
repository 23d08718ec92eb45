"""From text to pipeline: the inverse of repr."""

from __future__ import annotations

import dataclasses
import functools
import importlib

from byzantium.core import ByzantiumError, Registry, notation
from byzantium.core.registry import exported
from byzantium.rules.pipeline import Aggregator, Mixing
from byzantium.rules.stage import Stage

# The names of the bucketing paper, which tables and figures show.
ALIASES = {"CM": "Median", "RFA": "GeometricMedian", "CClip": "CenteredClipping"}
# The packages whose public rules and mixings can be named; `related` comes after this one in the
# order of imports, and is loaded by its name.
PACKAGES = ("byzantium.rules", "byzantium.related")


@functools.cache
def members() -> Registry[type[Stage]]:
    """All rules and mixings that `parse` knows, by name: ours, and those of loaded plugins.

    >>> members()["Krum"]
    <class 'byzantium.rules.weighting.Krum'>
    """
    classes: dict[str, type[Stage]] = {}
    for package in PACKAGES:
        classes |= exported(importlib.import_module(package), Stage)
    named = {name: one for name, one in classes.items() if dataclasses.is_dataclass(one)}
    return Registry("rule or mixing", named, ALIASES)


def parse(text: str, **known_arguments: object) -> Aggregator | Mixing:
    """Read a rule, a mixing or a pipeline from text; the inverse of `repr`.

    - `text`: what `repr` writes, such as "Bucketing(s=2) >> Krum(f=5)". The paper's names CM, RFA
      and CClip mean Median, GeometricMedian and CenteredClipping. Nothing is evaluated.
    - `known_arguments`: values for arguments that a stage needs and the text omits.

    >>> parse("Bucketing(s=2) >> Krum(f=5)")
    Bucketing(s=2) >> Krum(f=5)
    >>> parse("Krum()", f=5), parse("RFA()")
    (Krum(f=5), GeometricMedian())
    >>> parse("Krun(f=5)")
    Traceback (most recent call last):
    byzantium.ByzantiumError: 'Krun(f=5)' names 'Krun', which does not exist; did you mean 'Krum'?
    """
    result = notation.read(text, members(), known_arguments, form=notation.PIPELINE)
    assert isinstance(result, (Aggregator, Mixing))
    return result


def parse_rule(text: str, **known_arguments: object) -> Aggregator:
    """Read a rule, or a pipeline that ends in one, from text; see `parse`.

    >>> parse_rule("Bucketing(s=2)")
    Traceback (most recent call last):
    byzantium.ByzantiumError: 'Bucketing(s=2)' is only a mixing; it must end in a rule
    """
    rule = parse(text, **known_arguments)
    if not isinstance(rule, Aggregator):
        raise ByzantiumError(f"{text!r} is only a mixing; it must end in a rule")
    return rule


def parse_mixing(text: str, **known_arguments: object) -> Mixing:
    """Read a mixing, or several joined by `>>`, from text; see `parse`.

    >>> parse_mixing("Bucketing(s=2) >> NearestNeighborMixing(f=1)").rows(10)
    5
    """
    mixing = parse(text, **known_arguments)
    if not isinstance(mixing, Mixing):
        raise ByzantiumError(f"{text!r} ends in a rule; a mixing is needed")
    return mixing
