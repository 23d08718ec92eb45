"""Certificates, the results of searches for the worst input, as tables and a figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from byzantium.core import files, import_optional, printable
from byzantium.guarantees import Certificate
from byzantium.reports import palette
from byzantium.reports.escaping import as_code
from byzantium.reports.style import SMALL, USUAL, panels, render

# The height at which an unbounded c is drawn, and the lower end of the axis.
TOP, BOTTOM = 100.0, 0.4


def label(certificate: Certificate) -> tuple[str, str]:
    """The mixings before the rule of a certificate, and the rule, without its f."""
    texts = []
    for stage in certificate.rule.stages:
        text = re.sub(rf"\bf={certificate.f}\b(, )?", "", repr(stage))
        text = re.sub(rf"\bm={certificate.n - certificate.f}\b", "m=n-f", text)
        texts.append(re.sub(r", \)", ")", text))
    return " >> ".join(texts[:-1]), texts[-1]


def worst_c(certificate: Certificate) -> str:
    """The worst c that was found, such as ">= 2.5" or "unbounded"."""
    return "unbounded" if certificate.unbounded else f">= {certificate.c:.3g}"


def terminal(certificates: Iterable[Certificate]) -> Table:
    """Certificates as a table for the terminal (of the library rich), a row each."""
    table = Table(
        "rule", "f", "worst c found", "proved c", "c of any rule", "carried away by", "found by"
    )
    for one in certificates:
        carried = "nobody" if one.breakdown is None else f"{one.breakdown} of {one.n}"
        least = f">= {one.least:.3g}"
        proved = "" if one.promised is None else f"<= {one.promised:.3g}"
        rule, how = Text(printable(repr(one.rule))), Text(printable(one.worst.how))
        table.add_row(rule, str(one.f), worst_c(one), proved, least, carried, how)
    return table


def text(certificates: Sequence[Certificate]) -> str:
    """Certificates as Markdown: a table for each mixing, of rules by f."""
    parts = []
    for n in dict.fromkeys(one.n for one in certificates):
        here = [one for one in certificates if one.n == n]
        counts = sorted({one.f for one in here})
        cells = {(*label(one), one.f): one for one in here}
        least = {one.f: one.least for one in here}
        head = [f"| n = {n} |" + "".join(f" f = {f} |" for f in counts)]
        head += ["| --- |" + " --- |" * len(counts)]
        head += ["| any rule |" + "".join(f" {least[f]:.3g} |" for f in counts)]
        for mixing in dict.fromkeys(key[0] for key in cells):
            rules = dict.fromkeys(rule for before, rule, _ in cells if before == mixing)
            rows = [
                f"| {as_code(rule, cell=True)} |"
                + "".join(f" {_cell(cells.get((mixing, rule, f)))} |" for f in counts)
                for rule in rules
            ]
            title = f"Behind {as_code(mixing)}:" if mixing else "Alone:"
            parts.append("\n".join([title, "", *head, *rows]))
    return "\n\n".join(parts) + "\n"


def _cell(certificate: Certificate | None) -> str:
    if certificate is None:
        return "-"
    promised = "" if certificate.promised is None else f" (≤ {certificate.promised:.3g})"
    return worst_c(certificate).removeprefix(">= ") + promised


def write_json(certificates: Iterable[Certificate], path: Path) -> None:
    """Write certificates to a JSON file, one on each line, so that versions can be compared."""
    entries = ",\n".join(json.dumps(one.entry()) for one in certificates)
    files.write(path, f"[\n{entries}\n]\n")


def draw(certificates: Sequence[Certificate], path: Path, dpi: int = 150) -> None:
    """Draw the worst c against the share of Byzantine vectors, a panel for each mixing, as a PNG.

    It needs matplotlib.
    """
    import_optional("matplotlib", "report", "a figure")
    labels = {one: label(one) for one in certificates}
    mixings = list(dict.fromkeys(mixing for mixing, _ in labels.values()))
    rules = list(dict.fromkeys(rule for _, rule in labels.values()))
    colors = _colors(rules)
    n = certificates[0].n
    figure, (axes,) = panels((1, len(mixings)), (2.6, 2.9), (0.15, 0), (1.0, 2.0, 0.5, 0.35))
    for axis, mixing in zip(axes, mixings, strict=True):
        here = [one for one in certificates if labels[one][0] == mixing]
        least = sorted({(one.f / one.n, one.least) for one in here})
        deltas, bounds = [delta for delta, _ in least], [bound for _, bound in least]
        axis.fill_between(deltas, bounds, BOTTOM, color="#E4E4E4", linewidth=0)
        for rule in rules:
            own = [o for o in here if labels[o][1] == rule]
            lines: dict[str, Any] = {"lw": 1.2, "marker": "o", "ms": 3, "label": rule}
            dots: dict[str, Any] = {"lw": 0.9, "ls": ":", "alpha": 0.6}
            line = sorted((o.f / o.n, min(o.c, TOP)) for o in own)
            proved = sorted((o.f / o.n, o.promised) for o in own if o.promised is not None)
            for points, look in ((line, lines), (proved, dots)):
                if points:
                    axis.plot(*zip(*points, strict=True), color=colors[rule], **look)
        axis.set_yscale("log")
        axis.set_ylim(BOTTOM, 1.25 * TOP)
        axis.set_title(f"behind {mixing}" if mixing else "alone", fontsize=USUAL)
        axis.set_xlabel("δ", fontsize=USUAL)
    ticks = [0.5, 1, 2, 5, 10, 20, 50, TOP]
    names = [f"{tick:g}" for tick in ticks[:-1]] + ["unbounded"]
    axes[0].set_yticks(ticks, names)
    axes[0].minorticks_off()
    axes[0].set_ylabel(f"c, the worst found (n = {n})", fontsize=USUAL)
    handles = {str(h.get_label()): h for axis in axes for h in axis.get_lines()}
    axes[-1].legend(
        handles=[handles[rule] for rule in rules if rule in handles],
        loc="center left",
        bbox_to_anchor=(1.02, 0.5),
        frameon=False,
        fontsize=SMALL + 0.5,
        title="dotted: proved\ngrey: no rule gets there",
        title_fontsize=SMALL,
    )
    files.write(path, render(figure, "png", dpi))


def _colors(rules: Sequence[str]) -> dict[str, str]:
    """The colors of rules: fixed ones for those of the paper, further ones for others."""
    by_class = {name: style.color.light for name, style in palette.BY_CLASS.items()}
    others = iter([*palette.OTHER_RULES, *palette.ORDERED])
    colors = {}
    for rule in rules:
        name, _, arguments = rule.partition("(")
        plain = name in by_class and (arguments == ")" or name == "CenteredClipping")
        colors[rule] = by_class[name] if plain else next(others).light
    return colors
