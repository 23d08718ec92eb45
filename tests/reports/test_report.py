"""The report, opened in Chromium: what it shows, and that nothing in it can do harm.

Nothing is trained: the folders of runs are written by hand.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

import pytest
from report_page import HOSTILE, Opened, lay, metrics, opened

from byzantium.learning import metrics as metrics_table
from byzantium.papers import compare, published
from byzantium.papers.bucketing import artifact
from byzantium.reports import palette, report
from byzantium.reports.contents import contents as page_contents
from byzantium.reports.promises import command
from byzantium.runs import Run, Store
from byzantium.runs.job import FAILURE, METRICS
from byzantium.tables import CRITERION, Ranking, Row, Version, pivots, terms

if TYPE_CHECKING:
    from playwright.sync_api import Browser

REASON = f"OSError: no space {HOSTILE}"
DIVERGED = {"status": "diverged in round 61", "accuracy": None}
BASE = Run(rounds=90, n=15, f=2)
KRUM, BUCKETED, MEDIAN, MEAN = "Krum()", "Bucketing(s=2) >> Krum()", "Median()", "Mean()"
ATTACKS = ("BitFlip()", "ALittleIsEnough()")
# Rule, attack, accuracies of its seeds; nan is a run that diverged.
ACCURACIES = {
    (KRUM, "BitFlip()"): (31.0, 33.0),
    (KRUM, "ALittleIsEnough()"): (78.0, 80.0),
    (BUCKETED, "BitFlip()"): (58.5, 60.5),
    (BUCKETED, "ALittleIsEnough()"): (55.0, 53.0),
    (MEDIAN, "BitFlip()"): (61.0, 62.0),
    (MEAN, "BitFlip()"): (70.0, math.nan),
}


# -- a store without training -------------------------------------------------------------------


CHEAP = Version(seeds=1, rounds=90, model="mlp", data="digits", only="krum s=1 momentum=0.0")
ONE_SEED = Version(seeds=1, only="noniid")
MADE = {
    "figure-main": CHEAP,
    "table2": ONE_SEED,
    "figure-krum-selections": Version(seeds=1, rounds=90, model="mlp", data="digits"),
    "figure-mimic-demo": Version(),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Runs of our own, and some of the paper's; of table2 the first is missing."""
    store = Store(tmp_path_factory.mktemp("results"))
    for (rule, attack), accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            run = BASE.varied(rule=rule, attack=attack, seed=seed)
            lay(store, run, DIVERGED if math.isnan(accuracy) else {"accuracy": accuracy})
    lay(store, BASE.varied(rule=MEDIAN, attack="Mimic()"), None)
    for seed in (7, 8):
        failed = BASE.varied(rule=MEDIAN, attack="Mimic()", seed=seed)
        lay(store, failed, None)
        (store.folder(failed) / FAILURE).write_text(json.dumps({"reason": REASON}))
    for name, version in MADE.items():
        jobs = artifact(name, version).jobs
        for k, job in enumerate(jobs[1:] if name == "table2" else jobs):
            measure = "accuracy" if isinstance(job, Run) else "error"
            diverged = name == "figure-main" and k == 1
            lay(store, job, DIVERGED if diverged else {measure: 37.0})
    return store


@pytest.fixture(scope="module")
def path(store: Store) -> Path:
    comparisons = [compare(artifact(name, v), store) for name, v in MADE.items()]
    # Texts of an artifact reach the page, too.
    first = comparisons[0]
    comparisons[0] = replace(first, artifact=replace(first.artifact, notes=HOSTILE))
    return report.write(store, comparisons, store.root / "report.html", f"Ours {HOSTILE}")


# -- the browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desktop(browser: Browser, path: Path) -> Opened:
    return opened(browser, path)


@pytest.fixture(autouse=True)
def all_shown(request: pytest.FixtureRequest) -> None:
    """No test leaves a filter behind, and all can be chosen."""
    if "desktop" in request.fixturenames:
        page = request.getfixturevalue("desktop").page
        page.evaluate("document.getElementById('clear').click()")
        page.evaluate("document.getElementById('filters').hidden = false")


# -- facts --------------------------------------------------------------------------------------


