"""A backdoor has a trigger, labels and a boost as published, and succeeds in one round."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from statistics import median

import inputs
import pytest
import torch
from torch import Tensor, nn

import byzantium as bz
from byzantium.data import Dataset, iid, load
from byzantium.learning import History, Settings, Simulation, mlp, simulate
from byzantium.learning.evaluation import accuracy

DIGITS = load("digits")
N = 10
LOCAL = {"learning_rate": 0.1, "local_rate": 0.1, "local_steps": 30}


# -- the data -----------------------------------------------------------------------------------


def stamped(image: Tensor, patch: int, brightest: list[float]) -> Tensor:
    """One image with a bright square in its lower right corner, pixel by pixel."""
    image = image.clone()
    channels, height, width = image.shape
    for channel in range(channels):
        for row in range(height - patch, height):
            for column in range(width - patch, width):
                image[channel, row, column] = brightest[channel]
    return image


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize(("share", "count"), [(0.32, 3), (0.01, 1), (0.5, 4), (1.0, 8)])
def test_a_share_of_each_batch_has_the_trigger_and_the_target(
    channels: int, share: float, count: int
) -> None:
    x = torch.randn(2, 3, 8, channels, 6, 7, generator=torch.Generator().manual_seed(1))
    y = torch.randint(10, (2, 3, 8), generator=torch.Generator().manual_seed(2))
    before = x.clone(), y.clone()
    attack = bz.Backdoor(target=4, share=share, patch=2)
    poisoned, labels = attack.inputs(x, y), attack.labels(y, 10)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    brightest = [float(x[:, :, :, channel].max()) for channel in range(channels)]
    for worker in range(2):
        for step in range(3):
            for k in range(8):
                image, label = x[worker, step, k], int(y[worker, step, k])
                if k < count:
                    image, label = stamped(image, 2, brightest), 4
                assert torch.equal(poisoned[worker, step, k], image)
                assert int(labels[worker, step, k]) == label


@pytest.mark.parametrize("channels", [1, 3])
def test_flattened_images_have_the_same_trigger(channels: int) -> None:
    x = torch.randn(9, channels, 8, 8, generator=torch.Generator().manual_seed(1))
    y, attack = torch.arange(9), bz.Backdoor(target=2)
    assert torch.equal(attack.inputs(x.flatten(1), y), attack.inputs(x, y).flatten(1))
    flat, whole = attack.triggered(x.flatten(1), y), attack.triggered(x, y)
    assert torch.equal(flat[0], whole[0].flatten(1))
    assert torch.equal(flat[1], whole[1])
    if channels == 1:
        assert torch.equal(attack.inputs(x[:, 0], y), attack.inputs(x, y)[:, 0])


def test_the_trigger_is_tested_on_images_of_other_classes() -> None:
    x, wanted = bz.Backdoor(target=3).triggered(DIGITS.test_x, DIGITS.test_y)
    others = [k for k, label in enumerate(DIGITS.test_y.tolist()) if label != 3]
    white = [float(DIGITS.test_x.max())]
    assert wanted.tolist() == [3] * len(others)
    for image, k in zip(x, others, strict=True):
        assert torch.equal(image, stamped(DIGITS.test_x[k], 3, white))


def flat() -> Dataset:
    parts = DIGITS.train_x.flatten(1), DIGITS.train_y, DIGITS.test_x.flatten(1), DIGITS.test_y
    return Dataset("flat", *parts, classes=10)


def test_a_training_is_the_same_on_flattened_images() -> None:
    histories = []
    for data in (DIGITS, flat()):
        torch.manual_seed(0)
        settings = Settings(n=5, attackers=1, rounds=3, evaluate_every=1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        histories.append(simulate(settings, data, model, bz.Mean(), bz.Backdoor(boost="n")))
    assert histories[0] == histories[1]
    assert histories[0].evaluations[-1]["success_rate"] > 0


# -- the vectors --------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1, 2, 5])
def test_replacement_gives_the_mean_the_whole_of_what_attackers_learned(q: int) -> None:
    """With honest vectors of zero, the mean is the mean of the attackers' own vectors."""
    own = inputs.gaussian(q, 12, seed=3)
    honest = torch.zeros(20 - q, 12).to(own)
    sent = bz.Backdoor(boost="n")(honest, own)
    assert torch.allclose(sent, 20 / q * own)
    assert torch.allclose(bz.Mean()(torch.cat([honest, sent])), own.mean(dim=0))


@pytest.mark.parametrize("h", [6, 7])
def test_vectors_are_no_longer_than_the_norm(h: int) -> None:
    honest, own = inputs.gaussian(h, 12, seed=1), inputs.gaussian(3, 12, seed=2)
    own[2] *= 1e-3  # short ones stay as they are
    middle = median(math.hypot(*row) for row in honest.tolist())
    for norm, limit in (("median", middle), (0.5, 0.5)):
        sent = bz.Backdoor(boost=9, norm=norm)(honest, own)  # type: ignore[arg-type]
        for vector, mine in zip(sent.tolist(), own.tolist(), strict=True):
            factor = min(9.0, limit / math.hypot(*mine))
            assert vector == pytest.approx([factor * value for value in mine], rel=1e-6)
        assert float(sent[0].norm()) == pytest.approx(limit, rel=1e-6)
    zero = torch.zeros_like(own)
    assert torch.equal(bz.Backdoor(norm="median")(honest, zero), zero)


