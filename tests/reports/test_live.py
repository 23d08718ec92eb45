"""The report while jobs run: the server, and the page in Chromium that grows."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pytest
from report_page import lay, metrics, opened_at

from byzantium.core import folder_lock
from byzantium.reports import live
from byzantium.reports.live import LiveReport, served
from byzantium.runs import Run, Snapshot, Store, described
from byzantium.runs.job import METRICS, SUMMARY
from byzantium.tables import pivots

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BASE = Run(rounds=90, n=15, f=2)
DONE, RUNNING, LATER = (BASE.varied(rule=rule) for rule in ("Krum()", "Median()", "Mean()"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A folder in which one job is done, one runs, and one has not begun."""
    store = Store(tmp_path / "results")
    lay(store, DONE, {"accuracy": 80.0})
    lay(store, RUNNING, None, evaluations=1)
    with folder_lock(store.folder(RUNNING)):
        yield store


@pytest.fixture
def report(store: Store, monkeypatch: pytest.MonkeyPatch) -> LiveReport:
    monkeypatch.setattr(live, "PAUSE", 0.0)
    monkeypatch.setattr(live, "SHARE", float("inf"))
    jobs = [DONE, RUNNING, LATER]
    return LiveReport(Snapshot(store.root), lambda now: ([], pivots(list(now))), jobs)


@pytest.fixture
def address(report: LiveReport) -> Iterator[str]:
    with served(report, 0) as address:
        yield address


def evaluate(store: Store, run: Run, k: int) -> None:
    """The k-th evaluation of a run is written."""
    with open(store.folder(run) / METRICS, "a") as file:
        file.write(json.dumps(metrics(run, k)) + "\n")


def ask(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    port = urlsplit(address).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}", **named})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.headers["Content-Encoding"] == "gzip":
        content = gzip.decompress(content)
    return answer.status, content


def data(address: str) -> dict[str, Any]:
    status, content = ask(address, "/data")
    assert status == 200
    return dict(json.loads(content))


# -- the server ---------------------------------------------------------------------------------


