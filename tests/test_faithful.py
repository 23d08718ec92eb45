"""A published run, again: the learning curve must be the published one."""

from __future__ import annotations

import pytest
import torch

import byzantium as bz
from byzantium.learning import Settings, by_label, cnn, load, simulate

# Test accuracy of the three published seeds: RFA, s=2, mimic, non-iid, beta=0 (Table 4 of
# Karimireddy, He, Jaggi 2022, from the authors' released logs), and the mean over them of the
# last five evaluations.
PUBLISHED = {
    300: (89.243, 89.683, 89.303),
    450: (90.415, 92.067, 90.385),
    600: (91.386, 92.127, 91.146),
}
MEAN = 91.17  # +- 0.51


@pytest.mark.slow
def test_rfa_with_bucketing_under_mimic_learns_as_published() -> None:
    """Settings as in the published runs: one round of warm-up, data reshuffled every 30 rounds."""
    try:
        data = load("mnist")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    torch.manual_seed(0)
    history = simulate(
        Settings(n=25, q=5, rounds=600, heavy_ball=True, reshuffle_every=30),
        data,
        cnn(),
        bz.Bucketing(s=2) >> bz.GeometricMedian(steps=8, smoothing=0.1, start="zero"),
        bz.Mimic(warmup=1),
        by_label(),
    )
    accuracy = {record["round"]: record["accuracy"] for record in history.evaluations}
    last = [accuracy[k] for k in (480, 510, 540, 570, 600)]
    assert sum(last) / 5 == pytest.approx(MEAN, abs=1)
    for k, seeds in PUBLISHED.items():
        assert min(seeds) - 1.5 <= accuracy[k] <= max(seeds) + 1.5