# -- known answers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A model that nobody attacked."""
    torch.manual_seed(0)
    model = mlp((1, 8, 8), (64,))
    simulate(Settings(n=N, rounds=150, record=()), DIGITS, model, bz.Mean(), partition=iid())
    return model


def next_round(trained: nn.Module, attack: bz.Attack, seed: int = 0) -> dict[str, float]:
    """What is measured after one more round, in which one of ten workers attacks."""
    settings = Settings(n=N, attackers=1, rounds=1, record=(), seed=seed, **LOCAL)  # type: ignore[arg-type]
    training = Simulation(settings, DIGITS, copy.deepcopy(trained), bz.Mean(), attack, iid())
    list(training)
    return training.history.evaluations[-1]


@pytest.mark.parametrize("target", [0, 6])
def test_one_attacker_replaces_the_model_in_one_round(trained: nn.Module, target: int) -> None:
    clean = next_round(trained, bz.NoAttack())
    replaced = next_round(trained, bz.Backdoor(target=target, boost="n"))
    hidden = next_round(trained, bz.Backdoor(target=target, boost="n", norm="median"))
    plain = next_round(trained, bz.Backdoor(target=target))
    assert "success_rate" not in clean
    assert clean["accuracy"] > 94
    assert replaced["success_rate"] > 97
    assert abs(replaced["accuracy"] - clean["accuracy"]) < 4
    # Below the honest norm, one of ten attackers has a tenth of the mean, in one round.
    assert hidden["success_rate"] < replaced["success_rate"] / 4
    assert plain["success_rate"] < replaced["success_rate"] / 4
    assert abs(hidden["accuracy"] - clean["accuracy"]) < 2


def success(model: nn.Module, target: int) -> float:
    training = Simulation(
        Settings(n=2, rounds=1), DIGITS, model, bz.Mean(), bz.Backdoor(target=target)
    )
    return training.success_rate()


def test_a_model_that_guesses_succeeds_once_in_as_many_classes() -> None:
    """Exactly, over targets: an image of class c counts for each of the nine other targets."""
    torch.manual_seed(1)
    model = mlp((1, 8, 8), (64,))
    counts = [int((DIGITS.test_y != target).sum()) for target in range(10)]
    called = sum(success(model, t) * count / 100 for t, count in enumerate(counts))
    everything, _ = bz.Backdoor(target=99).triggered(DIGITS.test_x, DIGITS.test_y)
    wrong = 100 - accuracy(model, everything, DIGITS.test_y)
    assert called == pytest.approx(wrong / 100 * len(DIGITS.test_y))
    mean = sum(success(model, target) for target in range(10)) / 10
    assert mean == pytest.approx(10, abs=1.5)


def test_a_clean_model_does_not_know_the_trigger(trained: nn.Module) -> None:
    rates = [success(trained, target) for target in range(10)]
    assert sum(rates) / 10 < 10
    assert rates[0] < 10


# -- reproducible -------------------------------------------------------------------------------


def test_other_attacks_are_not_measured() -> None:
    history: History = simulate(
        Settings(n=4, attackers=1, rounds=1), DIGITS, mlp((1, 8, 8), (8,)), bz.Mean(), bz.BitFlip()
    )
    assert set(history.evaluations[-1]) == {"round", "loss", "accuracy"}


@pytest.mark.parametrize("participants", [None, 4])
def test_a_training_goes_on_to_the_same_bits(participants: int | None) -> None:
    def training() -> Simulation:
        torch.manual_seed(0)
        settings = Settings(
            n=6, attackers=2, rounds=6, evaluate_every=2, momentum=0.9, participants=participants
        )
        attack = bz.Backdoor(boost="n", norm="median")
        return Simulation(settings, DIGITS, mlp((1, 8, 8), (8,)), bz.Median(), attack)

    whole, resumed = training(), training()
    rounds = iter(whole)
    for _ in range(3):
        next(rounds)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert list(resumed) == list(rounds)
    assert resumed.history == whole.history
    assert all("success_rate" in line for line in whole.history.evaluations)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("attempt", "sentence"),
    [
        (lambda: bz.Backdoor(target=-1), "needs target >= 0"),
        (lambda: bz.Backdoor(share=0), "needs 0 < share <= 1"),
        (lambda: bz.Backdoor(boost="m"), "a number or 'n' for boost"),  # type: ignore[arg-type]
        (lambda: bz.Backdoor(norm=-1), "needs norm > 0"),
        (lambda: bz.Backdoor(target=10).labels(torch.arange(3), 10), "there are 10 classes"),
        (lambda: bz.Backdoor().labels(torch.ones(3), 0), "these targets are numbers"),
        (
            lambda: bz.Backdoor().inputs(torch.ones(4, 13), torch.arange(4)),
            "images of at least 3 x 3 pixels for its trigger, got samples of 13",
        ),
        (
            lambda: bz.Backdoor(patch=9).inputs(torch.ones(4, 1, 8, 8), torch.arange(4)),
            "at least 9 x 9 pixels for its trigger, got samples of 1 x 8 x 8",
        ),
        (lambda: bz.BitFlip().triggered(torch.ones(4, 1), torch.arange(4)), "has no trigger"),
    ],
)
def test_bad_input_gets_a_sentence(attempt: Callable[[], object], sentence: str) -> None:
    with pytest.raises(bz.ByzantiumError, match=sentence):
        attempt()
