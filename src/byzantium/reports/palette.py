"""The colors, dashes and markers of rules, lines and workers, in figures and on the page.

No other file names a color of a rule or of a line; the page gets them among its data (`for_page`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byzantium.tables import MeasuredCell, terms
from byzantium.tables.terms import sort_key


@dataclass(frozen=True)
class Color:
    """A color by its name: on white, as on paper, and on black, as on a dark screen."""

    name: str
    light: str
    dark: str


# The first ones are after Okabe and Ito, whose colors also color-blind readers can distinguish.
BLACK = Color("black", "#222222", "#B9B3C0")
ORANGE = Color("orange", "#D55E00", "#FF8F4A")
YELLOW = Color("yellow", "#E69F00", "#F1BD4B")
BLUE = Color("blue", "#0072B2", "#62B6F2")
GREEN = Color("green", "#009E73", "#37CFA2")
PINK = Color("pink", "#CC79A7", "#EA90C6")
VIOLET = Color("violet", "#6A4FC0", "#B8A2FF")
BROWN = Color("brown", "#7D4F24", "#D6AA7E")
SKY = Color("sky", "#2F93CC", "#9BDCFF")
OLIVE = Color("olive", "#627D00", "#BFD857")
# For values that have an order.
ORDERED = (
    Color("ordered-1", "#1B0C6B", "#8F7BFF"),
    Color("ordered-2", "#9C179E", "#D873DA"),
    Color("ordered-3", "#E16462", "#F08F86"),
    Color("ordered-4", "#F9A63A", "#FBC877"),
)
# For rules and lines without a color of their own, one after the other.
OTHER_RULES = (PINK, VIOLET, BROWN, SKY, OLIVE)
OTHER_LINES = (BLUE, YELLOW, GREEN, PINK, ORANGE, VIOLET, BROWN, BLACK, SKY, OLIVE)
HONEST, ATTACKER = BLUE, ORANGE

# For numbers from low to high: accuracies from 0 to 100 %, and weights. This is viridis, which
# keeps its order for color-blind readers and in print.
SCALE = (
    *("#440154", "#482878", "#3E4989", "#31688E", "#26828E"),
    *("#1F9E89", "#35B779", "#6ECE58", "#B5DE2B", "#FDE725"),
)


@dataclass(frozen=True)
class RuleStyle:
    """The color of one of the paper's rules, and the marker of its points in matplotlib."""

    color: Color
    marker: str


# By the label of the rule, and by its class.
RULE_STYLES = {
    "mean": RuleStyle(BLACK, "o"),
    "krum": RuleStyle(ORANGE, "s"),
    "median": RuleStyle(YELLOW, "^"),
    "rfa": RuleStyle(BLUE, "D"),
    "cclip": RuleStyle(GREEN, "v"),
}
BY_CLASS = {term.member: RULE_STYLES[term.label] for term in terms.RULES}

# The color of a line, by a label of its cell and the value of the label.
LINES: dict[str, dict[Any, Color]] = {
    "aggregator": {label: style.color for label, style in RULE_STYLES.items()},
    "s": {1: ORANGE, 2: BLUE, 3: GREEN, 5: PINK},
    "momentum": dict(zip((0.0, 0.5, 0.9, 0.99), ORDERED, strict=True)),
    "q": dict(zip((1, 5, 6, 12), ORDERED, strict=True)),
    "scale": dict(zip((1, 2, 4, 8), ORDERED, strict=True)),
    "mixing": {"Bucketing": BLUE, "Resampling": ORANGE},
}
# The dashes of lines by momentum; and of lines without dashes of their own, one after the other.
DASHES: dict[Any, str] = {0.0: "solid", 0.9: "dash", 0.5: "dashdot", 0.99: "dot"}
CYCLE = ("solid", "dash", "dot", "dashdot", "longdash")


def line(name: str, value: Any, k: int) -> Color:
    """The color of a line by its label; the k-th of the other colors, if the label has none."""
    if name == "rule":
        rule = value.rpartition(" >> ")[2].partition("(")[0]
        return BY_CLASS[rule].color if rule in BY_CLASS else OTHER_RULES[k % len(OTHER_RULES)]
    return LINES.get(name, {}).get(value) or OTHER_LINES[k % len(OTHER_LINES)]


# The labels by which a line differs from the others of its panel.
Labels = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Look:
    """A color, and the name of dashes: "solid", "dash", "dot", "dashdot", "longdash"."""

    color: Color
    dashes: str


Looks = dict[Labels, Look]


def looks(cells: Sequence[MeasuredCell], names: Sequence[str]) -> Looks:
    """The looks of the lines of some panels, by those of the given labels that vary."""
    varying = [n for n in names if len({c.labels[n] for c in cells}) > 1] or list(names[:1])
    keys = {tuple((name, c.labels[name]) for name in varying) for c in cells}
    ordered = sorted(keys, key=lambda key: [sort_key(value) for _, value in key])
    rests = list(dict.fromkeys(_rest(key) for key in ordered))
    chosen: Looks = {}
    for key in ordered:
        rest = _rest(key)
        single = rest[0] if len(rest) == 1 else None
        dashes = DASHES.get(single, CYCLE[rests.index(rest) % len(CYCLE)])
        look = Look(line(*key[0], len(chosen)), dashes)
        if look in chosen.values():  # a rule with two sets of parameters, say
            look = Look(OTHER_LINES[len(chosen) % len(OTHER_LINES)], dashes)
        chosen[key] = look
    return chosen


def line_of(found: Looks, cell: MeasuredCell) -> tuple[Labels, Look]:
    """The line of a cell."""
    labels = cell.labels
    return next(item for item in found.items() if all(labels[n] == v for n, v in item[0]))


def _rest(key: Labels) -> tuple[Any, ...]:
    """What dashes show: the mixings before a rule, and every label except the first."""
    (name, value), *others = key
    before = (value.rpartition(" >> ")[0],) if name == "rule" else ()
    return (*before, *(value for _, value in others))


def scale(share: float) -> str:
    """The color of a number between 0 and 1 on the scale."""
    at = min(max(share, 0.0), 1.0) * (len(SCALE) - 1)
    k = min(int(at), len(SCALE) - 2)
    pairs = zip(_channels(SCALE[k]), _channels(SCALE[k + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (at - k)):02X}" for a, b in pairs)


def readable(color: str) -> str:
    """Black or white, whichever is easier to read on a color: by its luminance, as in WCAG."""
    shares = (channel / 255 for channel in _channels(color))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    luminance = sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#000000" if luminance > 0.18 else "#FFFFFF"


def _channels(color: str) -> tuple[int, ...]:
    return tuple(int(color[k : k + 2], 16) for k in (1, 3, 5))


def for_page() -> dict[str, Any]:
    """The colors and dashes for the page, as JSON; lines refer to colors by name."""
    used = {color for values in LINES.values() for color in values.values()}
    used |= {*OTHER_RULES, *OTHER_LINES, HONEST, ATTACKER}
    return {
        "colors": {color.name: [color.light, color.dark] for color in used},
        "rules": {name: style.color.name for name, style in BY_CLASS.items()},
        "other_rules": [color.name for color in OTHER_RULES],
        "dashes": CYCLE,
        "scale": SCALE,
        "honest": HONEST.name,
        "attacker": ATTACKER.name,
    }
