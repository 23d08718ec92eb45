"""The graph of a training without a server on the page, in Chromium."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from report_page import Opened, lay, opened_at

from byzantium.learning.topology import read
from byzantium.reports import graphs, report
from byzantium.runs import Run, Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DUMBBELL = Run(
    topology="dumbbell", n=10, f=1, rule="ClippedGossip()", attack="Dissensus()", rounds=90
)
SERVER = Run(n=10, f=1, rule="Median()", rounds=90)
SILENT = DUMBBELL.varied(rule="TrimmedGossip()", record=())
LARGE = DUMBBELL.varied(topology="complete", n=70, rule="TrimmedMean()")


def kept(run: Run) -> list[float]:
    """All of each edge, a quarter of the bridge, and nothing of those to the attacker, node 9."""
    edges = [edge for edge in read(str(run.topology), run.n).edges if edge[0] < run.n - 1]
    return [0.25 if edge == (4, 5) else float(edge[1] < 9) for edge in edges]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("results"))
    for run in (DUMBBELL, SERVER, SILENT, LARGE):
        lay(store, run, {"accuracy": 50.0})
        path = store.folder(run) / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if run.topology is not None and run.record:
            lines = [{**line, "kept": kept(run)} for line in lines]
        if run == SILENT:
            lines = [{k: v for k, v in line.items() if k != "weights"} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return store


@pytest.fixture(scope="module")
def path(store: Store) -> Path:
    return report.write(store, [], store.root / "report.html")


@pytest.fixture
def page(browser: Browser, path: Path) -> Opened:
    return opened_at(browser, f"{path.as_uri()}#cell-{DUMBBELL.identity}")


def at(browser: Browser, path: Path, run: Run) -> Opened:
    return opened_at(browser, f"{path.as_uri()}#cell-{run.identity}")


def test_the_graph_marks_attackers_and_what_was_clipped(page: Opened) -> None:
    found = page.page.locator("#view-graph")
    assert found.locator("figure > svg .edge").count() == 21
    assert found.locator("figure > svg .honest circle").count() == 9
    assert found.locator("figure > svg .bad rect").count() == 1
    assert found.locator("figure > svg .bad text").text_content() == "9"
    titles = found.locator(".edge title").all_text_contents()
    assert "4 to 5: 25 % kept" in titles
    assert "0 to 1: 100 % kept" in titles
    assert sum(title.endswith(": 0 % kept") for title in titles) == 4
    script = """(n) => { const style = getComputedStyle([...document.querySelectorAll(
      '#view-graph .edge')].find((one) => one.textContent.startsWith(n)));
      return [parseFloat(style.strokeWidth), style.stroke]; }"""
    widths = [page.page.evaluate(script, name) for name in ("0 to 1", "4 to 5", "5 to 9")]
    assert widths[0][0] > widths[1][0] > widths[2][0]
    assert len({color for _, color in widths}) == 3
    words = found.inner_text()
    assert "10 nodes, 21 edges, connectivity 1, algebraic connectivity 0.298" in words
    assert "its honest nodes: 9 nodes, 17 edges" in words
    assert page.said == []


def test_nodes_are_drawn_apart_and_inside(page: Opened) -> None:
    boxes = [
        box
        for mark in page.page.locator("#view-graph figure > svg g > :first-child").all()
        if (box := mark.bounding_box()) is not None
    ]
    centers = np.array([[b["x"] + b["width"] / 2, b["y"] + b["height"] / 2] for b in boxes])
    radii = np.array([b["width"] / 2 for b in boxes])
    for i in range(10):
        for j in range(i):
            distance = np.hypot(*(centers[i] - centers[j]))
            assert distance > 0.95 * min(radii[i], radii[j]) * 2
    picture = page.page.locator("#view-graph figure > svg").bounding_box()
    assert picture is not None
    assert all(picture["x"] <= x <= picture["x"] + picture["width"] for x, _ in centers)


def test_weights_are_compared_with_those_of_plain_gossip(page: Opened) -> None:
    """Of nine honest nodes four have the attacker as a neighbor, by a fifth or a sixth."""
    plain = 100 * (3 / 5 + 1 / 6) / 9
    assert f"in plain gossip, they would have {plain:.1f} %" in page.page.inner_text("#view-share")


def test_a_run_that_recorded_nothing_has_its_graph_all_the_same(
    browser: Browser, path: Path
) -> None:
    page = at(browser, path, SILENT)
    found = page.page.locator("#view-graph")
    assert found.locator("figure > svg .edge").count() == 21
    assert "did not record how much of each edge" in found.inner_text()
    assert page.said == []


def test_graphs_with_too_many_edges_are_described(browser: Browser, path: Path) -> None:
    words = at(browser, path, LARGE).page.inner_text("#view-graph")
    assert "70 nodes, 2415 edges, connectivity 69" in words
    assert "too many edges to be drawn" in words


def test_a_server_has_no_graph(browser: Browser, path: Path) -> None:
    assert not at(browser, path, SERVER).page.inner_text("#view-graph")


def test_lines_of_another_number_of_edges_are_left_out() -> None:
    lines = [
        {"round": 30, "kept": [1.0, 0.0]},
        {"round": 60, "kept": [1.0]},
        {"round": 70, "kept": [0.0, 0.4]},
    ]
    assert graphs.mean_kept(lines, 2) == pytest.approx([0.75, 0.1])
    assert graphs.mean_kept(lines, 3) == []


def test_rings_are_drawn_as_rings() -> None:
    places = np.array(graphs.places("ring", 12))
    angles = np.unwrap(np.arctan2(places[:, 1], places[:, 0]))
    assert np.allclose(abs(np.diff(angles)), 2 * np.pi / 12, atol=0.05)
    assert np.ptp(np.linalg.norm(places, axis=1)) < 0.05
