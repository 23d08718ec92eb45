"""Rules and mixings that define hooks by their names up to 0.2 still work, with a warning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import byzantium as bz


def test_least_and_that_of_its_base() -> None:
    with pytest.warns(DeprecationWarning, match=r"^Mine defines least, which is now min_vectors$"):

        @dataclass(frozen=True, repr=False)
        class Mine(bz.Krum):
            def least(self) -> tuple[int, str]:
                fewest, formula = super().least()
                return fewest + 4, f"{formula} + 4"

    with (
        pytest.warns(DeprecationWarning, match=r"^least is now min_vectors$"),
        pytest.raises(ValueError, match=r"Mine\(f=1\) needs at least 2f \+ 3 \+ 4 = 9 vectors"),
    ):
        Mine(f=1)(torch.ones(8, 2))


def test_settled_and_spoiled() -> None:
    with pytest.warns(DeprecationWarning, match="which is now") as warned:

        @dataclass(frozen=True, repr=False)
        class Copies(bz.Mixing):
            copies: int = 0

            def settled(self, n: int, behind: Sequence[bz.Stage]) -> bz.Stage:
                return self if self.copies else replace(self, copies=n)

            def spoiled(self, f: int) -> int:
                return self.copies * f

            def rows(self, n: int) -> int:
                return n * self.copies

            def matrix(self, geometry: bz.Geometry, generator: Any) -> Any:
                return np.eye(geometry.n).repeat(self.copies, axis=0)

    assert [str(one.message) for one in warned] == [
        "Copies defines settled, which is now resolved",
        "Copies defines spoiled, which is now bad_outputs",
    ]
    assert {one.filename for one in warned} == {__file__}
    assert Copies()(torch.ones(3, 1)).shape == (9, 1)
    assert (Copies(copies=3) >> bz.Bucketing(s=2)).bad_outputs(2) == 6


def test_a_center_and_an_attempt_before_admission() -> None:
    with pytest.warns(DeprecationWarning, match="which is now") as warned:

        class Around(bz.Weighting):
            @property
            def centre(self) -> Tensor:
                return torch.full((1,), 7.0)

            def one_pass(self, source: Any, explain: bool) -> tuple[None, None, float]:
                return None, None, 1e3

            def weights(self, geometry: bz.Geometry) -> Any:
                return geometry.at(geometry.centre)

    assert len(warned) == 2
    with pytest.warns(DeprecationWarning, match=r"Geometry\.centre is now Geometry\.center"):
        assert Around()(torch.ones(3, 1)).tolist() == [7]


def test_who_defines_both_names_is_not_warned() -> None:
    class Both(bz.Median):
        def min_vectors(self) -> tuple[int, str]:
            return 3, "3"

        def least(self) -> tuple[int, str]:
            raise AssertionError("the new name counts")

    with pytest.raises(ValueError, match="needs at least 3 vectors"):
        Both()(torch.ones(2, 1))


def test_callers_of_the_former_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"^spoiled is now bad_outputs$"):
        assert bz.Resampling(s=2).spoiled(3) == 6
    with pytest.warns(DeprecationWarning, match=r"^centre is now center$"):
        assert bz.CenteredClipping(radius=1).centre is None
