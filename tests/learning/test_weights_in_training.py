"""Trainings in which workers count as much as the samples that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import byzantium as bz
from byzantium.core.options import identity_fields
from byzantium.data import dirichlet, load
from byzantium.learning import Settings, Simulation, mlp
from byzantium.runs import Run, Store, check_ready, perform


def training(
    rule: bz.Aggregator, attack: bz.Attack | None = None, alpha: float = 1.0, **options: Any
) -> Simulation:
    settings = Settings(
        **{"n": 8, "attackers": 2, "rounds": 3, "weights": "sizes", "record": (), **options}
    )
    return Simulation(settings, load("digits"), mlp((1, 8, 8)), rule, attack, dirichlet(alpha))


class Probe(bz.Attack):
    """An attack that looks at the weights."""

    def vectors(self, scene: Any) -> torch.Tensor:
        assert scene.weights is not None
        Probe.seen = list(scene.weights)  # type: ignore[attr-defined]
        return scene.mean


def test_workers_weigh_as_many_samples_as_they_have() -> None:
    simulation = training(bz.Mean(), Probe(), record=("weights", "heard", "distance"))
    sizes = [len(part) for part in simulation.batches.parts]
    assert len(set(sizes)) > 1
    expected = torch.tensor([*sizes, *[sum(sizes) / 6] * 2], dtype=torch.float64)
    for record in simulation:
        assert record["weights"] == pytest.approx((expected / expected.sum()).tolist())
        assert record["heard"] == 1
    assert Probe.seen == expected.tolist()  # type: ignore[attr-defined]


def test_the_step_is_that_of_the_rule_with_these_weights() -> None:
    simulation = training(bz.TrimmedMean(f=2), bz.BitFlip(), rounds=1)
    before = simulation.server.model_vector()
    for _ in simulation:
        pass
    expected = bz.TrimmedMean(f=2)(simulation.sent, weights=simulation.weights)
    moved = (before - simulation.server.model_vector()) / simulation.settings.learning_rate
    assert torch.allclose(moved, expected, atol=1e-5)


@pytest.mark.parametrize("attack", [bz.Adaptive(budget=12), bz.Tuned(bz.InnerProduct())], ids=repr)
@pytest.mark.parametrize(
    "rule", [bz.GeometricMedian(), bz.Median(), bz.Bucketing(s=2) >> bz.Mean()], ids=repr
)
def test_attackers_who_try_the_rule_know_the_weights(
    rule: bz.Aggregator, attack: bz.Attack
) -> None:
    assert [record["round"] for record in training(rule, attack, rounds=2)] == [1, 2]


def test_some_of_the_workers() -> None:
    simulation = training(
        bz.GeometricMedian(), attackers=1, participants=6, record=("weights", "heard")
    )
    for record in simulation:
        assert sum(weight > 0 for weight in record["weights"]) <= 6
        assert 0 < record["heard"] <= 1


def test_too_heavy_workers_are_found_before_anything_begins() -> None:
    with pytest.raises(bz.ByzantiumError, match="takes no weights"):
        training(bz.Krum(f=2))
    with pytest.raises(bz.ByzantiumError, match="% of the weight; TrimmedMean tolerates"):
        training(bz.TrimmedMean(f=2), alpha=0.1, participants=5)
    options: dict[str, Any] = {"n": 8, "f": 2, "attack": "BitFlip()", "weights": "sizes"}
    with pytest.raises(bz.ByzantiumError, match="takes no weights"):
        Run(rule="Krum()", **options)
    options |= {"f": 3, "attack": "NoAttack()"}
    run = Run(rule="TrimmedMean()", partition="dirichlet(0.05)", **options)
    with pytest.raises(bz.ByzantiumError, match="% of the weight; TrimmedMean tolerates"):
        check_ready([run])


def test_the_option_changes_no_identity_while_it_has_its_default() -> None:
    run = Run(rule="TrimmedMean()", attack="BitFlip()")
    assert "weights" not in identity_fields(run)
    assert run.varied(weights="equal").identity == run.identity
    assert run.varied(weights="sizes").identity != run.identity


def test_the_training_on_root_data_alone_has_no_weights() -> None:
    run = Run(rule="RootMatching()", root=10, attack="BitFlip()", weights="sizes")
    alone = run.root_alone()
    assert alone is not None
    assert alone.weights == "equal"
    assert alone.same_root_training(alone)


def test_a_run_with_weights_is_carried_out(tmp_path: Path) -> None:
    run = Run(
        n=8,
        f=2,
        rule="GeometricMedian()",
        attack="BitFlip()",
        partition="dirichlet(1)",
        weights="sizes",
        rounds=4,
        evaluate_every=2,
        record=("heard", "weights"),
    )
    store = Store(tmp_path)
    assert perform(run, store.folder(run))
    result = store.result(run)
    assert result is not None
    assert 0 < result.metrics[-1]["heard"] < 1
