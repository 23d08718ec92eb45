"""Escaping: a function for each format of files, after which a text is shown as it is.

Results may come from others. Their texts (rules of plugins, names of metrics, reasons) must not be
formulas in a spreadsheet, links or HTML in Markdown, or commands in LaTeX. For the terminal the
function is `byzantium.core.printable`, for figures it is `style.render`; the page reads texts as
data.
"""

from __future__ import annotations

import re
from typing import Any

from byzantium.core import printable

# -- CSV ----------------------------------------------------------------------------------------

# The characters with which formulas of spreadsheets begin, and their wide forms, also after a
# semicolon, at which some spreadsheets separate cells.
FORMULA = re.compile(r"(^|;)(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def in_csv(value: Any) -> Any:
    """A cell of a CSV file: a text that a spreadsheet would compute begins with an apostrophe.

    >>> in_csv("=HYPERLINK(A1)"), in_csv("Krum()"), in_csv("-1.5"), in_csv(-1.5)
    ("'=HYPERLINK(A1)", 'Krum()', '-1.5', -1.5)
    """
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    return FORMULA.sub(r"\1'", printable(value))


# -- Markdown -----------------------------------------------------------------------------------

ACTIVE = re.compile(
    r"""
    [\\`*\[\]<|~$]                    # spans, links, HTML, cells of tables, formulas
    | (?<![^\W_])_ | _(?![^\W_])      # emphasis; never within a word
    | &(?=\#?\w+;)                    # entities
    | (?<=\w):(?=//)                  # addresses, which become links by themselves
    | (?<=www)\.
    | (?<=[\w.+-])@(?=\w)
    | ^[#>%] | ^:(?=::) | ^[-+](?=\s|$|-+\s*$) | ^=(?=[=\s]*$)  # headings, quotes, lists, rules
    """,
    re.VERBOSE | re.IGNORECASE,
)
NUMBERED = re.compile(r"^(\d+)(?=[.)](\s|$))")
ENTITIES = {"<": "&lt;", "&": "&amp;"}


def in_markdown(text: str) -> str:
    r"""A text as Markdown (CommonMark and GitHub's) shows it as it is, also in the cell of a table.

    >>> print(in_markdown("Bucketing(s=2) >> by_label: -1.5 | <b> [x](http://a.b)"))
    Bucketing(s=2) >> by_label: -1.5 \| &lt;b> \[x\](http\://a.b)
    """
    text = printable(text).strip()
    text = ACTIVE.sub(lambda found: ENTITIES.get(found[0], f"\\{found[0]}"), text)
    return NUMBERED.sub(r"\1\\", text)


def as_code(text: str, *, cell: bool = False) -> str:
    """A text as a span of code in Markdown.

    - `cell`: whether it is in a table, where a vertical bar would end the cell.

    >>> print(as_code("Krum(f=1)"), as_code("a `b` c"))
    `Krum(f=1)` ``a `b` c``
    """
    text = printable(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    span = f"{'`' * (longest + 1)}{space}{text}{space}{'`' * (longest + 1)}"
    return span.replace("|", "\\|") if cell else span


# -- LaTeX --------------------------------------------------------------------------------------

SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "[]*"},  # after \\ they would be its arguments
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    ">>": r"$\gg$",
    "±": r"$\pm$",
    "√": r"$\surd$",
    "β": r"$\beta$",
    "→": r"$\to$",
    "—": "--",
    "²": "$^2$",
}


def in_latex(text: str) -> str:
    r"""A text as LaTeX reads it: nothing in it is a command.

    >>> print(in_latex("Bucketing(s=2) >> Krum_1: 5 % ± 1"))
    Bucketing(s=2) $\gg$ Krum\_1: 5 \% $\pm$ 1
    """
    return re.sub(r">>|.", lambda sign: SIGNS.get(sign[0], sign[0]), printable(text))


def folded(summary: str, text: str) -> str:
    """A part of a Markdown text that opens when its summary is clicked."""
    return f"<details>\n<summary>{summary}</summary>\n\n{text.strip()}\n\n</details>\n"
