"""From a cell of the report to its runs, and the table of runs, in Chromium."""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal

import pytest
from report_page import Opened, lay, opened, opened_at

from byzantium.reports import report, text_tables
from byzantium.runs import Run, Store
from byzantium.tables import pivots

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BASE = Run(rounds=90, n=15, f=2)
RULES = ("Krum()", "Bucketing(s=2) >> Krum()", "Median()")
ATTACKS = ("BitFlip()", "ALittleIsEnough()", "Mimic()", "InnerProduct()", "LabelFlip()")
SEEDS = range(3)


def accuracy(rule: str, attack: str, seed: int) -> float:
    return 90.0 - 20 * RULES.index(rule) - 3 * ATTACKS.index(attack) + 1.5 * seed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("results"))
    for rule, attack, seed in itertools.product(RULES, ATTACKS, SEEDS):
        run = BASE.varied(rule=rule, attack=attack, seed=seed)
        lay(store, run, {"accuracy": accuracy(rule, attack, seed)})
    return store


@pytest.fixture(scope="module")
def path(store: Store) -> Path:
    return report.write(store, [], store.root / "report.html")


@pytest.fixture(params=[1440, 390])
def page(browser: Browser, path: Path, request: pytest.FixtureRequest) -> Opened:
    return opened(browser, path, request.param)


def run(rule: str, attack: str, seed: int = 0) -> Run:
    return BASE.varied(rule=rule, attack=attack, seed=seed)


def column(page: Opened, name: str) -> list[str]:
    """A column of the table of runs, without the heads of groups."""
    script = """(name) => {
      const heads = [...document.querySelectorAll("#table thead th")];
      const k = heads.findIndex((one) => one.querySelector("button")?.dataset.column === name);
      return [...document.querySelectorAll("#table tbody tr:not(.group)")]
        .map((row) => row.children[k].textContent);
    }"""
    return list(page.page.evaluate(script, name))


def test_a_cell_opens_its_curves_and_weights_by_keyboard_and_its_link_does_so_again(
    page: Opened, browser: Browser
) -> None:
    found = page.page
    link = found.locator(f"#matrices a[href='#cell-{run(RULES[1], ATTACKS[2]).identity}']").last
    link.focus()
    found.keyboard.press("Enter")
    page.until("document.querySelector('#viewer').open")
    page.until("document.querySelector('#view-curves').data?.length === 3")
    for fresh in (page, opened_at(browser, found.url)):
        assert fresh.page.inner_text("#view-title") == "Bucketing(s=2) >> Krum under Mimic"
        values = [accuracy(RULES[1], ATTACKS[2], seed) for seed in SEEDS]
        mean = f"test accuracy {fmean(values):.1f} ± {stdev(values):.1f} %; 3 seeds: 3 completed"
        assert mean in fresh.page.inner_text("#view-about")
        curves = fresh.plotted("#view-curves")
        assert [(one["name"], one["y"]) for one in curves] == [
            (f"seed {seed}", [20, 40, 60]) for seed in SEEDS
        ]
        assert fresh.page.locator("#view-heat tbody tr").count() == BASE.n
        (bars,) = fresh.plotted("#view-standing")
        assert len(bars["x"]) == BASE.n
        assert fresh.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    found.keyboard.press("Escape")
    page.until("!document.querySelector('#viewer').open")
    assert "#" not in found.url
    assert found.evaluate("document.activeElement.href").endswith(str(link.get_attribute("href")))
    assert page.said == []
    found.context.close()


def test_the_chosen_seed_is_the_one_whose_settings_are_shown(browser: Browser, path: Path) -> None:
    one = run(RULES[0], ATTACKS[0], seed=2)
    page = opened_at(browser, f"{path.as_uri()}#cell-{one.identity}").page
    page.select_option("#view-seed", one.identity)
    assert "--seed 2" in str(page.text_content("#view-run code"))
    page.context.close()


def test_a_link_to_a_run_that_is_not_there_says_so(browser: Browser, path: Path) -> None:
    page = opened_at(browser, f"{path.as_uri()}#cell-{'0' * 16}").page
    assert page.inner_text("#view-title") == "Not in this report"
    assert "not among these results" in page.inner_text("#view-about")
    assert not page.is_visible("#view-body")
    page.context.close()


def test_the_table_of_runs_sorts_by_keyboard(page: Opened) -> None:
    found = page.page
    means = [fmean(accuracy(r, a, s) for s in SEEDS) for r in RULES for a in ATTACKS]
    button = found.locator("#table [data-column=accuracy]")
    for means_in_order, direction in (
        (sorted(means), "ascending"),
        (sorted(means, reverse=True), "descending"),
    ):
        button.focus()
        found.keyboard.press("Enter")
        shown = [float(text.split()[0]) for text in column(page, "accuracy")]
        assert shown == pytest.approx(means_in_order, abs=0.051)
        head = found.locator("#table th", has=found.locator("[data-column=accuracy]"))
        assert head.get_attribute("aria-sort") == direction
        assert found.evaluate("document.activeElement.dataset.column") == "accuracy"
    found.context.close()


