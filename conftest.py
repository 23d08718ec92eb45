"""What all tests share, the doctests included."""

import os

import hypothesis
import pytest
import torch

# No deadline: no test fails on a clock. CI draws the same examples every time.
hypothesis.settings.register_profile("default", deadline=None, max_examples=10)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=10, derandomize=True, database=None
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _names_of_the_doctests(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace["torch"] = torch
