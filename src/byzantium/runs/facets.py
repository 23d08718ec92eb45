"""Facets: the values by which reports filter, label and sort jobs."""

from __future__ import annotations

import re
from typing import Any

# The f of a rule, where it is written.
F = re.compile(r"(?<=\()f=\d+(, )?|, f=\d+")


def rule_facets(rule: str) -> dict[str, Any]:
    """The facets of a rule: its text, the mixings before it, itself without f, and its class.

    >>> facets = rule_facets("Bucketing(s=2) >> Krum(f=5, m=2)")
    >>> facets["mixing"], facets["rule"], facets["kind"]
    ('Bucketing(s=2)', 'Krum(m=2)', 'Krum')
    """
    mixing, _, last = without_f(rule).rpartition(" >> ")
    return {"text": rule, "mixing": mixing, "rule": last, "kind": last.partition("(")[0]}


def without_f(rule: str) -> str:
    """A rule in our notation, without its f.

    >>> without_f("Bucketing(s=2) >> Krum(f=5, m=2)"), without_f("TrimmedMean(f=3)")
    ('Bucketing(s=2) >> Krum(m=2)', 'TrimmedMean()')
    """
    return F.sub("", rule)
