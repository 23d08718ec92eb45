"""The names and colours by which rules, attacks, lines and workers are known everywhere.

The paper's names go first, ours stand beside them. Figures are drawn with these colours; the page
gets them among its data (`for_page`). No other place names a colour of a rule or of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Colour:
    """A colour by its name: on white, as on paper, and on black, as on a dark screen."""

    name: str
    light: str
    dark: str


# The first ones after Okabe and Ito, whose colours can be told apart by all kinds of eyes.
BLACK = Colour("black", "#222222", "#B9B3C0")
ORANGE = Colour("orange", "#D55E00", "#FF8F4A")
YELLOW = Colour("yellow", "#E69F00", "#F1BD4B")
BLUE = Colour("blue", "#0072B2", "#62B6F2")
GREEN = Colour("green", "#009E73", "#37CFA2")
PINK = Colour("pink", "#CC79A7", "#EA90C6")
VIOLET = Colour("violet", "#6A4FC0", "#B8A2FF")
BROWN = Colour("brown", "#7D4F24", "#D6AA7E")
SKY = Colour("sky", "#2F93CC", "#9BDCFF")
OLIVE = Colour("olive", "#627D00", "#BFD857")
# For values that have an order.
ORDERED = (
    Colour("ordered-1", "#1B0C6B", "#8F7BFF"),
    Colour("ordered-2", "#9C179E", "#D873DA"),
    Colour("ordered-3", "#E16462", "#F08F86"),
    Colour("ordered-4", "#F9A63A", "#FBC877"),
)
# For what has no colour of its own, one after the other: other rules, and other lines.
OTHER_RULES = (PINK, VIOLET, BROWN, SKY, OLIVE)
OTHER_LINES = (BLUE, YELLOW, GREEN, PINK, ORANGE, VIOLET, BROWN, BLACK, SKY, OLIVE)
HONEST, ATTACKER = BLUE, ORANGE


# For numbers from low to high: accuracies from 0 to 100 %, and weights. This is viridis, which
# keeps its order for all kinds of eyes, and in print.
SCALE = (
    "#440154",
    "#482878",
    "#3E4989",
    "#31688E",
    "#26828E",
    "#1F9E89",
    "#35B779",
    "#6ECE58",
    "#B5DE2B",
    "#FDE725",
)


@dataclass(frozen=True)
class Term:
    """What something is called.

    label: in the cells of the paper's tables and figures, and on the command line (`--only`).
    kind:  the class or function of ours.
    short: the paper's name, which goes first everywhere.
    name:  in words, where these say more.
    falls: whether its number goes down from less to more.
    """

    label: str
    kind: str
    short: str
    name: str
    falls: bool = field(default=False, kw_only=True)

    @property
    def words(self) -> str:
        return f"{self.short} ({self.name})" if self.name else self.short


@dataclass(frozen=True)
class Rule(Term):
    """One of the paper's rules; `marker` is that of its points, as matplotlib has it."""

    colour: Colour
    marker: str


RULES = (
    Rule("mean", "Mean", "Mean", "", BLACK, "o"),
    Rule("krum", "Krum", "Krum", "", ORANGE, "s"),
    Rule("median", "Median", "CM", "median by coordinate", YELLOW, "^"),
    Rule("rfa", "GeometricMedian", "RFA", "geometric median", BLUE, "D"),
    Rule("cclip", "CenteredClipping", "CClip", "centred clipping", GREEN, "v"),
)
BY_LABEL = {rule.label: rule for rule in RULES}
BY_KIND = {rule.kind: rule for rule in RULES}
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
BY_NAME = {term.label: term for term in TERMS}

# The f of a rule, where it is written.
F = re.compile(r"(?<=\()f=\d+(, )?|, f=\d+")
# What is written for the record and need not be read.
UNSAID = re.compile(r"(?<=Tuned\()attack=|, both=True")

# For a label of cells and a value of it, the colour of the line.
LINES: dict[str, dict[Any, Colour]] = {
    "aggregator": {rule.label: rule.colour for rule in RULES},
    "s": {1: ORANGE, 2: BLUE, 3: GREEN, 5: PINK},
    "momentum": dict(zip((0.0, 0.5, 0.9, 0.99), ORDERED, strict=True)),
    "q": dict(zip((1, 5, 6, 12), ORDERED, strict=True)),
    "scale": dict(zip((1, 2, 4, 8), ORDERED, strict=True)),
    "mixing": {"Bucketing": BLUE, "Resampling": ORANGE},
}
# Of the lines of workers with momentum; and for what has no dashes of its own, one after the other.
DASHES: dict[Any, str] = {0.0: "solid", 0.9: "dash", 0.5: "dashdot", 0.99: "dot"}
CYCLE = ("solid", "dash", "dot", "dashdot", "longdash")


# -- names --------------------------------------------------------------------------------------


