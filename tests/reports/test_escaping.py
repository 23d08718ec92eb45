"""Texts of strangers are only texts: in CSV, Markdown, LaTeX, figures, and on the terminal."""

from __future__ import annotations

import csv
import io
import logging
import re
from pathlib import Path
from typing import Any

import folders
import pytest
from click.testing import CliRunner
from folders import completed, evaluations
from markdown_it import MarkdownIt
from matplotlib.figure import Figure
from matplotlib.text import Text as Drawn
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from byzantium.cli import main
from byzantium.cli.terminal import Terminal
from byzantium.core import printable
from byzantium.reports import style
from byzantium.reports.escaping import as_code, in_csv, in_latex, in_markdown
from byzantium.reports.figures import KINDS
from byzantium.runs import Run, Store
from byzantium.tables import pivots

PLUGIN = (f"theirs.py sha256:{'0' * 64}",)
TEXTS = (
    r"$\frac$ x",
    "$",
    '=HYPERLINK("http://evil.example";"a")',
    "+1-2",
    "-cmd|'/C calc'!A0",
    "@SUM(A1)",
    "Krum();=1+1",
    "\uff1d1+1",
    "[red]x[/red]",
    "[link=http://evil.example]x[/link]",
    "</td></table><script>alert(1)</script>",
    "<!-- x",
    "a | b",
    "`x`",
    "``x` |",
    "![p](http://evil.example/p.png)",
    "[x]: http://evil.example",
    "https://evil.example/x",
    "HTTP://evil.example/x",
    "www.evil.example",
    "somebody@evil.example",
    "&lt;b&gt; &#60; &copy;",
    "*x* _x_ __x__ ~~x~~ ***",
    "# x",
    "> x",
    "- x",
    "1. x",
    "12) x",
    "---",
    "===",
    "```",
    "~~~",
    ":::{note}",
    "% x",
    "[1] x",
    "* x",
    r"\input{/etc/passwd}",
    r"\\ & % # _ { } ~ ^ ^^5c",
    r"back\`slash \| \<",
    "_hidden",
    ":smile: x",
    "x" * 900,
)
CONTROLS = ("\x1b[2J", "\x9b2J", "\x1b]8;;http://evil.example\x07x", "a\nb", "a\rb", "\x08", "\t=1")
HIDDEN = ("\u202e", "\u2066", "\u200b", "\ufeff", "\ud800")


# -- CSV -------------------------------------------------------------------------------------------


def formula(cell: str) -> bool:
    """Whether a spreadsheet would compute something of a cell, parted at semicolons or not."""
    parts = [cell, *cell.split(";")]
    signs = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
    return any(part.lstrip(" \"'")[:1] in [*signs] and part[:1] != "'" for part in parts if part)


@pytest.mark.parametrize("text", [*TEXTS, *CONTROLS, *HIDDEN])
def test_no_cell_of_a_csv_file_is_a_formula(text: str) -> None:
    written = io.StringIO()
    csv.writer(written).writerow([in_csv(text), in_csv(-1.5), in_csv("-1.5"), in_csv(7)])
    ((cell, *numbers),) = csv.reader(io.StringIO(written.getvalue()))
    assert not formula(cell)
    assert [float(number) for number in numbers] == [-1.5, -1.5, 7]
    if not formula(text) and text.isprintable():
        assert cell == text


# -- Markdown --------------------------------------------------------------------------------------

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def shown(source: str, kind: str = "inline") -> str:
    """What a reader of Markdown sees in the only paragraph or cell; anything but text fails."""
    (found,) = [token for token in READER.parse(source) if token.type == kind]
    assert found.children is not None
    allowed = ("text", "text_special", "code_inline")
    assert {child.type for child in found.children} <= {*allowed}, source
    return "".join(child.content for child in found.children)


def links(source: str) -> list[str]:
    """What GitHub makes a link of by itself, after GitHub's specification of Markdown."""
    address = r"(?:https?|ftp)://|www\.|mailto:|xmpp:|[\w.+-]+@[\w-]+\.[\w.-]+"
    return re.findall(address, source, re.IGNORECASE)


