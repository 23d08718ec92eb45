"""What the metrics of a training see."""

from __future__ import annotations

from typing import Any

import pytest

from byzantium.learning import metrics
from byzantium.learning.formulas import Round
from byzantium.learning.metrics import Metric


def noted_scenes(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Round]:
    """A list that gets what metrics see of each round, from now on; to record as "noted"."""
    scenes: list[Round] = []

    def noted(scene: Round) -> float:
        scenes.append(scene)
        return 0.0

    monkeypatch.setitem(metrics.TABLE, "noted", Metric("noted", "", noted, max, **options))
    return scenes