def matrix(page: Opened) -> dict[str, list[str]]:
    """The rows of the matrix of BASE: a pipeline, and its cells, the worst first."""
    script = """() => {
      const table = [...document.querySelectorAll(".matrix")]
        .find((one) => one.getAttribute("aria-label").includes("n = 15"));
      return [...table.querySelectorAll("tbody tr:not(.above-rows)")].map((row) => [
        row.querySelector(".mixing").title,
        [...row.querySelectorAll("td:not(.gap)")].map((cell) => cell.textContent)]);
    }"""
    return dict(page.page.evaluate(script))


def expected_worst(rule: str, attacks: tuple[str, ...] = ATTACKS) -> str:
    """From the accuracies alone: the least mean over seeds; a run that diverged is worse."""
    found = [ACCURACIES[rule, attack] for attack in attacks]
    if any(math.isnan(value) for values in found for value in values):
        return "diverged"
    values = min(found, key=fmean)
    return f"{fmean(values):.1f}± {stdev(values):.1f}"


def test_it_opens_without_a_word_and_without_the_network(desktop: Opened, path: Path) -> None:
    page = desktop.page
    for section in ("#worst", "#artifacts", "#curves", "#trust", "#runs"):
        desktop.scroll_to(section)
        page.wait_for_timeout(150)
    desktop.until("document.querySelector('#standing').data")
    assert desktop.said == []
    assert desktop.fetched == [path.as_uri()]


def test_the_worst_is_the_least_mean_over_seeds(desktop: Opened) -> None:
    rows = matrix(desktop)
    for rule in (KRUM, BUCKETED):
        text = BASE.varied(rule=rule).rule
        assert rows[text] == [expected_worst(rule), *(expected_worst(rule, (a,)) for a in ATTACKS)]
    ordered = (MEAN, KRUM, BUCKETED, MEDIAN)  # as in the paper
    assert list(rows) == [BASE.varied(rule=rule).rule for rule in ordered]


def test_a_run_that_diverged_is_the_worst(desktop: Opened) -> None:
    rows = matrix(desktop)
    worst, cell, _ = rows[BASE.varied(rule=MEAN).rule]
    assert cell.startswith("diverged")
    assert worst.startswith(expected_worst(MEAN, ATTACKS[:1]))
    assert "1 of 2" in cell


def test_what_failed_is_counted_and_why(desktop: Opened) -> None:
    page = desktop.page
    assert "2 failed" in page.inner_text("#facts")
    assert page.inner_text("#failures li") == f"2 runs failed: {REASON}"
    run = BASE.varied(rule=MEDIAN, attack="Mimic()", seed=7)
    page.get_by_label("Mimic", exact=True).check()
    choice = page.locator("#choice option").filter(has_text=re.compile("^CM · Mimic · seed 7$"))
    page.select_option("#choice", choice.first.get_attribute("value"))
    assert page.text_content("#run code") == command(run)
    shown = page.locator("#run tr.result td").all_text_contents()
    assert shown[:2] == ["failed", REASON]


def test_filters_change_what_is_shown(desktop: Opened, store: Store) -> None:
    page, runs = desktop.page, [result for result in store if isinstance(result.job, Run)]
    assert page.inner_text("#count") == f"{len(runs)} of {len(runs)} runs shown"
    page.get_by_label("BF", exact=True).check()
    hit = [r for r in runs if isinstance(r.job, Run) and r.job.attack == "BitFlip()"]
    assert page.inner_text("#count") == f"{len(hit)} of {len(runs)} runs shown"
    rows = matrix(desktop)
    krum = BASE.varied(rule=BUCKETED).rule
    assert rows[krum] == [expected_worst(BUCKETED, ATTACKS[:1])]  # of one attack there is no worst
    page.get_by_role("button", name="show all").click()
    assert page.inner_text("#count") == f"{len(runs)} of {len(runs)} runs shown"


def test_a_filter_that_leaves_nothing_of_an_artifact_says_so(desktop: Opened) -> None:
    desktop.page.get_by_label("CM", exact=True).check()
    assert desktop.page.locator("#artifact0 figure:visible").count() == 0
    assert "passes the filters" in desktop.page.inner_text("#artifact0")


def test_published_curves_lie_behind_ours(desktop: Opened) -> None:
    traces = desktop.plotted("#artifact0 .plot")
    labels = artifact("figure-main", CHEAP).cells[0].labels
    theirs = published.curves("figure-main", labels)
    assert [trace["name"] for trace in traces] == ["published"] * len(theirs) + ["ours"]
    assert traces[0]["x"] == [point[0] for point in theirs[0]]
    assert traces[0]["y"] == pytest.approx([point[1] for point in theirs[0]], rel=1e-4)
    assert traces[-1]["y"] == [20, 40, 60]
    assert [trace["line"]["width"] < 1 for trace in traces] == [True] * len(theirs) + [False]
    assert len({trace["line"]["color"] for trace in traces}) == 1


