"""The site is built without a warning, and works in a browser and without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
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


def test_nothing_comes_from_elsewhere(site: Path, page: Page) -> None:
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    for place in sorted(site.rglob("*.html")):
        page.goto(place.as_uri())
    assert fetched
    assert [url for url in fetched if not url.startswith(("file:", "data:"))] == []


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


def test_formulas_are_drawn(site: Path, page: Page) -> None:
    """As MathML of a real size, without commands that were not understood."""
    page.goto((site / "reference" / "rules.html").as_uri())
    formula = page.locator("dl.class:has(dt[id='byzantium.Krum']) math[display=block]").first
    box = formula.bounding_box()
    assert box is not None
    assert box["height"] > 20
    assert box["width"] > 60
    for place in sorted(site.rglob("*.html")):
        page.goto(place.as_uri())
        texts = page.evaluate("[...document.querySelectorAll('math')].map(m => m.textContent)")
        assert [text for text in texts if "\\" in text] == [], place


def test_pictures_are_there(site: Path, page: Page) -> None:
    for place in sorted(site.rglob("*.html")):
        page.goto(place.as_uri())
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert page.evaluate(broken) == [], place


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


def test_no_line_of_code_is_cut_on_a_wide_screen(site: Path, page: Page) -> None:
    """At 1440 px every block of code shows its lines whole, without scrolling."""
    page.set_viewport_size({"width": 1440, "height": 900})
    cut = {}
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        lines = page.evaluate(
            "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1)"
            ".map(e => e.innerText.split('\\n').sort((a, b) => b.length - a.length)[0])"
        )
        if lines:
            cut[path.relative_to(site).as_posix()] = lines
    assert cut == {}