def test_it_listens_on_this_machine_alone(report: LiveReport) -> None:
    with served(report, 0) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        port = urlsplit(address).port
        # 127.0.0.2 is this machine, too, and would be reached if it listened on all addresses.
        with socket.socket() as other:
            assert other.connect_ex(("127.0.0.2", port)) != 0
    with socket.socket() as after:
        assert after.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:1234", 200),  # a port that ssh forwards
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost@evil.example", 403),
        ("evil.example:8765", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_only_the_names_of_this_machine_are_answered(address: str, host: str, status: int) -> None:
    for path in ("/", "/data"):
        found, content = ask(address, path, Host=host)
        assert found == status
        assert (b"Krum" in content) == (path == "/data" and status == 200)


def test_a_request_with_two_hosts_or_none_is_refused(address: str) -> None:
    for hosts in (b"", b"Host: 127.0.0.1\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)) as connection:
            connection.sendall(b"GET /data HTTP/1.1\r\n" + hosts + b"\r\n")
            assert b" 403 " in connection.recv(1000).splitlines()[0]


@pytest.mark.parametrize(
    "path",
    ["/config.toml", "/../config.toml", "/data/..", "/data?x", "/%2e%2e/", "/report"],
)
def test_nothing_else_is_served(address: str, store: Store, path: str) -> None:
    (store.root / "config.toml").write_text("secret")
    status, content = ask(address, path)
    assert (status, content) == (404, b"There are / and /data.\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(address: str, method: str) -> None:
    assert ask(address, "/data", method)[0] == 501


def test_requests_are_bounded(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that say nothing take all places; the next one is closed, not queued."""
    port = urlsplit(address).port or 0
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(live.MOST_REQUESTS)]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as dropped:
        assert dropped.recv(1) == b""
    for one in silent:
        one.close()
    for _ in range(200):  # the places are free again
        try:
            data(address)
            break
        except OSError:
            continue
    else:
        pytest.fail("no place became free")


def test_data_that_the_page_has_is_not_sent_again(address: str, store: Store) -> None:
    version = data(address)["live"]["version"]
    assert ask(address, "/data", If_None_Match=version) == (304, b"")
    evaluate(store, RUNNING, 2)
    status, content = ask(address, "/data", If_None_Match=version)
    assert status == 200
    assert json.loads(content)["live"]["version"] != version


def test_the_progress_is_that_of_the_sweep(address: str, store: Store) -> None:
    now = data(address)["live"]
    assert (now["done"], now["total"]) == (1, 3)
    # One of three is done, and one is in round 30 of 90.
    assert now["share"] == pytest.approx((1 + 1 / 3) / 3)
    assert now["running"] == [{"name": described(RUNNING), "round": 30, "rounds": 90}]
    evaluate(store, RUNNING, 2)
    lay(store, LATER, {"accuracy": 10.0})
    now = data(address)["live"]
    assert (now["done"], now["running"][0]["round"]) == (2, 60)


def test_a_folder_is_skipped_once_in_the_log(
    address: str, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    (store.root / ("0" * 16)).mkdir()
    with caplog.at_level(logging.WARNING):
        for k in (2, 3, 4):
            evaluate(store, RUNNING, k)
            data(address)
    assert sum("is skipped" in message for message in caplog.messages) == 1


def test_finished_jobs_are_read_once(report: LiveReport, store: Store) -> None:
    first = report.state()
    (store.folder(DONE) / SUMMARY).write_text("damaged meanwhile")
    evaluate(store, RUNNING, 2)
    second = report.state()
    assert second.version != first.version
    done = [run["accuracy"] for run in second.values["runs"]]
    assert done == [run["accuracy"] for run in first.values["runs"]]


def test_a_folder_that_is_gone_has_no_results(address: str, store: Store) -> None:
    assert data(address)["runs"]
    shutil.rmtree(store.root)
    assert data(address)["runs"] == []


# -- the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_curves_grow(
    browser: Browser,
    address: str,
    store: Store,
    width: int,
    scheme: Literal["light", "dark"],
) -> None:
    page = opened_at(browser, address, width, scheme)
    found = page.page
    text = "document.querySelector('#live-text').textContent"
    assert found.inner_text("#live-text") == "1 of 3 jobs done. 1 job running."
    assert found.inner_text("#live-running").endswith("evaluated in round 30 of 90")
    lines = {line["name"]: line["y"] for line in page.plotted("#explorer")}
    assert lines["CM"] == [20]
    link = found.locator(f"#matrices a[href='#cell-{DONE.identity}']").first
    link.focus()
    evaluate(store, RUNNING, 2)
    page.until("document.querySelector('#live-running').textContent.includes('round 60 of 90')")
    page.scroll_to("#explorer")
    page.until("document.querySelector('#explorer').data.some((one) => one.y.length === 2)")
    # The reader stays at the link, although the table is another.
    assert found.evaluate("document.activeElement.href").endswith(DONE.identity)
    lay(store, LATER, {"accuracy": 10.0})
    page.until(f"{text}.startsWith('2 of 3 jobs done.')")
    assert "Mean" in found.inner_text("#matrices")
    assert found.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.said == []
    hosts = {urlsplit(url).netloc for url in page.fetched if not url.startswith("data:")}
    assert hosts == {urlsplit(address).netloc}
    found.context.close()


def test_an_open_cell_grows_and_its_menu_stays(
    browser: Browser, address: str, store: Store
) -> None:
    page = opened_at(browser, f"{address}#cell-{RUNNING.identity}")
    found = page.page
    found.select_option("#view-metric", "loss")
    page.until("document.querySelector('#view-curves').data?.[0].y.length === 1")
    evaluate(store, RUNNING, 2)
    page.until("document.querySelector('#view-curves').data[0].y.length === 2")
    assert found.input_value("#view-metric") == "loss"
    assert [line["y"] for line in page.plotted("#view-curves")] == [[2.0, 1.0]]
    found.context.close()


def test_the_page_says_that_the_server_has_stopped(browser: Browser, report: LiveReport) -> None:
    with served(report, 0) as address:
        page = opened_at(browser, address)
    page.until("document.querySelector('#live-text').textContent.includes('server has stopped')")
    assert re.search(r"results of \d+ \w+ \d{4}", page.page.inner_text("#live-text"))
    page.page.context.close()