def test_a_legend_hides_lines(desktop: Opened) -> None:
    desktop.plotted("#artifact0 .plot")
    button = desktop.page.get_by_role("button", name="published")
    button.click()
    drawn = "document.querySelector('#artifact0 .plot').data.length"
    desktop.until(f"{drawn} === 1")
    button.click()
    desktop.until(f"{drawn} > 1")


def test_a_missing_cell_shows_what_makes_it(desktop: Opened, store: Store) -> None:
    comparison = compare(artifact("table2", ONE_SEED), store)
    summary = desktop.page.locator("#artifact1 .missing summary")
    assert summary.inner_text() == "missing"
    summary.click()
    code = desktop.page.inner_text("#artifact1 .missing code")
    assert code == comparison.command(comparison.cells[0])


def test_verdicts_are_given_for_the_papers_settings_alone(desktop: Opened) -> None:
    krum = desktop.page.locator("#artifact1 tbody tr", has_text="krum")
    assert [text.split() for text in krum.locator("td").all_inner_texts()] == [
        ["37.33", "±", "6.78"],
        ["37.00"],
        ["\N{MINUS SIGN}0.33", "✓", "agrees", "±13.6,", "1", "seed"],
    ]
    assert CRITERION in desktop.page.inner_text("#artifact1")
    # Of what is not comparable no difference is shown.
    assert "difference" not in (desktop.page.text_content("#artifact0 .table") or "")
    assert "agrees" not in desktop.page.inner_text("#artifact0")
    assert "No verdict" in desktop.page.inner_text("#artifact0")
    assert "cheaper version: 1 seed instead of 3," in desktop.page.inner_text("#artifact0 .badge")
    assert "pairs" in desktop.page.inner_text("#artifact1")
    assert "Nothing was published" in desktop.page.inner_text("#artifact2")


def test_bars_show_attackers_and_points_a_line_for_each_rule(desktop: Opened) -> None:
    (bars,) = desktop.plotted("#artifact2 .plot")
    colours = bars["marker"]["color"]
    assert len(set(colours[:18])) == len(set(colours[18:])) == 1
    assert colours[0] != colours[-1]
    traces = desktop.plotted("#artifact3 .plot")
    labels = ("mean", "krum", "median", "rfa")
    assert [trace["name"] for trace in traces] == [terms.BY_LABEL[label].full for label in labels]
    styles = [palette.RULE_STYLES[label] for label in labels]
    assert [trace["line"]["color"] for trace in traces] == [rgb(s.color.light) for s in styles]
    assert (colours[0], colours[-1]) == (rgb(palette.HONEST.light), rgb(palette.ATTACKER.light))


def rgb(colour: str) -> str:
    """A colour as the browser writes it."""
    return f"rgb({','.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def test_rules_and_lines_have_the_colours_of_the_figures(desktop: Opened) -> None:
    (line,) = [t for t in desktop.plotted("#artifact0 .plot") if t["name"] == "ours"]
    assert line["line"]["color"] == rgb(palette.LINES["s"][1].light)
    desktop.page.get_by_label("Krum", exact=True).check()
    desktop.scroll_to("#explorer")
    krum = rgb(palette.RULE_STYLES["krum"].color.light)
    shown = "document.querySelector('#explorer').data?.every((t) => t.line.color === '{}')"
    desktop.until(shown.format(krum))
    desktop.page.evaluate("document.getElementById('clear').click()")
    dots = desktop.page.evaluate(
        """[...document.querySelectorAll(".matrix .beside-rows .dot")].map((dot) =>
          [dot.parentElement.title.split("(")[0], getComputedStyle(dot).backgroundColor])"""
    )
    known = {name: rgb(style.color.light) for name, style in palette.BY_CLASS.items()}
    assert len(dots) > 4
    assert all(known[kind] == colour.replace(" ", "") for kind, colour in dots)


