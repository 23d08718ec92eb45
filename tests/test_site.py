"""The site is built without a warning, and works in a browser and without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from paths import ROOT

import byzantium
from byzantium import (
    attacks,
    data,
    engines,
    guarantees,
    learning,
    papers,
    related,
    reports,
    rules,
    tables,
    vectors,
)
from byzantium.engines import distributed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("sphinx", reason="THE SITE IS NOT TESTED: Sphinx is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def page(browser: Browser) -> Page:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    return context.new_page()


@dataclass
class Visit:
    """What a browser sees that opens every page, 1440 px wide: by page, where there is any."""

    fetched: list[str] = field(default_factory=list)
    #: Formulas with a command that was not understood.
    odd_formulas: dict[str, list[str]] = field(default_factory=dict)
    broken_pictures: dict[str, list[str]] = field(default_factory=dict)
    #: The longest line of each block of code that needs scrolling.
    cut_lines: dict[str, list[str]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def visit(site: Path, browser: Browser) -> Visit:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    seen = Visit()
    page.on("request", lambda request: seen.fetched.append(request.url))
    queries = (
        (
            seen.odd_formulas,
            "[...document.querySelectorAll('math')].map(m => m.textContent)"
            ".filter(text => text.includes('\\\\'))",
        ),
        (
            seen.broken_pictures,
            "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)",
        ),
        (
            seen.cut_lines,
            "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1)"
            ".map(e => e.innerText.split('\\n').sort((a, b) => b.length - a.length)[0])",
        ),
    )
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        for found, query in queries:
            if items := page.evaluate(query):
                found[path.relative_to(site).as_posix()] = items
    page.context.close()
    return seen


def public_names() -> set[str]:
    """What users import: classes and functions, by the names that they have."""
    packages = (
        byzantium,
        rules,
        vectors,
        attacks,
        guarantees,
        data,
        learning,
        related,
        tables,
        papers,
        reports,
        engines,
        distributed,
    )
    offered = [getattr(package, name) for package in packages for name in dir(package)]
    return {each.__name__ for each in offered if isinstance(each, type) or isfunction(each)}


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    listed = {name.rpartition(".")[2] for kind in inventory.data for name in inventory.data[kind]}
    assert public_names() - listed == set()


def test_what_was_measured_is_on_its_page(tmp_path: Path) -> None:
    """docs/measured.md is what the bench makes of docs/bench.json, and nobody changed it."""
    shutil.copy(ROOT / "docs" / "bench.json", tmp_path)
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "page.py"), str(tmp_path)], check=True
    )
    assert (tmp_path / "measured.md").read_text() == (ROOT / "docs" / "measured.md").read_text()


def test_nothing_comes_from_elsewhere(visit: Visit) -> None:
    assert visit.fetched
    assert [url for url in visit.fetched if not url.startswith(("file:", "data:"))] == []


def test_a_reader_finds_the_way(site: Path, page: Page) -> None:
    """From the first page by the menu to another, from there by a link, and back."""
    page.goto((site / "index.html").as_uri())
    page.locator(".sidebar-tree").get_by_role("link", name="What bucketing does").click()
    assert page.locator("h1").inner_text().startswith("What bucketing does")
    page.locator("article").get_by_role("link", name="delta").first.click()
    assert page.locator("h1").inner_text().startswith("Delta")
    page.go_back()
    assert page.url.endswith("/understand/bucketing.html")


def test_search_finds_pages(site: Path, page: Page) -> None:
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").fill("mimic")
    page.keyboard.press("Enter")
    title = "Why robust rules fail when data differ"
    page.locator("ul.search").get_by_role("link", name=title).first.click()
    assert page.locator("h1").inner_text().startswith(title)


def test_formulas_are_drawn(site: Path, page: Page, visit: Visit) -> None:
    """As MathML of a real size, without commands that were not understood."""
    page.goto((site / "reference" / "rules.html").as_uri())
    formula = page.locator("dl.class:has(dt[id='byzantium.Krum']) math[display=block]").first
    box = formula.bounding_box()
    assert box is not None
    assert box["height"] > 20
    assert box["width"] > 60
    assert visit.odd_formulas == {}


def test_pictures_are_there(visit: Visit) -> None:
    assert visit.broken_pictures == {}


def test_code_that_is_copied_runs(site: Path, page: Page, tmp_path: Path) -> None:
    """The button leaves out prompts and output; what it copies is a program."""
    page.goto((site / "start.html").as_uri())
    code = []
    for block in page.locator("div.highlight:has(span.gp)").all():
        if ">>>" in block.inner_text():
            block.hover()
            block.locator("button.copybtn").click()
            code.append(str(page.evaluate("navigator.clipboard.readText()")))
    assert code
    assert not any(">>>" in text for text in code)
    program = tmp_path / "copied.py"
    program.write_text("\n".join([*code, "print(report.weights.argmin().item())"]))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["5"]


def test_no_line_of_code_is_cut_on_a_wide_screen(visit: Visit) -> None:
    """At 1440 px every block of code shows its lines whole, without scrolling."""
    assert visit.cut_lines == {}