def test_the_table_of_runs_groups_and_shows_each_run(page: Opened) -> None:
    found = page.page
    found.select_option("#rows", "runs")
    assert len(column(page, "seed")) == len(RULES) * len(ATTACKS) * len(SEEDS)
    found.select_option("#group", "rule")
    heads = found.locator("#table tr.group").all_inner_texts()
    values = [accuracy(RULES[0], attack, seed) for attack in ATTACKS for seed in SEEDS]
    expected = f"rule Krum: 15 runs, {min(values):.1f} to {max(values):.1f} %"
    assert expected in [head.strip() for head in heads]
    assert len(heads) == len(RULES)
    found.context.close()


def test_two_configurations_are_compared(page: Opened, browser: Browser) -> None:
    found = page.page
    pair = [run(rule, ATTACKS[1]) for rule in RULES[:2]]
    assert found.get_attribute("#compare", "href") is None
    for one in pair:
        found.locator(f"#table [data-identity='{one.identity}']").check()
    found.focus("#compare")
    found.keyboard.press("Enter")
    page.until("document.querySelector('#viewer').open")
    for fresh in (page, opened_at(browser, found.url)):
        script = """[...document.querySelectorAll("#view-pair tbody tr")]
          .map((row) => [...row.children].map((cell) => cell.textContent))"""
        rows = {row[0]: row[1:] for row in fresh.page.evaluate(script)}
        assert rows["rule"][:2] == [one.rule for one in pair]
        assert rows["accuracy"] == ["88.5 ± 1.5 %", "68.5 ± 1.5 %", "\N{MINUS SIGN}20.0"]
        assert rows["seed 2"] == ["90.0", "70.0", "\N{MINUS SIGN}20.0"]
        assert set(rows) == {"rule", "accuracy", "seeds", "seed 0", "seed 1", "seed 2"}
        assert len(fresh.plotted("#view-curves")) == 2
    found.context.close()


def test_a_third_configuration_replaces_the_first(browser: Browser, path: Path) -> None:
    page = opened(browser, path).page
    three = [run(rule, ATTACKS[0]).identity for rule in RULES]
    for identity in three:
        page.locator(f"#table [data-identity='{identity}']").check()
    assert page.get_attribute("#compare", "href") == f"#compare-{three[1]}-{three[2]}"
    page.context.close()


def test_titles_and_columns_are_those_of_the_terminal(
    browser: Browser, path: Path, store: Store
) -> None:
    page = opened(browser, path).page
    (table,) = pivots(store)
    assert page.inner_text("#matrices .title") == table.artifact.title
    script = """[...document.querySelectorAll("#matrices thead th")]
      .map((one) => one.firstChild?.textContent ?? "").filter((text) => text)"""
    assert distinct(page.evaluate(script)) == list(text_tables.grid(table).head)
    page.context.close()


def distinct(texts: list[str]) -> list[str]:
    return list(dict.fromkeys(texts))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_tables_show_that_they_scroll(
    browser: Browser, path: Path, scheme: Literal["light", "dark"]
) -> None:
    phone = opened(browser, path, 390)
    page = phone.page
    page.emulate_media(color_scheme=scheme)
    box = page.locator("#matrices .box").first
    phone.until("document.querySelector('#matrices .box').dataset.more === 'right'")
    fades = "(one) => getComputedStyle(one).maskImage"
    assert "rgba(0, 0, 0, 0)" in box.evaluate(fades)
    box.focus()  # keys scroll it
    box.evaluate("(one) => { one.scrollLeft = 1e4; }")
    phone.until("document.querySelector('#matrices .box').dataset.more === 'left'")
    # Every link of the navigation is reached: it is in view, or its edge fades.
    bar = page.locator("#contents")
    last = bar.locator("a").last.bounding_box()
    assert last is not None
    cut = last["x"] + last["width"] > 390
    assert cut == ("right" in str(bar.get_attribute("data-more")))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


def test_charts_out_of_view_are_drawn_before_printing(browser: Browser, path: Path) -> None:
    """Nothing was scrolled to; the paper has the lines all the same."""
    page = opened(browser, path, 390, 400).page
    page.evaluate("""addEventListener("beforeprint", () => {
      window.lines = [...document.querySelectorAll("main .plot")]
        .map((one) => one.querySelectorAll(".trace path, .point path").length);
    })""")
    page.pdf()
    lines = page.evaluate("window.lines")
    assert lines
    assert all(lines)
    page.context.close()
