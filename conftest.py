"""What all tests share, the doctests included."""

import importlib.util
import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# The engine cannot even be imported without its library; its tests say so when they are skipped.
if not importlib.util.find_spec("flwr"):
    collect_ignore = ["src/byzantium/engines/flower"]

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
