"""Attacks that are tailored to a rule: their formulas, written out, and what they are made for."""

from __future__ import annotations

import itertools
import math

import inputs
import numpy as np
import pytest
import torch

import byzantium as bz
from byzantium.data import load
from byzantium.learning import Settings, Simulation, mlp

H, Q, D = 20, 5, 12
DIGITS = load("digits")


# -- RelocatedPerturbation -------------------------------------------------------------------------


def relocated(
    honest: np.ndarray, last: np.ndarray, pi: float, lamb: float, degrees: float, z: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is sent, where it starts and the direction u: number by number."""
    d = len(last)
    mean = [sum(float(row[j]) for row in honest) / len(honest) for j in range(d)]
    start = [pi * last[j] + (1 - pi) * mean[j] for j in range(d)]
    u = [lamb * last[j] + (1 - lamb) * mean[j] for j in range(d)]
    along = sum(u) / sum(x * x for x in u)
    p = [1 - along * x for x in u]
    length, norm = math.sqrt(sum(x * x for x in p)), math.sqrt(sum(x * x for x in u))
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    push = [sine * p[j] / length + cosine * u[j] / norm for j in range(d)]
    sent = [start[j] + z * push[j] for j in range(d)]
    return np.array(sent), np.array(start), np.array(u)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pi", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("lamb", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("degrees", [0, 45, 90, 180, 270])
def test_a_relocated_perturbation_has_its_place_angle_and_length(
    seed: int, pi: float, lamb: float, degrees: float
) -> None:
    honest, last = inputs.heterogeneous(H, D, seed), inputs.gaussian(1, D, seed + 50)[0]
    attack = bz.RelocatedPerturbation(relocation=pi, reference=lamb, angle=degrees)
    z = bz.ALittleIsEnough().deviations(H + Q, Q)
    expected, start, u = relocated(honest.numpy(), last.numpy(), pi, lamb, degrees, z)
    sent = attack(honest, q=Q, last_aggregate=last).numpy()
    assert np.allclose(sent, expected, rtol=0, atol=1e-12)
    push = sent[0] - start
    assert np.linalg.norm(push) == pytest.approx(z, abs=1e-12)
    cosine = push @ u / z / np.linalg.norm(u)
    assert cosine == pytest.approx(math.cos(math.radians(degrees)), abs=1e-12)


def test_in_the_first_round_it_starts_from_zero() -> None:
    honest = inputs.heterogeneous(H, D)
    sent = bz.RelocatedPerturbation(z=2)(honest, q=1)[0]
    assert float(sent.norm()) == pytest.approx(2)
    assert float(sent @ honest.mean(dim=0)) == pytest.approx(0, abs=1e-12)
    nothing = bz.RelocatedPerturbation(z=2, reference=1)(honest, q=1)[0]  # u is zero
    assert torch.allclose(nothing, torch.full_like(nothing, -2 / math.sqrt(D)))


def test_without_a_perpendicular_it_makes_none_of_rounding() -> None:
    """Where u is a multiple of (1, ..., 1), as in one dimension."""
    for d in (1, 3):
        last = torch.full((d,), 0.1)
        sent = bz.RelocatedPerturbation(reference=1, z=2)(
            torch.ones(4, d), q=1, last_aggregate=last
        )
        assert torch.allclose(sent[0], last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_centered_clipping_never_clips_it(dtype: torch.dtype) -> None:
    """The rule gives the same as one that clips honest vectors only; with a smaller radius, not."""
    for radius, clipped in ((1.01, False), (0.9, True)):
        rule, last, difference = bz.CenteredClipping(radius=radius), torch.zeros(D).to(dtype), 0.0
        for t in range(6):
            honest = 3 * inputs.heterogeneous(H, D, seed=t).to(dtype)
            sent = bz.RelocatedPerturbation(z=1)(honest, q=Q, last_aggregate=last if t else None)
            moves = honest - last
            moves *= (radius / moves.norm(dim=1, keepdim=True)).clip(max=1)
            expected = last + (moves.sum(dim=0) + (sent - last).sum(dim=0)) / (H + Q)
            last = rule(torch.cat([honest, sent]))
            difference = max(difference, float((last - expected).norm()))
        assert (difference > 1e-2) == clipped
        assert clipped or difference < 1e-5


seen: list[torch.Tensor | None] = []


class Spy(bz.NoAttack):
    """Sends honest vectors, and stores what it was told of the last aggregates."""

    needs_last_aggregate = True

    def vectors(self, scene: bz.Scene) -> torch.Tensor:
        seen.append(scene.last_aggregate)
        return super().vectors(scene)


def test_a_simulation_tells_attackers_the_last_aggregate() -> None:
    """With plain SGD it is the last step of the model, divided by the rate."""
    seen.clear()
    model = mlp((1, 8, 8))
    settings = Settings(n=5, attackers=1, rounds=4, batch=2, learning_rate=0.5, dtype="float64")
    models = []
    for _ in Simulation(settings, DIGITS, model, bz.Mean(), Spy()):
        models.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert seen[0] is None
    steps = [(a - b) / 0.5 for a, b in itertools.pairwise(models)]
    for told, step in zip(seen[2:], steps[:2], strict=True):
        assert told is not None
        assert torch.allclose(told, step, rtol=0, atol=1e-12)


def test_a_state_has_the_last_aggregate_only_for_attacks_that_use_it() -> None:
    settings = Settings(n=5, attackers=1, rounds=2, batch=2)
    for attack in (bz.InnerProduct(), bz.RelocatedPerturbation()):
        training = Simulation(settings, DIGITS, mlp((1, 8, 8)), bz.Mean(), attack)
        next(iter(training))
        state = training.state_dict()
        assert ("last aggregate" in state) == attack.needs_last_aggregate
        if attack.needs_last_aggregate:
            del state["last aggregate"]
            with pytest.raises(bz.ByzantiumError, match="its last aggregate is not one of this"):
                training.load_state_dict(state)


# -- Fang ------------------------------------------------------------------------------------------


def krum(rows: np.ndarray, f: int) -> int:
    """The index of the row that Krum selects, distance by distance."""
    scores = []
    for i, x in enumerate(rows):
        squares = sorted(float(((x - y) ** 2).sum()) for j, y in enumerate(rows) if j != i)
        scores.append(sum(squares[: len(rows) - f - 2]))
    return scores.index(min(scores))


def bound(honest: np.ndarray, q: int) -> float:
    """Theorem 1 of the paper, with zero as the change of the last model."""
    n, d = len(honest) + q, honest.shape[1]
    sums = []
    for i, x in enumerate(honest):
        squares = sorted(float(((x - y) ** 2).sum()) for j, y in enumerate(honest) if j != i)
        sums.append(sum(squares[: n - q - 2]))
    farthest = max(float(np.linalg.norm(x)) for x in honest)
    return math.sqrt(min(sums) / ((n - 2 * q - 1) * d)) + farthest / math.sqrt(d)


@pytest.mark.parametrize("q", [1, 2, 5, 8])
@pytest.mark.parametrize("offset", [0.0, 0.3, 100.0])
@pytest.mark.parametrize("seed", range(4))
def test_fang_goes_as_far_as_krum_selects_it(q: int, offset: float, seed: int) -> None:
    honest = inputs.gaussian(H, D, seed) + offset
    A = honest.numpy()
    signs = np.sign(A.mean(axis=0))

    def selects(distance: float) -> bool:
        return krum(np.concatenate([A, np.repeat([-distance * signs], q, axis=0)]), q) >= H

    distance = bound(A, q)
    assert not any(selects(distance * factor) for factor in (1.001, 1.5, 10))
    halvings = 0
    while not selects(distance) and halvings < 17:
        distance, halvings = distance / 2, halvings + 1
    sent = bz.Fang("krum")(honest, q=q)
    assert np.allclose(sent.numpy(), -distance * signs, rtol=1e-9)
    # With one attacker, or far from zero, there may be none that Krum selects.
    picked = bz.Krum(f=q)(torch.cat([honest, sent]))
    assert torch.equal(picked, sent[0]) == (halvings < 17)
    if q == 8 and offset == 0.3:
        assert halvings < 17


def test_fang_reverses_the_step_of_krum() -> None:
    honest = inputs.gaussian(H, D) + 0.3
    mean = honest.mean(dim=0)
    out = bz.Krum(f=8)(torch.cat([honest, bz.Fang()(honest, q=8)]))
    assert float(out @ mean) < 0


def test_fang_knows_no_krum_of_so_few_vectors() -> None:
    for h, q in ((1, 1), (2, 2), (1, 5), (3, 9)):
        assert bz.Fang()(inputs.gaussian(h, D), q=q).isfinite().all()
    assert torch.equal(bz.Fang()(torch.zeros(9, 3), q=2), torch.zeros(2, 3))


@pytest.mark.parametrize("seed", range(5))
def test_fang_lies_beyond_all_honest_numbers(seed: int) -> None:
    offset = torch.tensor([-9.0, -0.5, 0.0, 0.5, 9.0], dtype=torch.float64).repeat(4)
    honest = inputs.gaussian(H, 20, seed) + offset
    honest[:, 7] = 0
    sent = bz.Fang("trim")(honest, q=Q)
    for j, column in enumerate(honest.T.tolist()):
        low, high, total = min(column), max(column), sum(column)
        if total > 0:
            expected = low / 2 if low > 0 else 2 * low
            assert expected < low
        elif total < 0:
            expected = 2 * high if high > 0 else high / 2
            assert expected > high
        else:
            expected = 0.0
        assert sent[:, j].tolist() == [expected] * Q
    # Trimming then takes all the numbers that it keeps from one side.
    mean, trimmed = honest.mean(dim=0), bz.TrimmedMean(f=Q)(torch.cat([honest, sent]))
    assert ((trimmed - mean) * mean.sign() <= 0).all()


# -- ByzMean ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [1, 2, 5, 8, 30])
@pytest.mark.parametrize("z", [0.0, 0.5, 3.0])
def test_byz_mean_brings_the_mean_of_all_to_a_hidden_attack(q: int, z: float) -> None:
    honest = inputs.heterogeneous(H, D)
    hidden = bz.ALittleIsEnough(z=z)(honest, q=1)[0]
    sent = bz.ByzMean(z=z)(honest, q=q)
    together = torch.cat([honest, sent]).mean(dim=0)
    assert torch.allclose(together, hidden, rtol=0, atol=1e-12)
    first = q // 2
    for j in range(D):
        column = [float(x) for x in honest[:, j]]
        mean = sum(column) / H
        deviation = math.sqrt(sum((x - mean) ** 2 for x in column) / (H - 1))
        m = mean - z * deviation
        other = ((H + q - first) * m - sum(column)) / (q - first)
        expected = [m] * first + [other] * (q - first)
        assert sent[:, j].tolist() == pytest.approx(expected, abs=1e-12)
