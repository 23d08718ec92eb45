"""Who was heard over many rounds: named beyond chance, and never for one round."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import folders
import pytest
import torch

import byzantium as bz
from byzantium.reports.contents import contents
from byzantium.runs import Run, Store


def rounds(rule: bz.Aggregator, count: int, honest: int = 10, liars: int = 1) -> bz.Trust:
    generator, trust = torch.Generator().manual_seed(1), bz.Trust()
    for _ in range(count):
        good = torch.randn(honest, 30, generator=generator)
        bad = torch.full((liars, 30), -20.0)
        trust.add(rule.explain(torch.cat([good, bad]), generator))
    return trust


@pytest.mark.parametrize(
    "text", ["GeometricMedian()", "Bucketing(s=2) >> GeometricMedian()", "TrimmedMean(f=2)"]
)
def test_a_liar_goes_unheard_and_nobody_else_does(text: str) -> None:
    assert list(rounds(bz.parse_rule(text), 40).unheard()) == [10]


def test_nobody_is_unheard_for_a_few_rounds() -> None:
    assert not rounds(bz.GeometricMedian(), 4).unheard()


def test_a_rule_that_picks_one_worker_says_little_of_the_others() -> None:
    trust = rounds(bz.Krum(f=2), 20, liars=0)
    assert any(s.weight == 0 for s in trust.workers.values())
    assert not trust.unheard()


def test_rejections_and_absences_are_counted_with_their_reasons() -> None:
    X = torch.ones(5, 3)
    X[2] = torch.nan
    trust = bz.Trust()
    for _ in range(2):
        trust.add(bz.Median().explain(X), "abcde", absent=["z"])
    assert trust.workers["c"].rejections == 2
    assert trust.workers["c"].rounds == 0
    assert list(trust.rejected()) == ["c"]
    assert list(trust.absent()) == ["z"]
    told = trust.sentences()
    assert len(told) == 2
    assert "not finite" in told[0]
    assert "broken or Byzantine" in told[0]


def test_a_mean_weight_has_a_spread() -> None:
    trust = bz.Trust()
    trust.update({"a": 0.25, "b": 0.75})
    trust.update({"a": 0.75, "b": 0.25})
    assert trust.workers["a"].weight == 1.0
    assert trust.workers["a"].spread == pytest.approx(0.5 * 2**0.5)


def test_names_must_be_as_many_as_vectors() -> None:
    with pytest.raises(bz.ByzantiumError, match="3 workers, got 2 names"):
        bz.Trust().add(bz.Mean().explain(torch.ones(3, 2)), "ab")


# -- attackers whose weight varies hide nobody ----------------------------------------------------

N, HOGS = 25, 5
HONEST = list(range(N - HOGS))


def hogged(count: int, honest: float, length: int = 1) -> bz.Trust:
    """The honest have this share of the weight, evenly; one attacker at a time has all the rest."""
    draw, trust = random.Random(count), bz.Trust()
    for _ in range(count):
        weights = [honest / len(HONEST)] * len(HONEST) + [0.0] * HOGS
        for _ in range(length):
            weights[draw.randrange(len(HONEST), N)] += (1 - honest) / length
        trust.update(dict(enumerate(weights)), rounds=length)
    return trust


@pytest.mark.parametrize(
    ("count", "honest", "length"),
    [
        (20, 0.085, 1),  # the rule hears all, and five of them far too much
        (300, 0.0, 1),  # a rule that picks one worker, as Krum does, picks attackers alone
        (20, 0.0, 30),  # the same, as a run records it: the means of 30 rounds
    ],
)
def test_attackers_whose_weights_vary_hide_nobody(count: int, honest: float, length: int) -> None:
    assert list(hogged(count, honest, length).unheard()) == HONEST


def test_the_page_does_not_contradict_itself_about_who_was_heard(tmp_path: Path) -> None:
    store, draw = Store(tmp_path), random.Random(0)
    run = Run(rule="Krum()", attack="LabelFlip()", n=N, f=HOGS)
    lines = []
    for k in range(1, 21):
        picked = Counter(draw.randrange(len(HONEST), N) for _ in range(30))
        weights = [picked[worker] / 30 for worker in range(N)]
        lines.append({"round": 30 * k, "loss": 1.0, "accuracy": 10.0, "weights": weights})
    folders.write(store, run, lines, folders.completed(10.0))
    (shown,) = contents(store, [])["runs"]
    assert shown["trust"]["share"] == 1.0
    assert shown["trust"]["enough"]
    assert shown["trust"]["unheard"] == HONEST
    folders.write(store, run, lines[:4])
    (shown,) = contents(store, [])["runs"]
    assert not shown["trust"]["enough"]


# -- and honest workers are named no more often than before ---------------------------------------


def named(make: Callable[[random.Random], bz.Trust], repeats: int, workers: int) -> float:
    """The share of workers, all of them alike, that are called unheard."""
    draw = random.Random(3)
    return sum(len(make(draw).unheard()) for _ in range(repeats)) / (repeats * workers)


def picked(draw: random.Random, count: int, at_once: int, length: int = 1) -> bz.Trust:
    """A rule that picks some of 10 workers in each round, all of them equally often."""
    trust = bz.Trust()
    for _ in range(count):
        weights = [0.0] * 10
        for _ in range(length):
            for worker in draw.sample(range(10), at_once):
                weights[worker] += 1 / (at_once * length)
        trust.update(dict(enumerate(weights)), rounds=length)
    return trust


@pytest.mark.parametrize(("at_once", "length"), [(1, 1), (2, 1), (8, 1), (1, 30)])
@pytest.mark.parametrize("count", [5, 10, 20, 85])
def test_rules_that_pick_workers_rarely_name_one(count: int, at_once: int, length: int) -> None:
    repeats = 6000 // (count * length) + 20
    assert named(lambda draw: picked(draw, count, at_once, length), repeats, 10) <= 0.002


@pytest.mark.parametrize("text", ["Bucketing(s=2) >> GeometricMedian()", "Krum(f=2, m=6)"])
def test_honest_workers_beside_liars_are_rarely_named(text: str) -> None:
    generator, rule, wrong = torch.Generator().manual_seed(5), bz.parse_rule(text), 0
    for _ in range(40):
        trust = bz.Trust()
        for _ in range(10):
            good = torch.randn(10, 30, generator=generator)
            bad = torch.full((2, 30), -20.0)
            trust.add(rule.explain(torch.cat([good, bad]), generator))
        wrong += sum(worker < 10 for worker in trust.unheard())
    assert wrong <= 1
