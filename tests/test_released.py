"""Our simulator beside the code that the authors of the paper released, given the same numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import byzantium as bz
from byzantium.aggregation import Permutations
from byzantium.learning import (
    Batches,
    Dataset,
    GivenBatches,
    Partition,
    Randomness,
    Settings,
    Simulation,
    load,
    mlp,
)

# 134 trajectories of the released code on our digits, in float64; its settings say how.
FILE = Path(__file__).parent / "data" / "released_trajectories.json"
RECORDED: dict[str, Any] = json.loads(FILE.read_text())
FIXED = RECORDED["settings"]
DIGITS = load("digits")
RULES = {
    "avg": "Mean()",
    "krum": "Krum(power=4)",
    "cm": "Median()",
    "rfa": "GeometricMedian(steps=8, smoothing=0.1, start='zero')",
    "cp": "CenteredClipping(radius={radius}, steps=3)",
}
ATTACKS = {
    "NA": bz.NoAttack(),
    "BF": bz.BitFlip(),
    "LF": bz.LabelFlip(),
    "mimic": bz.Mimic(warmup=3),
    "IPM": bz.InnerProduct(epsilon=0.1),
    "ALIE": bz.ALittleIsEnough(),
}


class InOrder(Permutations):
    """The recorded permutations, one after the other."""

    def __init__(self) -> None:
        self.left = iter(RECORDED["permutations"])

    def permutation(self, n: int) -> NDArray[np.int64]:
        return np.array(next(self.left))


class Recorded(Randomness):
    """The recorded batches and permutations; what mimicry begins with is drawn from seed 0."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        seeded = torch.Generator().manual_seed(0)
        self.generators = {**self.generators, "server": InOrder(), "attack": seeded}
        who = "10 honest, 2 attackers" if settings.q else "12 honest"
        self.blocks = torch.tensor(RECORDED["batches"][who])

    def batches(self, data: Dataset, partition: Partition) -> Batches:
        return self._given(0, self.honest)

    def own_batches(self, data: Dataset) -> Batches:
        return self._given(self.honest, self.settings.q)

    def _given(self, first: int, workers: int) -> Batches:
        return GivenBatches(
            lambda worker, block: self.blocks[block, first + worker], workers, self.settings.batch
        )


@pytest.fixture
def in_float64() -> Iterator[None]:
    """What is drawn without a word on its dtype is of float64: the start of mimicry."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def simulation(name: str) -> Simulation:
    """What a name such as "cp ALIE momentum=0.9 s=2 radius=10" stands for."""
    aggregator, attack, *words = name.split()
    values = {key: float(value) for key, _, value in (word.partition("=") for word in words)}
    q = 0 if attack == "NA" else FIXED["attackers"]
    rule = RULES[aggregator].format(**values)
    if values["s"] > 1:
        rule = f"Bucketing(s={values['s']:g}) >> {rule}"
    settings = Settings(
        n=FIXED["n"],
        q=q,
        rounds=FIXED["rounds"],
        batch=FIXED["batch"],
        momentum=values["momentum"],
        heavy_ball=True,
        learning_rate=FIXED["learning_rate"],
        reshuffle_every=FIXED["block"],
        dtype="float64",
    )
    return Simulation(
        settings,
        DIGITS,
        mlp((1, 8, 8), hidden=(12,)),
        bz.parse_rule(rule, f=q),
        ATTACKS[attack],
        randomness=Recorded,
    )


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", RECORDED["trajectories"])
def test_every_round_is_that_of_the_released_code(name: str) -> None:
    training = simulation(name)
    k = torch.arange(training.gradients.d, dtype=torch.float64)
    start = 0.1 * torch.sin(1 + 0.7 * k)
    torch.nn.utils.vector_to_parameters(start.clone(), training.model.parameters())
    for _, expected in zip(training, RECORDED["trajectories"][name], strict=True):
        p = torch.nn.utils.parameters_to_vector(training.model.parameters()).detach()
        numbers = [(p - start).norm(), p @ torch.cos(k), p @ torch.sin(k * k % 7)]
        assert [float(number) for number in numbers] == pytest.approx(expected, rel=1e-10)
