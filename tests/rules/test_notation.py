"""repr is the notation: what it prints, parse reads back; anything else is refused, unevaluated."""

from __future__ import annotations

import contextlib
import math
import re

import members
import pytest
from hypothesis import given
from hypothesis import strategies as st
from members import EVERYTHING, MIXINGS

import byzantium as bz


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_parse_reads_what_repr_writes(member: members.Rule) -> None:
    assert bz.parse(repr(member.rule)) == member.rule
    assert hash(bz.parse(repr(member.rule))) == hash(member.rule)
    assert repr(bz.parse(repr(member.rule))) == repr(member.rule)


@pytest.mark.parametrize("mix", MIXINGS, ids=members.name)
def test_parse_reads_mixings_and_chains(mix: members.Mix) -> None:
    assert bz.parse(repr(mix.mixing)) == mix.mixing
    chain = mix.mixing >> bz.Bucketing(s=2)
    assert bz.parse(repr(chain)) == chain


@given(radius=st.floats(min_value=0, exclude_min=True), steps=st.integers(1, 99))
def test_numbers_survive_exactly(radius: float, steps: int) -> None:
    rule = bz.CenteredClipping(radius, steps)
    assert bz.parse(repr(rule)) == rule


def test_equal_rules_are_written_alike() -> None:
    assert repr(bz.CenteredClipping(10)) == repr(bz.CenteredClipping(10.0))
    assert repr(bz.CenteredClipping(math.inf)) == "CenteredClipping(radius=inf)"
    assert repr(bz.Krum(f=5, m=1, power=2.0)) == "Krum(f=5)"


def test_positional_values_spaces_and_brackets_are_fine() -> None:
    expected = bz.Bucketing(s=2) >> bz.Krum(f=5, m=2)
    assert bz.parse("  Bucketing(2)>>Krum(5, m=2) ") == expected
    assert bz.parse("(Bucketing(2) >> (Krum(5, 2)))") == expected


REFUSED = {
    "Krun(f=5)": "names 'Krun', which does not exist; did you mean 'Krum'?",
    "zzz()": "names 'zzz', which does not exist; there are AdaptiveClipping, AgnosticClipping",
    "Bucketing(t=2)": "gives Bucketing the argument 't', which it does not have; there are b",
    "Krum(f=5, powr=4)": "gives Krum the argument 'powr', which it does not have; did you mean 'po",
    "Krum()": "lacks the argument 'f', which Krum needs",
    "Krum(1, 2, 3, 4)": "gives Krum 4 values, but it takes at most 3",
    "Krum(5, f=5)": "gives Krum the argument 'f' twice",
    "Krum(f=5": "is not of the form 'Mixing(name=value) >> Rule(name=value)'",
    "": "is not of the form",
    "Krum": "has 'Krum' where 'Name(argument=value)' is expected",
    "3": "has '3' where 'Name(argument=value)' is expected",
    "Krum(f=2) + Mean()": "where 'Name(argument=value)' is expected",
    "Krum(f=1+1)": "has '1 + 1' where a number or a word is expected",
    "Krum(f=[1])": "has '[1]' where a number or a word is expected",
    "Krum(**{'f': 1})": "gives Krum the argument None",
    "Krum(*[1])": "has '*[1]' where a number or a word is expected",
    "byzantium.Krum(f=1)": "where 'Name(argument=value)' is expected",
    "Krum(f=__import__('os').getpid())": "where a number or a word is expected",
    "Report()": "names 'Report', which does not exist",
    "Mixing()": "names 'Mixing', which does not exist; did you mean",
    "parse('Mean()')": "names 'parse', which does not exist",
    "Krum(f=-1)": "Krum needs f >= 0, got f=-1",
    "Krum(f=2.5)": "Krum needs a whole number for f, got f=2.5",
    "Krum(f=None)": "Krum needs a whole number for f, got f=None",
    "Krum(f=Mean())": "Krum needs a whole number for f, got f=Mean()",
    f"Krum(f={10**400})": "Krum needs f of at most 63 bits, got 1329 bits",
    f"CenteredClipping(radius={10**400})": "needs radius within the range of float64",
    f"CenteredClipping(radius=-{10**400})": "needs radius within the range of float64",
    "Krum(f=1) >> Mean()": "Krum(f=1) is a rule and ends a pipeline; mixings come before it",
    "\0": "'\\x00' is not of the form",
    "Krum(f=5)\udc80": "'Krum(f=5)\\udc80' is not of the form",
    "Krum(f=" + "-" * 1900 + "1)": "is not of the form",
    "(" * 900 + "Mean()" + ")" * 900: "is not of the form",
    "Mean()" * 1000: "is 6000 characters long, more than the 2000 allowed",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_anything_else_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[text])):
        bz.parse(text)


@given(st.text(alphabet="Krum(f=5)>> Mean[]{}.:'\"\\\n#*,-0x", max_size=40))
def test_no_text_does_anything_else(text: str) -> None:
    with contextlib.suppress(bz.ByzantiumError):
        assert isinstance(bz.parse(text), bz.Aggregator | bz.Mixing)
