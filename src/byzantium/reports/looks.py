"""The look of lines in figures and on the page: color by the first label, dashes by the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from byzantium.reports import palette
from byzantium.reports.palette import Color
from byzantium.tables import MeasuredCell
from byzantium.tables.terms import sort_key

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
    found: Looks = {}
    for key in ordered:
        rest = _rest(key)
        known = rest[0] if len(rest) == 1 else None
        dashes = palette.DASHES.get(known, _turn(palette.CYCLE, rests.index(rest)))
        look = Look(palette.line(*key[0], len(found)), dashes)
        if look in found.values():  # a rule with two sets of parameters, say
            look = Look(_turn(palette.OTHER_LINES, len(found)), dashes)
        found[key] = look
    return found


def line_of(found: Looks, cell: MeasuredCell) -> tuple[Labels, Look]:
    """The line of a cell."""
    labels = cell.labels
    return next(item for item in found.items() if all(labels[n] == v for n, v in item[0]))


def _rest(key: Labels) -> tuple[Any, ...]:
    """What dashes show: the mixings before a rule, and every label except the first."""
    (name, value), *others = key
    before = (value.rpartition(" >> ")[0],) if name == "rule" else ()
    return (*before, *(value for _, value in others))


def _turn(names: Sequence[Any], k: int) -> Any:
    return names[k % len(names)]