def words(name: str, value: Any) -> str:
    """A label of a cell and its value, as they are read in figures and on the page.

    >>> words("aggregator", "rfa"), words("s", 2), words("rule", "Bucketing(s=2) >> Krum(f=5)")
    ('RFA (geometric median)', 's = 2', 'Bucketing(s=2) >> Krum')
    """
    term = BY_NAME.get(value) if isinstance(value, str) else None
    return term.words if term else short(name, value)


def short(name: str, value: Any) -> str:
    """The same for tables: the paper's name alone.

    >>> short("aggregator", "rfa"), short("attack", "Tuned(ALittleIsEnough())"), short("f", 5)
    ('RFA', 'Tuned(ALIE)', 'f = 5')
    """
    if name == "varied":
        return f"{value} varies"
    if isinstance(value, bool):
        return ("" if value else "no ") + name.replace("_", " ")
    if isinstance(value, (int, float)):
        sign = " = " if len(name) == 1 else " "
        return f"{name.replace('_', ' ')}{sign}{value:g}"
    text = str(value)
    return BY_NAME[text].short if text in BY_NAME else called(text)


def called(text: str) -> str:
    """A text of our notation with the paper's names, without the f that the run has.

    >>> called("Bucketing(s=2) >> GeometricMedian()"), called("Krum(f=5, power=4)")
    ('Bucketing(s=2) >> RFA', 'Krum(power=4)')
    >>> called("Tuned(attack=InnerProduct(), both=True)")
    'Tuned(IPM)'
    """
    text = UNSAID.sub("", F.sub("", text)).replace("()", "")
    kinds = {term.kind: term.short for term in TERMS if term.kind}
    return re.sub(r"\w+", lambda word: kinds.get(word[0], word[0]), text)


def shortened(texts: Iterable[str]) -> dict[str, str]:
    """Texts of our notation, each as short as it can be told from the others: `Krum` for
    `Krum(power=4)` where there is no other Krum. What stands before a rule is always said whole.
    """
    names: dict[str, set[str]] = {}
    split = {text: called(text).split(" >> ") for text in texts}
    for stages in split.values():
        names.setdefault(stages[-1].partition("(")[0], set()).add(stages[-1])
    return {
        text: " >> ".join([*before, bare if len(names[bare]) == 1 else last])
        for text, (*before, last) in split.items()
        for bare in [last.partition("(")[0]]
    }


def order(text: str) -> tuple[Any, ...]:
    """A key that sorts rules, attacks and partitions as the paper has them, others after them.

    >>> sorted(["by_label()", "dirichlet(alpha=0.1)", "dirichlet(alpha=1)", "iid()"], key=order)
    ['iid()', 'dirichlet(alpha=1)', 'dirichlet(alpha=0.1)', 'by_label()']
    """
    *before, last = text.split(" >> ")
    kinds = [term.kind for term in TERMS]
    labels = [term.label for term in TERMS]
    kind = last.partition("(")[0]
    known = kinds.index(kind) if kind in kinds else labels.index(last) if last in labels else 99
    # The numbers in a text in their order: s = 10 after s = 2.
    sign = -1.0 if known < len(TERMS) and TERMS[known].falls else 1.0
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    natural = [
        (1, sign * float(part), "") if k % 2 else (0, 0.0, part) for k, part in enumerate(parts)
    ]
    return known, kind, bool(before), natural


# -- colours ------------------------------------------------------------------------------------


def line(name: str, value: Any, k: int) -> Colour:
    """The colour of a line by its label, or where that has none, of the k-th line."""
    if name == "rule":
        kind = value.rpartition(" >> ")[2].partition("(")[0]
        return BY_KIND[kind].colour if kind in BY_KIND else OTHER_RULES[k % len(OTHER_RULES)]
    return LINES.get(name, {}).get(value) or OTHER_LINES[k % len(OTHER_LINES)]


def scale(share: float) -> str:
    """The colour of a number between the least, 0, and the largest, 1."""
    at = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    k = min(int(at), len(SCALE) - 2)
    pairs = zip(_channels(SCALE[k]), _channels(SCALE[k + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - k)):02X}" for a, b in pairs)


def readable(colour: str) -> str:
    """Black or white, whichever is easier to read on a colour: by its luminance, as in WCAG."""
    shares = (channel / 255 for channel in _channels(colour))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    luminance = sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if luminance > 0.18 else "#FFFFFF"


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5))


def for_page() -> dict[str, Any]:
    """All of it as JSON has it; a colour is named by its name."""
    used = {colour for values in LINES.values() for colour in values.values()}
    used |= {*OTHER_RULES, *OTHER_LINES, HONEST, ATTACKER}
    return {
        "colours": {colour.name: [colour.light, colour.dark] for colour in used},
        "rules": {rule.kind: rule.colour.name for rule in RULES},
        "other_rules": [colour.name for colour in OTHER_RULES],
        "dashes": CYCLE,
        "scale": SCALE,
        "honest": HONEST.name,
        "attacker": ATTACKER.name,
    }
