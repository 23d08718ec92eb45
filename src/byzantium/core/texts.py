"""Texts of others, made visible: on a terminal they are shown, and do nothing."""

from __future__ import annotations

import inspect
import re


def printable(text: str) -> str:
    r"""A text in which every character can be seen; others are written as Python writes them.

    These are control characters, among them those that begin the escape sequences of terminals,
    line breaks, and marks that hide text or reverse its direction.

    >>> print(printable("Krum()\x1b[2J\n\u202e"))
    Krum()\x1b[2J\n\u202e
    """
    if text.isprintable():
        return text
    written = (sign.encode("unicode_escape").decode() for sign in text)
    return "".join(a if a.isprintable() else b for a, b in zip(text, written, strict=True))


def printable_lines(text: str) -> str:
    r"""The same for a text of ours in several lines, whose line breaks stay.

    >>> print(printable_lines("fixed: Krum()\x1b[2J\nvaries: attack"))
    fixed: Krum()\x1b[2J
    varies: attack
    """
    return "\n".join(map(printable, re.split(r"\r?\n", text)))


def one_line(text: str, most: int = 300) -> str:
    r"""A text in one printable line, such as an error inside a sentence.

    - `most`: how many characters it may have; a longer one is cut, and ends in "...".

    >>> one_line("no file\n  here", most=20), one_line("no file here", most=7)
    ('no file here', 'no file...')
    """
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[:most]}..."


def first_sentence(member: object) -> str:
    """What something is: the first sentence of its documentation, without formulas."""
    text = (inspect.getdoc(member) or "").partition("\n\n")[0].replace("\n", " ")
    return re.sub(r",? :math:`[^`]*`", "", text)
