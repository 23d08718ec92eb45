"""How often a Gram matrix is taken about another reference."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from torch import Tensor

from byzantium.vectors.points import Points


def counted_references(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each reading of the vectors for a Gram matrix."""
    references: list[int] = []
    about = Points.gram_about

    def counted(self: Points, reference: int, anchors: Mapping[str, Tensor | None]) -> object:
        references.append(reference)
        return about(self, reference, anchors)

    monkeypatch.setattr(Points, "gram_about", counted)
    return references