def test_a_rule_without_a_colour_of_its_own_gets_one(tmp_path: Path, browser: Browser) -> None:
    store = Store(tmp_path)
    for rule in ("Krum()", "MinimumDiameter()", "SpectralFilter()"):
        lay(store, BASE.varied(rule=rule), {"accuracy": 50.0})
    page = opened(browser, report.write(store, [], tmp_path / "report.html"))
    colours = page.page.evaluate(
        """[...document.querySelectorAll(".matrix .beside-rows .dot")].map((dot) =>
          getComputedStyle(dot).backgroundColor.replaceAll(" ", ""))"""
    )
    given = {palette.RULE_STYLES["krum"].color, *palette.OTHER_RULES[:2]}
    assert set(colours) == {rgb(colour.light) for colour in given}
    page.page.context.close()


def test_the_explorer_draws_every_run_and_quantity(desktop: Opened, store: Store) -> None:
    page, runs = desktop.page, [result for result in store if isinstance(result.job, Run)]
    desktop.scroll_to("#explorer")
    values = "all => all.map((option) => option.value)"
    seen = 0
    for setting in page.locator("#setting option").evaluate_all(values):
        page.select_option("#setting", setting)
        plot = "document.querySelector('#explorer')"
        drawn = f"JSON.parse({plot}.layout?.uirevision ?? '[]')[0]"
        desktop.until(f"{drawn} === {json.dumps(setting)}")
        seen += sum(
            int(s)
            for s in page.evaluate(
                f"{plot}.data.filter((t) => t.meta).map((t) => t.meta[1].match(/, (\\d+) seed/)[1])"
            )
        )
        # A panel for each attack, and in it the runs under this attack alone.
        panels = page.evaluate(
            f"{plot}.data.filter((t) => t.meta)"
            ".map((t) => [t.xaxis, t.meta[1].split(',')[0]].join(' '))"
        )
        titles = page.evaluate(f"{plot}.layout.annotations.map((a) => a.xref.split(' ')[0])")
        assert {panel.split()[0] for panel in panels} == set(titles)
        assert len(set(panels)) == len(titles)
    assert seen == len(runs)
    quantities = page.locator("#quantity option").evaluate_all(values)
    assert quantities == ["accuracy", "loss", "train_loss", "distance", "spread"]
    titles = page.locator("#quantity option").all_text_contents()
    assert titles == [metrics_table.TABLE[name].title for name in quantities]
    page.select_option("#quantity", "train_loss")
    drawn = "document.querySelector('#explorer').data"
    desktop.until(f"{drawn}.filter((t) => t.meta)[0].y[0] === 2.1")
    page.select_option("#quantity", "accuracy")


def test_a_chosen_run_shows_weights_and_its_command(desktop: Opened) -> None:
    page = desktop.page
    run = BASE.varied(rule=KRUM, attack="BitFlip()", seed=1)
    page.get_by_label("Krum", exact=True).check()
    choice = page.locator("#choice option").filter(has_text=re.compile("^Krum · BF · seed 1$"))
    page.select_option("#choice", choice.first.get_attribute("value"))
    assert page.text_content("#run code") == command(run)
    assert page.inner_text("#about") == "Krum under BF (bit flip)"
    rows = "[...document.querySelectorAll('#heat tbody tr')]"
    shape = page.evaluate(f"{rows}.map((row) => row.querySelectorAll('td').length)")
    assert shape == [3] * run.n
    names = page.locator("#heat tbody th").all_inner_texts()
    assert ["attacker" in name for name in names] == [False] * 13 + [True] * 2
    title = page.locator("#heat tbody tr").nth(1).locator("td").first.get_attribute("title")
    assert title == "worker 1, until round 30: 0.0867"
    assert "The 2 attackers had" in page.inner_text("#share")
    results = page.locator("#run tr.result").all_text_contents()
    assert "covered: squared error <=" in " ".join(results)


def test_what_comes_from_files_is_text_and_never_runs(desktop: Opened) -> None:
    page = desktop.page
    assert page.evaluate("window.pwned") is None
    assert page.title() == f"Ours {HOSTILE}"
    assert HOSTILE in page.inner_text("#made")
    assert HOSTILE in page.inner_text("#artifact0")
    assert page.locator("img").count() == 0
    # The data and two scripts; no text is read as one.
    assert page.locator("script").count() == 3


