"""The colours and the names by which rules, lines and workers are known in figures and on the page.

Figures are drawn with them; the page gets them among its data (`for_page`). No other place names
a colour of a rule or of a line.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Rule:
    """How one of the paper's rules is shown.

    label:  in the paper's tables and figures.
    kind:   the class.
    name:   in words.
    marker: of its points, as matplotlib has it.
    """

    label: str
    kind: str
    name: str
    colour: Colour
    marker: str


RULES = (
    Rule("mean", "Mean", "Mean", BLACK, "o"),
    Rule("krum", "Krum", "Krum", ORANGE, "s"),
    Rule("median", "Median", "Median", YELLOW, "^"),
    Rule("rfa", "GeometricMedian", "Geometric median", BLUE, "D"),
    Rule("cclip", "CenteredClipping", "Centred clipping", GREEN, "v"),
)
BY_LABEL = {rule.label: rule for rule in RULES}

# For a label of cells and a value of it, the colour of the line.
LINES: dict[str, dict[Any, Colour]] = {
    "aggregator": {rule.label: rule.colour for rule in RULES},
    "s": {1: ORANGE, 2: BLUE, 3: GREEN, 5: PINK},
    "momentum": dict(zip((0.0, 0.5, 0.9, 0.99), ORDERED, strict=True)),
    "q": dict(zip((1, 5, 6, 12), ORDERED, strict=True)),
    "scale": dict(zip((1, 2, 4, 8), ORDERED, strict=True)),
    "mixing": {"Bucketing": BLUE, "Resampling": ORANGE},
}
NAMES = {
    **{rule.label: rule.name for rule in RULES},
    "bit-flip": "Bit flip",
    "label-flip": "Label flip",
    "mimic": "Mimic",
    "ipm": "Inner product (IPM)",
    "alie": "A little is enough",
    "iid": "iid",
    "noniid": "sorted by label",
    "fixed": "radius 10",
    "linear": "radius 10 / (1 - β)",
    "sqrt": "radius 10 / √(1 - β)",
    "auto": "no radius to tune",
}


def words(name: str, value: Any) -> str:
    """A label and its value, as they are read in figures and on the page."""
    if name == "varied":
        return f"{value} varies"
    if name in ("momentum", "scale"):
        return f"{name} {value:g}"
    return NAMES.get(value, value) if isinstance(value, str) else f"{name} = {value:g}"


def for_page() -> dict[str, Any]:
    """All of it as JSON has it; a colour is named by its name."""
    used = {colour for values in LINES.values() for colour in values.values()}
    used |= {*OTHER_RULES, *OTHER_LINES, HONEST, ATTACKER}
    return {
        "colours": {colour.name: [colour.light, colour.dark] for colour in used},
        "rules": {rule.kind: rule.colour.name for rule in RULES},
        "other_rules": [colour.name for colour in OTHER_RULES],
        "lines": {
            name: {_text(value): colour.name for value, colour in values.items()}
            for name, values in LINES.items()
        },
        "other_lines": [colour.name for colour in OTHER_LINES],
        "honest": HONEST.name,
        "attacker": ATTACKER.name,
    }


def _text(value: Any) -> str:
    """A value as JavaScript writes it: 0.0 is 0."""
    return value if isinstance(value, str) else f"{value:g}"
