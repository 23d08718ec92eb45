"""The paper's names of rules, attacks and partitions, and the order in which tables have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from byzantium.runs import without_f


@dataclass(frozen=True)
class Term:
    """The names of one rule, attack or partition.

    - `label`: its label in the paper's tables and figures and on the command line (`--only`).
    - `member`: our class or function; empty if there is none.
    - `short`: the paper's name, which goes first everywhere.
    - `words`: a description, where it says more than the short name; else empty.
    - `falls`: whether its parameter falls from the first table to the last, as that of dirichlet.
    """

    label: str
    member: str
    short: str
    words: str
    falls: bool = False

    @property
    def full(self) -> str:
        """The short name and the description."""
        return f"{self.short} ({self.words})" if self.words else self.short


RULES = (
    Term("mean", "Mean", "Mean", ""),
    Term("krum", "Krum", "Krum", ""),
    Term("median", "Median", "CM", "median by coordinate"),
    Term("rfa", "GeometricMedian", "RFA", "geometric median"),
    Term("cclip", "CenteredClipping", "CClip", "centered clipping"),
)
# In the order of the paper.
TERMS: tuple[Term, ...] = (
    *RULES,
    Term("none", "NoAttack", "none", ""),
    Term("bit-flip", "BitFlip", "BF", "bit flip"),
    Term("label-flip", "LabelFlip", "LF", "label flip"),
    Term("mimic", "Mimic", "Mimic", ""),
    Term("ipm", "InnerProduct", "IPM", "inner product"),
    Term("alie", "ALittleIsEnough", "ALIE", "a little is enough"),
    Term("iid", "iid", "iid", ""),
    Term("dirichlet", "dirichlet", "dirichlet", "", falls=True),
    Term("noniid", "by_label", "noniid", "sorted by label"),
    Term("fixed", "", "radius 10", ""),
    Term("linear", "", "radius 10 / (1 - β)", ""),
    Term("sqrt", "", "radius 10 / √(1 - β)", ""),
    Term("auto", "", "no radius to tune", ""),
)
BY_LABEL = {term.label: term for term in TERMS}
BY_MEMBER = {term.member: term for term in TERMS if term.member}

# Parameters that are recorded and need not be read.
HIDDEN = re.compile(r"(?<=Tuned\()attack=|, both=True")


def full_name(label: str, value: Any) -> str:
    """The value of a label of cells, as figures and the page show it.

    >>> full_name("aggregator", "rfa"), full_name("s", 2)
    ('RFA (geometric median)', 's = 2')
    >>> full_name("rule", "Bucketing(s=2) >> Krum(f=5)")
    'Bucketing(s=2) >> Krum'
    """
    term = BY_LABEL.get(value) if isinstance(value, str) else None
    return term.full if term else short_name(label, value)


def short_name(label: str, value: Any) -> str:
    """The value of a label of cells, as tables show it: the paper's name alone.

    >>> short_name("aggregator", "rfa"), short_name("attack", "Tuned(ALittleIsEnough())")
    ('RFA', 'Tuned(ALIE)')
    >>> short_name("f", 5)
    'f = 5'
    """
    if label == "varied":
        return f"{value} varies"
    if isinstance(value, bool):
        return ("" if value else "no ") + label.replace("_", " ")
    if isinstance(value, (int, float)):
        sign = " = " if len(label) == 1 else " "
        return f"{label.replace('_', ' ')}{sign}{value:g}"
    text = str(value)
    return BY_LABEL[text].short if text in BY_LABEL else display_name(text)


def display_name(text: str) -> str:
    """A text in our notation with the paper's names, and without the f that the run has.

    >>> display_name("Bucketing(s=2) >> GeometricMedian()"), display_name("Krum(f=5, power=4)")
    ('Bucketing(s=2) >> RFA', 'Krum(power=4)')
    >>> display_name("Tuned(attack=InnerProduct(), both=True)")
    'Tuned(IPM)'
    """
    text = HIDDEN.sub("", without_f(text)).replace("()", "")
    return re.sub(
        r"\w+", lambda word: BY_MEMBER[word[0]].short if word[0] in BY_MEMBER else word[0], text
    )


def distinct_names(texts: Iterable[str]) -> dict[str, str]:
    """The shortest display names that differ: `Krum` for `Krum(power=4)` if it is the only Krum.

    The mixings before a rule are always written in full.
    """
    names: dict[str, set[str]] = {}
    split = {text: display_name(text).split(" >> ") for text in texts}
    for stages in split.values():
        names.setdefault(stages[-1].partition("(")[0], set()).add(stages[-1])
    return {
        text: " >> ".join([*before, bare if len(names[bare]) == 1 else last])
        for text, (*before, last) in split.items()
        for bare in [last.partition("(")[0]]
    }


def sort_key(value: Any) -> tuple[Any, ...]:
    """A key that sorts values of one label: numbers by size, texts in the order of the paper.

    Rules, attacks and partitions that the paper does not have come after those that it has.

    >>> sorted(["by_label()", "dirichlet(alpha=0.1)", "dirichlet(alpha=1)", "iid()"], key=sort_key)
    ['iid()', 'dirichlet(alpha=1)', 'dirichlet(alpha=0.1)', 'by_label()']
    """
    if not isinstance(value, str):
        return (0, -1.0 if value is None else float(value))
    *before, last = value.split(" >> ")
    name = last.partition("(")[0]
    term = BY_MEMBER.get(name) or BY_LABEL.get(last)
    # The numbers in a text by size: s = 10 after s = 2.
    sign = -1.0 if term and term.falls else 1.0
    parts = re.split(r"(\d+(?:\.\d+)?)", value)
    natural = [
        (1, sign * float(part), "") if k % 2 else (0, 0.0, part) for k, part in enumerate(parts)
    ]
    return 1, TERMS.index(term) if term else 99, name, bool(before), natural