def test_the_theme_is_the_readers_and_can_be_changed(desktop: Opened) -> None:
    page = desktop.page
    desktop.plotted("#explorer")
    ink = "document.querySelector('#explorer').layout.font.color"
    light, on_light = desktop.background(), page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    dark = desktop.background()
    assert dark != light
    desktop.until(f"{ink} !== '{on_light}'")
    page.click("#theme")
    assert desktop.background() == light
    desktop.until(f"{ink} === '{on_light}'")
    page.emulate_media(color_scheme="light")
    assert desktop.background() == light
    page.click("#theme")
    assert desktop.background() == dark
    page.click("#theme")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_there_is_something_to_see(desktop: Opened, scheme: Literal["light", "dark"]) -> None:
    desktop.page.emulate_media(color_scheme=scheme)
    desktop.page.evaluate("document.documentElement.style.colorScheme = ''")
    desktop.scroll_to("#worst")
    assert desktop.colours() > 100
    desktop.plotted("#standing")
    assert desktop.colours() > 100
    desktop.page.emulate_media(color_scheme="light")


def test_it_fits_a_phone(browser: Browser, path: Path) -> None:
    phone = opened(browser, path, width=390)
    for section in ("#worst", "#artifact0", "#artifact2", "#explorer", "#trust"):
        phone.scroll_to(section)
        phone.page.wait_for_timeout(60)
        assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert phone.said == []
    phone.page.context.close()


def test_everything_is_drawn_for_paper(desktop: Opened) -> None:
    page = desktop.page
    page.emulate_media(color_scheme="dark")
    page.evaluate("""addEventListener("beforeprint", () => {
      const charts = [...document.querySelectorAll("main .plot")];
      window.drawn = charts.map((element) => element._fullLayout?.width ?? null);
      window.paper = getComputedStyle(document.body).backgroundColor;
    })""")
    assert page.pdf().startswith(b"%PDF")
    widths = page.evaluate("window.drawn")
    assert len(widths) > 8
    assert all(width is not None and width <= 690 for width in widths)
    assert page.evaluate("window.paper") != desktop.background()
    page.emulate_media(color_scheme="light")
    assert page.evaluate("window.paper") == desktop.background()
    desktop.scroll_to("#explorer")
    desktop.until("document.querySelector('#explorer')._fullLayout.width > 1000")


def test_an_empty_store_makes_a_page(tmp_path: Path, browser: Browser) -> None:
    path = report.write(Store(tmp_path / "none"), [], tmp_path / "deep" / "report.html")
    empty = opened(browser, path)
    assert "No runs yet" in empty.page.inner_text("header")
    for section in ("#worst", "#curves", "#trust"):
        empty.scroll_to(section)
        empty.page.wait_for_timeout(60)
    assert empty.said == []
    empty.page.context.close()


