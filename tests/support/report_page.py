"""The report in Chromium, made of folders of runs that are written by hand."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from byzantium.runs import Job, Run, Store
from byzantium.runs.job import CONFIGURATION, METRICS, SUMMARY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, ViewportSize

HOSTILE = "</script><script>window.pwned=1</script><!--<img src=x onerror='window.pwned=1'>"


def lay(store: Store, job: Job, summary: dict[str, Any] | None, evaluations: int = 3) -> None:
    """The folder of a job: done with this summary, or unfinished."""
    folder = store.folder(job)
    folder.mkdir(parents=True)
    (folder / CONFIGURATION).write_text(job.toml())
    lines = [metrics(job, k + 1) for k in range(evaluations)]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        surroundings = {"byzantium": "0.1", "torch": "2.9", "python": "3.11", "machine": HOSTILE}
        text = json.dumps({"status": "completed", "seconds": 2.5, **surroundings, **summary})
        (folder / SUMMARY).write_text(text)


def metrics(job: Job, k: int) -> dict[str, Any]:
    if not isinstance(job, Run):
        return {"round": 20 * k, "error": 1.0, "deviation": 0.1}
    weights = [round(1 / job.n + 0.01 * ((worker + k) % 3), 6) for worker in range(job.n)]
    measures = {"loss": 2 / k, "train_loss": 2.1 / k, "distance": 0.5, "spread": float("nan")}
    return {"round": 30 * k, "accuracy": 20.0 * k, **measures, "weights": weights}


@dataclass
class Opened:
    """A page, and what it said and fetched."""

    page: Page
    said: list[str]
    fetched: list[str]

    def until(self, expression: str) -> None:
        """Wait for it. Playwright's own waiting is code that the page's policy refuses to run."""
        deadline = time.monotonic() + 20
        while not self.page.evaluate(f"!!({expression})"):
            assert time.monotonic() < deadline, expression
            self.page.wait_for_timeout(20)

    def scroll_to(self, selector: str) -> None:
        self.page.locator(selector).first.scroll_into_view_if_needed()

    def plotted(self, selector: str) -> list[dict[str, Any]]:
        """The data of a chart, drawn when it came into view."""
        self.scroll_to(selector)
        self.until(f"document.querySelector('{selector}').data")
        pick = "({ x, y, name, line, marker }) => ({ x, y, name, line, marker })"
        found = self.page.evaluate(f"document.querySelector('{selector}').data.map({pick})")
        return list(found)

    def colours(self) -> int:
        """How many different ones there are to be seen."""
        from PIL import Image

        image = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        return len(image.getcolors(image.width * image.height) or [])

    def background(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))


def opened(browser: Browser, path: Path, width: int = 1280, height: int = 900) -> Opened:
    return opened_at(browser, path.as_uri(), width, height=height)


def opened_at(
    browser: Browser,
    address: str,
    width: int = 1440,
    scheme: Literal["light", "dark"] = "light",
    height: int = 900,
) -> Opened:
    """The page at an address, which may have a fragment, anew."""
    viewport: ViewportSize = {"width": width, "height": height}
    context = browser.new_context(viewport=viewport, color_scheme=scheme)
    found = Opened(context.new_page(), [], [])
    found.page.on("console", lambda message: found.said.append(message.text))
    found.page.on("pageerror", lambda error: found.said.append(str(error)))
    found.page.on("request", lambda request: found.fetched.append(request.url))
    found.page.goto(address)
    found.until("'ready' in document.documentElement.dataset")
    return found
