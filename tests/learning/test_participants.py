"""With a cache of last vectors, attackers who capture a round hold no more of them than f of n."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import assert_goes_on, put, saved, weights
from rounds import noted_scenes
from torch import Tensor, nn

import byzantium as bz
from byzantium.attacks.attack import Attack, Scene
from byzantium.data import by_label, load
from byzantium.guarantees import guarantee
from byzantium.learning import Settings, Simulation, metrics, mlp
from byzantium.learning.checkpoint import CheckpointError
from byzantium.learning.formulas import Round
from byzantium.runs import Run, Store, perform

DIGITS = load("digits")


def model() -> nn.Module:
    torch.manual_seed(0)
    return mlp((1, 8, 8), hidden=(4,))


def simulation(
    rule: bz.Aggregator, attack: Attack | None = None, record: tuple[str, ...] = (), **options: Any
) -> Simulation:
    settings: dict[str, Any] = {"n": 9, "attackers": 2, "rounds": 12, "batch": 4, "momentum": 0.8}
    settings |= {"evaluate_every": 100, "record": record, "cache": True, **options}
    return Simulation(Settings(**settings), DIGITS, model(), rule, attack, by_label())


@dataclass(frozen=True, repr=False)
class Huge(Attack):
    """Sends the opposite of what is wanted, a million times."""

    def vectors(self, scene: Scene) -> Tensor:
        return -1e6 * scene.mean


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """What the metrics see of each round in which there is an aggregate; ask for "noted"."""
    return noted_scenes(monkeypatch)


@pytest.mark.parametrize("attack", [bz.Mimic(warmup=1), bz.Mimic(warmup=3, retarget=True)])
def test_mimic_goes_on_where_fewer_honest_workers_take_part(attack: Attack) -> None:
    for seed in (4, 5, 6):
        options: dict[str, Any] = {"n": 20, "attackers": 6, "participants": 4, "seed": seed}
        training = simulation(bz.Median(), copy.deepcopy(attack), cache=False, **options)
        honest = {sum(worker < 14 for worker in sampled) for sampled, _ in sampled_in(training)}
        assert len(honest) > 1


def sampled_in(training: Simulation) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """The workers who took part in each round, and its record."""
    draws: list[list[int]] = []
    draw = training.participants.draw

    def noted() -> list[int]:
        draws.append(draw())
        return draws[-1]

    training.participants.draw = noted  # type: ignore[method-assign]
    for record in training:
        yield draws[-1], record


# -- what it computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("participants", [None, 9])
@pytest.mark.parametrize(
    "attack",
    [None, bz.BitFlip(), bz.LabelFlip(), bz.Mimic(warmup=2), bz.Adaptive(), bz.ALittleIsEnough()],
    ids=repr,
)
def test_if_all_take_part_it_is_algorithm_2_to_the_bit(
    attack: Attack | None, participants: int | None
) -> None:
    rule = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=1.0)
    record = ("distance", "weights", "losses")
    options: dict[str, Any] = {"rounds": 4, "evaluate_every": 2}
    plain = simulation(rule, attack, record, cache=False, **options)
    cached = simulation(rule, attack, record, participants=participants, **options)
    assert list(plain) == list(cached)
    assert torch.equal(weights(plain), weights(cached))
    assert plain.history == cached.history


def test_the_rule_gets_the_last_vector_of_everybody_heard(scenes: list[Round]) -> None:
    """Against a dict of last vectors and a mean that know nothing of the simulation."""
    training = simulation(bz.Mean(), record=("noted",), participants=3, attackers=0)
    last: dict[int, Tensor] = {}
    before = weights(training)
    for t, (sampled, _) in enumerate(sampled_in(training)):
        scene = scenes[t]
        assert scene.workers == sorted({*last, *sampled})
        for worker, row in zip(scene.workers, scene.sent, strict=True):
            if worker in sampled:
                assert worker not in last or not torch.equal(row, last[worker])
                last[worker] = row.clone()
            else:
                assert torch.equal(row, last[worker])
        mean = torch.stack([last[worker] for worker in sorted(last)]).double().mean(dim=0)
        after = weights(training)
        assert torch.allclose((before - after).double(), 0.1 * mean, atol=1e-6)
        before = after
    assert len(last) == 9


@pytest.mark.parametrize("rule", [bz.Mean(), bz.Krum(f=2)], ids=repr)
def test_a_worker_keeps_its_momentum_while_it_is_away(rule: bz.Aggregator) -> None:
    """Also while too few are heard for the model to move."""
    training = simulation(rule, participants=2, attackers=0, rounds=12)
    last = training.sent.clone()
    for sampled, _ in sampled_in(training):
        away = [worker for worker in range(9) if worker not in sampled]
        assert torch.equal(training.sent[away], last[away])
        assert all(training.sent[sampled].norm(dim=1) > 0)
        last = training.sent.clone()


# -- a captured round ------------------------------------------------------------------------------


RULES = [
    bz.TrimmedMean(f=2),
    bz.Krum(f=2),
    bz.MinimumDiameter(f=2),
    bz.Median(),
    bz.GeometricMedian(),
    bz.NearestNeighborMixing(f=2) >> bz.TrimmedMean(f=2),
]


@pytest.mark.parametrize("attack", [Huge(), bz.Adaptive(), bz.ALittleIsEnough()], ids=repr)
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_round_of_attackers_alone_moves_the_model_no_more_than_f_rows_of_n_can(
    rule: bz.Aggregator, attack: Attack, scenes: list[Round]
) -> None:
    """The squared error stays below the bound for f of n, of which honest rows are older ones."""
    training = simulation(rule, attack, ("noted",), participants=2, rounds=60, seed=3)
    bound = guarantee(rule, 9, 2).kappa
    assert bound is not None
    captured, before = 0, weights(training)
    for sampled, _ in sampled_in(training):
        after = weights(training)
        if min(sampled) >= 7 and all(training.participants.heard):
            captured += 1
            honest = training.sent[:7].double()
            mean = honest.mean(dim=0)
            spread = float((honest - mean).square().sum(dim=1).mean())
            step = (before - after).double() / 0.1
            assert float((step - mean).square().sum()) <= bound * spread * (1 + 1e-3)
            assert scenes[-1].workers == list(range(9))
        before = after
    assert captured >= 1


def test_a_captured_round_destroys_the_model_without_a_cache() -> None:
    """So the test above sees rounds that matter: two of three may attack here."""
    options: dict[str, Any] = {"participants": 3, "attackers": 3, "rounds": 40, "n": 12}
    largest = {}
    for cache in (False, True):
        training = simulation(bz.Median(), bz.InnerProduct(300.0), cache=cache, **options)
        list(training)
        largest[cache] = float(weights(training).abs().max())
    assert not largest[False] < 100  # it may be infinite or NaN
    assert largest[True] < 10


def test_the_draw_is_unconditional_and_a_round_without_honest_workers_has_no_loss(
    tmp_path: Path,
) -> None:
    rounds = list(sampled_in(simulation(bz.Median(), bz.BitFlip(), participants=1, rounds=60)))
    for sampled, record in rounds:
        assert math.isnan(record["loss"]) == (min(sampled) >= 7)
    assert any(min(sampled) >= 7 for sampled, _ in rounds)
    assert all(
        min(sampled) < 7
        for sampled, _ in sampled_in(
            simulation(bz.Median(), bz.BitFlip(), participants=1, rounds=60, cache=False)
        )
    )
    run = Run(n=9, f=2, rounds=20, participants=1, cache=True, evaluate_every=1, attack="BitFlip()")
    store = Store(tmp_path)
    assert perform(run, store.folder(run)) is not None
    (result,) = store.results([run])
    assert result.status == "completed"
    assert any(math.isnan(line["train_loss"]) for line in result.metrics)
    assert metrics.mean_of_known([1.0, math.nan, 3.0]) == 2.0


# -- who has not been heard ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "attackers", "fewest"),
    [
        (bz.TrimmedMean(f=2), 2, 5),  # 2f + 1
        (bz.TrimmedMean(f=1), 2, 3),  # f is that of the rule
        (bz.Krum(f=2), 2, 7),  # it needs 2f + 3
        (bz.Median(), 3, 7),  # without an f: the number of attackers
        (bz.Median(), 6, 9),  # all, where 2f + 1 are more than there are
        (bz.Mean(), 0, 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("attack", [bz.InnerProduct(0.5), bz.Tuned(bz.InnerProduct())], ids=repr)
def test_the_model_stays_until_enough_are_heard(
    rule: bz.Aggregator, attack: Attack, attackers: int, fewest: int, scenes: list[Round]
) -> None:
    training = simulation(
        rule, attack, ("noted", "distance"), participants=1, attackers=attackers, rounds=70
    )
    heard, before, counts = set[int](), weights(training), list[int]()
    for sampled, record in sampled_in(training):
        heard |= set(sampled)
        moved = not torch.equal(before, weights(training))
        before = weights(training)
        if len(heard) < fewest or min(heard) >= 9 - attackers:
            assert not moved
            assert record.keys() == {"round", "loss"}
        else:
            assert moved
            assert "distance" in record
            counts.append(len(scenes[-1].workers))
            assert counts[-1] == len(heard)
    assert counts
    assert max(counts) == 9


def test_with_root_data_one_honest_worker_is_enough() -> None:
    training = simulation(
        bz.RootMatching(f=6), bz.BitFlip(), participants=1, attackers=6, rounds=40, root=2
    )
    moved_at, before = None, weights(training)
    for sampled, _ in sampled_in(training):
        del sampled
        if moved_at is None and not torch.equal(before, weights(training)):
            moved_at = sum(training.participants.heard)
    assert moved_at == 7


def test_unusable_vectors_stay_rejected_for_as_long_as_they_are_the_last_ones() -> None:
    training = simulation(
        bz.Krum(f=2), bz.NonFinite("nan"), ("rejected",), participants=3, rounds=30
    )
    records = list(training)
    assert training.history.status == "completed"
    assert records[-1]["rejected"] == [7, 8]


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize(
    "attack", [bz.BitFlip(), bz.Adaptive("loss"), bz.Mimic(warmup=3)], ids=repr
)
def test_it_goes_on_from_any_round_to_the_same_bits(
    tmp_path: Path, momentum: float, attack: Attack
) -> None:
    def new() -> Simulation:
        return simulation(
            bz.TrimmedMean(f=2), attack, ("distance",), participants=1, momentum=momentum
        )

    records = assert_goes_on(new, tmp_path, range(1, 12))
    assert "nan" in repr(records)  # there is a round of attackers alone


@pytest.mark.parametrize(
    "heard", [None, [True] * 8, [1] * 9, "text", [True] * 8 + [None]], ids=repr
)
def test_a_state_that_says_strange_things_of_who_was_heard_is_refused(
    tmp_path: Path, heard: object
) -> None:
    training = simulation(bz.TrimmedMean(f=2), participants=2)
    for _ in zip(range(3), training, strict=False):
        pass
    path = tmp_path / "checkpoint-000000003.pt"
    put(path, saved({**training.state_dict(), "heard": heard}))
    other = simulation(bz.TrimmedMean(f=2), participants=2)
    with pytest.raises(CheckpointError, match="its heard is not one of this simulation"):
        other.load_state_dict(torch.load(_payload(path), weights_only=True))
    assert other.participants.heard == [False] * 9


def _payload(path: Path) -> Any:
    import io

    return io.BytesIO(path.read_bytes().split(b"\n", 2)[2])


def test_the_state_and_the_identity_of_other_runs_stay_what_they_were() -> None:
    plain = simulation(bz.Median(), participants=3, cache=False)
    assert "heard" not in plain.state_dict()
    assert "cache" not in plain.fingerprint()
    assert "cache=True" in simulation(bz.Median(), participants=3).fingerprint()
    run = Run(participants=11)
    assert run.varied(cache=False).identity == run.identity
    assert run.varied(cache=True).identity != run.identity
    assert (run.vectors, run.varied(cache=True).vectors, Run().vectors) == (11, 25, 25)
    assert Run(n=25, f=5, participants=3, rule="Krum()", cache=True).gap() == ""