@pytest.mark.parametrize("text", [*TEXTS, *CONTROLS, *HIDDEN])
def test_a_text_is_shown_by_markdown_as_it_is(text: str) -> None:
    expected = " ".join(printable(text).split())
    for source in (in_markdown(text), f"- {in_markdown(text)}", f"### {in_markdown(text)}"):
        assert " ".join(shown(source).split()) == expected
        assert not links(source)
        assert not re.search(r"(?<!\\)\$", source)
    rows = f"| {in_markdown(text)} | 2 |", "| --- | --- |"
    table = "\n".join([*rows, f"| {in_markdown(text)} | {as_code(text, cell=True)} |"])
    cells = [token for token in READER.parse(table) if token.type == "inline"]
    assert len(cells) == 4
    assert [" ".join(cell.content.split()) != "" for cell in cells] == [True] * 4
    for cell in cells[:3:2]:
        assert cell.children is not None
        assert {child.type for child in cell.children} <= {"text", "text_special"}
    assert cells[3].children is not None
    (code,) = cells[3].children
    assert code.type == "code_inline"
    assert code.content.strip() == printable(text).strip()


@pytest.mark.parametrize("text", [*TEXTS, *CONTROLS])
def test_a_span_of_code_holds_all_of_a_text(text: str) -> None:
    source = f"x {as_code(text)} y"
    (found,) = [token for token in READER.parse(source) if token.type == "inline"]
    assert found.children is not None
    assert [child.type for child in found.children] == ["text", "code_inline", "text"]
    assert found.children[1].content.strip() == printable(text).strip()


@pytest.mark.parametrize("text", ["by_label()", "Bucketing(s=2) >> Krum", "+0.35", "-2.1", "1.5"])
def test_our_own_texts_stay_as_they_are(text: str) -> None:
    assert in_markdown(text) == in_csv(text) == printable(text) == text


# -- LaTeX -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*TEXTS, *CONTROLS, *HIDDEN])
def test_latex_finds_no_command_in_a_text(text: str) -> None:
    source = in_latex(text)
    assert "\n" not in source
    rest = re.sub(r"\\text(backslash|asciitilde|asciicircum)\{\}|\\[&%$#_{}]", "", source)
    rest = re.sub(r"\$(<|>|\\pm|\\surd|\\beta|\\to|\^2|\\gg)\$|\{[\[\]*]\}", "", rest)
    assert not re.search(r"[\\&%$#_{}~^]", rest), rest
    # After \\ and \midrule these would begin an argument.
    assert source.lstrip()[:1] not in ("[", "*")


# -- the terminal ----------------------------------------------------------------------------------


def printed(*objects: Any, terminal: bool = True) -> str:
    console = Terminal()
    console.file = io.StringIO()
    console._force_terminal = terminal
    for one in objects:
        console.print(one, soft_wrap=True)
    return console.file.getvalue()