def test_a_hundred_runs_stay_small(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in range(100):
        run = Run(rule=KRUM, attack="BitFlip()", rounds=600, seed=seed)
        lay(store, run, {"accuracy": 71.23456789}, evaluations=20)
    contents = json.dumps(page_contents(store, []))
    assert len(contents) < 0.55e6  # most of it weights; a page packs it to a fiftieth


def test_a_rule_that_is_the_only_one_of_its_name_is_called_by_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for rule in ("Krum(power=4)", "CenteredClipping(radius=1)", "CenteredClipping(radius=2)"):
        lay(store, BASE.varied(rule=rule), {"accuracy": 50.0})
    labels = page_contents(store, [])["labels"]
    assert labels["Krum(power=4)"] == "Krum"
    assert labels["CenteredClipping(radius=1)"] == "CClip(radius=1)"


def test_many_evaluations_are_averaged_for_the_heat_map(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lay(store, BASE, None, evaluations=130)
    (run,) = page_contents(store, [])["runs"]
    assert len(run["series"]["round"]) == 130
    assert run["weights"]["round"] == [210 * (k + 1) for k in range(18)] + [3900]
    assert run["status"] == "unfinished"


def test_the_library_is_inside_as_npm_has_it_and_the_file_is_small(path: Path) -> None:
    """Its licence stays in it, and nobody changed it: page/README.md has the digest."""
    page = resources.files("byzantium.reports").joinpath("page")
    library = page.joinpath("plotly-basic.min.js").read_bytes()
    notes = page.joinpath("README.md").read_text()
    assert hashlib.sha256(library).hexdigest() in notes
    assert b"Licensed under the MIT license" in library[:400]
    assert "Permission is hereby granted" in page.joinpath("plotly-LICENSE.txt").read_text()
    assert len(path.read_bytes()) < 2e6


# -- the first screen ---------------------------------------------------------------------------


DEMO = {
    ("GeometricMedian()", "InnerProduct(epsilon=0.1)"): 10.9,
    ("GeometricMedian()", "Mimic(warmup=1)"): 62.3,
    ("Bucketing(s=2) >> GeometricMedian()", "InnerProduct(epsilon=0.1)"): 92.7,
    ("Bucketing(s=2) >> GeometricMedian()", "Mimic(warmup=1)"): 89.9,
    ("Krum()", "InnerProduct(epsilon=0.1)"): 19.0,
    ("Krum()", "Mimic(warmup=1)"): 28.7,
}
HEARD = "GeometricMedian()", "InnerProduct(epsilon=0.1)"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demonstration in which in one run attackers alone counted."""
    store = Store(tmp_path_factory.mktemp("demo"))
    for (rule, attack), accuracy in DEMO.items():
        run = BASE.varied(rule=rule, attack=attack, rounds=300)
        lay(store, run, {"accuracy": accuracy}, evaluations=10)
        if (rule, attack) == HEARD:
            weights = [0.0] * 13 + [0.5] * 2
            lines = [{**metrics(run, k + 1), "weights": weights} for k in range(10)]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (store.folder(run) / METRICS).write_text(text)
    return report.write(store, [], store.root / "report.html")


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_makes_the_point(
    browser: Browser, demo: Path, width: int, height: int
) -> None:
    page = opened(browser, demo, width, height)
    assert page.page.inner_text("#sentence") == (
        "Under the worst of 2 attacks, Bucketing(s=2) >> RFA is best, with a test accuracy of "
        "90 %; RFA (geometric median) has 11 %."
    )
    assert page.page.inner_text(".numbers").split() == ["11", "%", "→", "90", "%"]
    seen = """(text) => [...document.querySelectorAll("#sentence, .numbers, .matrix :is(th, td)")]
      .filter((one) => [one.textContent.trim(), one.childNodes[1]?.textContent].includes(text))
      .map((one) => [one.tagName, one.getBoundingClientRect()])
      .some(([tag, { width, top, left, right, bottom }]) => width && top >= 0 && left >= 0 &&
        bottom <= innerHeight && (right <= innerWidth || tag === "TH"))"""
    texts = [page.page.text_content("#sentence"), "11 % → 90 %", "worst", "RFA", "10.9", "89.9"]
    assert [text for text in texts if not page.page.evaluate(seen, text)] == []
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    page.page.context.close()


def test_the_trust_picture_opens_on_the_run_that_heard_attackers_most(
    browser: Browser, demo: Path
) -> None:
    found = opened(browser, demo)
    page = found.page
    assert page.inner_text("#about") == "RFA (geometric median) under IPM (inner product)"
    assert "had 100.0 % of the weight" in page.inner_text("#share")
    assert "followed them" in page.inner_text("#share")
    assert page.inner_text("#does").startswith("RFA: ")
    for word in ("mimics", "count most", "not whether it is bad"):
        assert word in page.inner_text("#caution")
    unheard = page.inner_text("#suspicion")
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12." in unheard
    assert "0 are attackers and 13 honest" in unheard
    (bars,) = found.plotted("#standing")
    assert bars["x"] == [0] * 13 + [7.5] * 2  # in equal shares of 15
    page.context.close()


def test_charts_have_titles_on_both_axes(desktop: Opened) -> None:
    titles = "(({ xaxis, yaxis }) => [xaxis.title?.text, yaxis.title?.text])"
    for selector in ("#artifact0 .plot", "#artifact2 .plot", "#artifact3 .plot", "#explorer"):
        desktop.plotted(selector)
        found = desktop.page.evaluate(f"{titles}(document.querySelector('{selector}').layout)")
        assert all(found), selector


def test_lines_that_coincide_are_zoomed_to(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for rule, last in ((KRUM, 91.0), (MEDIAN, 94.0)):
        run = BASE.varied(rule=rule, attack="BitFlip()")
        lay(store, run, {"accuracy": last}, evaluations=9)
        lines = [{**metrics(run, k + 1), "accuracy": last if k > 1 else 20.0} for k in range(9)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (store.folder(run) / METRICS).write_text(text)
    page = opened(browser, report.write(store, [], tmp_path / "report.html"))
    page.plotted("#explorer")
    low, high = page.page.evaluate("document.querySelector('#explorer').layout.yaxis.range")
    assert 85 < low < 91
    assert 94 < high <= 100
    page.page.context.close()


def test_a_success_rate_has_its_own_range_and_less_of_it_is_better(
    browser: Browser, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    for attack, rate in (("Backdoor()", 20.0), ("Backdoor(boost='n')", 70.0)):
        run = BASE.varied(rule=KRUM, attack=attack)
        lay(store, run, {"accuracy": 91.0}, evaluations=9)
        rates = {"accuracy": 91.0, "success_rate": rate}
        lines = [{**metrics(run, k + 1), **rates} for k in range(9)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (store.folder(run) / METRICS).write_text(text)
    tables = pivots(store, metric="success_rate")
    page = opened(browser, report.write(store, [], tmp_path / "report.html", tables=tables))
    assert page.page.inner_text("#matrices td.worst").startswith("70.0")
    assert "success rate of the backdoor (%), less is better" in page.page.inner_text("#matrices")
    page.plotted("#explorer")
    assert page.page.evaluate("document.querySelector('#explorer').layout.yaxis.range[0]") > 80
    page.page.select_option("#quantity", "success_rate")
    page.until("document.querySelector('#explorer').layout.yaxis.range[0] === 0")
    page.page.context.close()


@pytest.mark.parametrize("evaluations", [4, 20])
def test_the_page_names_the_unheard_once_there_are_enough_evaluations(
    browser: Browser, tmp_path: Path, evaluations: int
) -> None:
    """Attackers have all the weight, and take turns."""
    store, run = Store(tmp_path), Run(rule="Krum()", attack="LabelFlip()", n=25, f=5)
    lay(store, run, {"accuracy": 10.0}, evaluations)
    path = store.folder(run) / METRICS
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for k, line in enumerate(lines):
        line["weights"] = [float(worker == 20 + k % 5) for worker in range(25)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = opened(browser, report.write(store, [], tmp_path / "report.html")).page
    assert "had 100.0 % of the weight" in page.inner_text("#share")
    said = page.inner_text("#suspicion")
    if evaluations < 5:
        assert said == "The weights of so few evaluations do not show who went unheard."
    else:
        assert "0 are attackers and 20 honest" in said


# -- the ranking of the benchmark ---------------------------------------------------------------


def test_the_ranking_of_the_benchmark_is_shown(browser: Browser, tmp_path: Path) -> None:
    def scores(none: float, x: float, y: float) -> dict[tuple[str, int], dict[str, Any]]:
        attacks = {"none": (none,) * 2, "x": (x, x + 2), "y": (y, y + 1)}
        return {("noniid", 5): attacks, ("iid", 5): attacks}

    rows = (
        Row("a", "Krum()", 0, scores(90, 10, 80), "abc"),
        Row("b", "Median()", 0, scores(80, 60, 40), "abc"),
        Row("mine", f"Mine('{HOSTILE}')", 0, scores(70, 30, 35)),
    )
    ranking = Ranking("1", ("x", "y"), rows, "a machine")
    page = opened(browser, report.write([], [], tmp_path / "r.html", ranking=ranking))
    titles = page.page.locator("#ranking .title").all_inner_texts()
    assert titles == ["Data sorted by label", "Iid data"]
    table = page.page.locator("#ranking-tables table").first
    assert [line.split("\t") for line in table.inner_text().splitlines()] == [
        ["pipeline", "f = 5", "nobody attacks"],
        ["Median()", "40.5 ± 0.7 (y)", "80.0"],
        [f"Mine('{HOSTILE}') *", "31.0 ± 1.4 (x)", "70.0"],
        ["Krum()", "11.0 ± 1.4 (x)", "90.0"],
    ]
    heat = page.page.locator("#ranking-heat tbody tr").first.inner_text().split("\t")
    assert heat == ["Median()", "80", "61", "41"]
    others, best = page.plotted("#ranking-price .plot")
    assert (others["x"], others["y"]) == ([70], [31])
    assert (best["x"], best["y"]) == ([80, 90], [40.5, 11])
    sentences = page.page.locator("#ranking-sentences li").all_inner_texts()
    assert sentences[0] == (
        "Median() falls below 50 % on data sorted by label with 5 of 25 attackers (y leaves 40.5 % "
        "with 5)."
    )
    assert page.page.inner_text("#contents").split("\n")[0].startswith("ranking")
    assert page.said == []


def test_other_reports_have_no_ranking(desktop: Opened) -> None:
    assert desktop.page.locator("#ranking").is_hidden()
    assert "ranking" not in desktop.page.inner_text("#contents")
