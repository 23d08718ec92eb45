"""What all tests share, the doctests included."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import hypothesis
import pytest
import torch

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# An engine cannot even be imported without its library; its tests say so when they are skipped.
collect_ignore = list[str]()
if not importlib.util.find_spec("flwr"):
    collect_ignore += ["src/byzantium/engines/flower", "docs/do/flower.md"]
if not importlib.util.find_spec("nvflare"):
    collect_ignore += ["src/byzantium/engines/nvflare", "docs/do/nvflare.md"]

# No deadline: no test fails on a clock. CI draws the same examples every time.
hypothesis.settings.register_profile("default", deadline=None, max_examples=10)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=10, derandomize=True, database=None
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _names_of_the_doctests(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch has two threads, and so have we, here and in processes that the test starts.

    `make test` gives each of its processes one.
    """
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _unavailable(what: str) -> NoReturn:
    reason = f"THE REPORT AND THE SITE ARE NOT TESTED: {what}"
    if os.environ.get("BYZANTIUM_NEEDS_CHROMIUM") == "1":
        raise RuntimeError(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real Chromium, in which pages are looked at."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _unavailable("playwright is not installed (pip install playwright)")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = [place for name in names if (place := shutil.which(name))]
    if not found:
        _unavailable("there is no Chromium (apt-get install chromium)")
    flags = (
        "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found[0], args=flags.split())
        yield browser
        browser.close()