def colorless(text: str) -> str:
    """Without the escape sequences of colors, which are ours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("text", [*TEXTS, *CONTROLS, *HIDDEN])
def test_a_terminal_shows_a_text_and_does_nothing_else(text: str) -> None:
    table = Table(text, title=text, caption=text)
    table.add_row(text)
    table.add_row(Text(text))
    for thing in (text, Text(text), Text(text, "bold red"), table):
        said = colorless(printed(thing))
        assert all(line.isprintable() for line in said.split("\n")), repr(said)
    lines = "\n".join(map(printable, re.split("\r?\n", text)))
    assert colorless(printed(text)) == f"{lines}\n"


def test_a_progress_bar_shows_a_text_and_does_nothing_else() -> None:
    console = Terminal()
    console.file, console._force_terminal = io.StringIO(), True
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task("Krum\x1b[2J\x9b2J[red]x")
    said = console.file.getvalue()
    assert r"Krum\x1b[2J" in said
    assert "\x1b[2J" not in said
    assert "\x9b" not in said


@pytest.mark.parametrize("text", [*CONTROLS, *HIDDEN])
def test_the_log_and_errors_show_a_text_and_do_nothing_else(
    text: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    logging.getLogger("byzantium").warning("%s is skipped: %s", Path(text), ValueError(text))
    (said,) = caplog.messages
    assert said.isprintable()
    name = text.replace("/", "").encode("utf-8", "replace").decode()
    run = CliRunner().invoke(main, ["report", str(tmp_path), "--rows", f"ru{name}le"])
    assert run.exit_code == 2
    assert all(line.isprintable() for line in run.output.split("\n"))


# -- a whole folder --------------------------------------------------------------------------------


def theirs(root: Path, texts: tuple[str, ...] = TEXTS) -> Store:
    """Runs of plugins that are not loaded, whose texts are hostile wherever there is one."""
    store = Store(root)
    for k, text in enumerate(texts):
        for attack in ("Mimic(warmup=1)", texts[(k + 1) % len(texts)]):
            run = Run(rule=text, attack=attack, plugin=PLUGIN, n=5, f=1, rounds=60)
            lines = evaluations(run, [40.0 + k, 50.0], **{text[:300]: 1.0})
            machine = {"machine": text[:300], "torch": text[:300]}
            folders.write(store, run, lines, completed(50.0, **machine))
    failed = Run(rule="=1", attack=TEXTS[0], plugin=PLUGIN, n=5, f=1, rounds=60)
    folders.fail(store, failed, "`x` <script>alert(1)</script> | =1")
    return store


def test_a_strangers_folder_is_reported_in_every_format(tmp_path: Path) -> None:
    root = tmp_path / "results"
    theirs(root)
    files = {name: tmp_path / f"table.{name}" for name in ("csv", "md", "tex")}
    tables = [word for path in files.values() for word in ("--table", str(path))]
    both = ["--markdown", str(tmp_path / "text.md"), "--csv", str(tmp_path / "runs.csv")]
    said = CliRunner().invoke(main, ["report", str(root), *both, *tables])
    assert said.exit_code == 0, said.output
    assert all(line.isprintable() for line in said.output.split("\n"))
    assert list((root / "figures").glob("*.png"))
    for path in (files["csv"], tmp_path / "runs.csv"):
        for row in csv.reader(path.read_text().splitlines()):
            assert not any(formula(cell) for cell in row if not re.fullmatch(r"-?[\d.e-]+", cell))
    for path in (files["md"], tmp_path / "text.md"):
        kinds = {token.type for token in READER.parse(path.read_text())}
        assert "html_block" not in kinds
        children = [c for t in READER.parse(path.read_text()) for c in t.children or ()]
        assert "html_inline" not in {child.type for child in children}
        assert "link_open" not in {child.type for child in children}
        outside = [child.content for child in children if child.type != "code_inline"]
        assert any("<script>" in content for content in outside)
        images = [child.attrs["src"] for child in children if child.type == "image"]
        assert all(str(source).startswith("results/figures/") for source in images)


# -- figures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("worst_case", [False, True])
def test_no_text_of_a_figure_is_a_formula(tmp_path: Path, worst_case: bool) -> None:
    """Also where the user's own settings of matplotlib would have LaTeX set all texts."""
    store = theirs(tmp_path, TEXTS[:2])
    for table in pivots(store, worst_case=worst_case):
        drawn = KINDS[table.artifact.picture.kind](table)
        for text in drawn.findobj(Drawn):
            assert isinstance(text, Drawn)
            text.set_usetex(True)
        assert style.render(drawn, "png", 50).startswith(b"\x89PNG")
        found = [text for text in drawn.findobj(Drawn) if isinstance(text, Drawn)]
        assert not any(text.get_parse_math() or text.get_usetex() for text in found)
        assert any(r"$\frac$" in text.get_text() for text in found)


def test_a_picture_that_would_be_too_large_has_fewer_pixels() -> None:
    picture = style.render(Figure(figsize=(1000, 4)), "png", 150)
    width, height = (int.from_bytes(picture[k : k + 4]) for k in (16, 20))
    assert max(width, height) < 2**16
    assert width * height <= 40_000_000


def test_a_label_that_begins_with_an_underscore_is_in_the_legend(tmp_path: Path) -> None:
    (table, *_) = pivots(theirs(tmp_path, ("_hidden", "_also", "x" * 900)))
    drawn = KINDS[table.artifact.picture.kind](table)
    (legend,) = drawn.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert " _hidden" in labels
    assert max(map(len, labels)) <= 100
