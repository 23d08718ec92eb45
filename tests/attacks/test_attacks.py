"""Attacks send what their formulas say, keep their state apart, and never touch the server's."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any, Literal

import inputs
import members
import numpy as np
import pytest
import torch
from torch import Tensor

import byzantium as bz

H, Q, D = 20, 5, 12


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def scene() -> tuple[Tensor, Tensor]:
    return inputs.heterogeneous(H, D), inputs.gaussian(Q, D, seed=9)


def send(attack: bz.Attack, honest: Tensor, own: Tensor) -> Tensor:
    model = torch.linspace(-1, 1, D).to(honest)
    return attack(
        honest,
        own,
        rule=bz.Krum(f=Q),
        epoch=3,
        generator=seeded(),
        model=model,
        step_loss=lambda aggregate: -float(aggregate.double() @ model.double()),
        last_aggregate=honest[0] - 1,
        node=bz.attacks.Node(0, [0.1] * (H + Q - 1), honest, np.linspace(-1, 1, H).tolist()),
    )


@pytest.mark.parametrize("attack", members.ATTACKS, ids=repr)
def test_every_attack_sends_one_vector_per_attacker_and_touches_nothing(attack: bz.Attack) -> None:
    honest, own = (X.float() for X in scene())
    before = honest.clone(), own.clone()
    sent = send(copy.deepcopy(attack), honest, own)
    assert sent.shape == (Q, D)
    assert sent.dtype == torch.float32
    assert torch.equal(honest, before[0])
    assert torch.equal(own, before[1])
    assert not sent.requires_grad


@pytest.mark.parametrize("attack", members.ATTACKS, ids=repr)
def test_attacks_are_written_and_read_and_repeatable(attack: bz.Attack) -> None:
    read = bz.parse_attack(repr(attack))
    assert read == attack
    assert hash(read) == hash(attack)
    honest, own = scene()
    first, second = send(copy.deepcopy(attack), honest, own), send(read, honest, own)
    assert torch.equal(first.nan_to_num(), second.nan_to_num())


@pytest.mark.parametrize("attack", members.ATTACKS, ids=repr)
def test_saved_state_goes_on_where_it_stopped(attack: bz.Attack) -> None:
    original, restored = copy.deepcopy(attack), copy.deepcopy(attack)
    rounds = [inputs.heterogeneous(H, D, seed=k) for k in range(6)]
    own = inputs.gaussian(Q, D, seed=9)
    for honest in rounds[:2]:
        send(original, honest, own)
    restored.load_state_dict(original.state_dict())
    for honest in rounds[2:]:
        a, b = send(original, honest, own), send(restored, honest, own)
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
    assert original == attack


def test_the_formulas() -> None:
    honest, own = scene()
    A = honest.numpy()
    mean, deviation = A.mean(axis=0), A.std(axis=0, ddof=1)
    assert torch.equal(bz.BitFlip()(honest, own), -own)
    assert torch.equal(bz.NoAttack()(honest, own), own)
    assert torch.equal(bz.LabelFlip()(honest, own), own)
    sent = bz.InnerProduct(epsilon=0.3)(honest, q=2)
    assert np.allclose(sent.numpy(), -0.3 * mean)
    sent = bz.ALittleIsEnough(z=1.5)(honest, q=2)
    assert np.allclose(sent.numpy(), mean - 1.5 * deviation)
    assert bz.NonFinite("mixture")(honest, q=1).isfinite().sum() == 0
    noise = bz.GaussianNoise(scale=3.0)(torch.zeros(2, 20_000), q=2, generator=seeded())
    assert float(noise.std()) == pytest.approx(3, rel=0.03)
    assert not torch.equal(noise[0], noise[1])


def test_z_of_a_little_is_enough() -> None:
    """The published setting, and never below zero or without bound."""
    attack = bz.ALittleIsEnough()
    assert attack.deviations(25, 5) == pytest.approx(0.2533, abs=1e-4)
    for n in range(3, 60):
        for q in range(1, n - 1):
            assert 0 <= attack.deviations(n, q) < 10


def far(x: np.ndarray, y: np.ndarray) -> float:
    return float(((x - y) ** 2).sum())


@pytest.mark.parametrize("direction", ["deviation", "unit", "sign"])
@pytest.mark.parametrize("seed", range(5))
def test_min_max_and_min_sum_go_as_far_as_they_may(
    seed: int, direction: Literal["deviation", "unit", "sign"]
) -> None:
    """A slow bisection on the distances themselves finds the same strength."""
    honest = inputs.heterogeneous(9, 6, seed=seed)
    A = honest.numpy()
    mean = A.mean(axis=0)
    along = {
        "deviation": A.std(axis=0, ddof=1),
        "unit": mean / np.linalg.norm(mean),
        "sign": np.sign(mean),
    }[direction]
    widest = max(far(x, y) for x in A for y in A)
    worst = max(sum(far(x, y) for y in A) for x in A)
    conditions: list[tuple[bz.Attack, Callable[[np.ndarray], bool]]] = [
        (bz.MinMax(direction), lambda m: max(far(m, x) for x in A) <= widest),
        (bz.MinSum(direction), lambda m: sum(far(m, x) for x in A) <= worst),
    ]
    for attack, unnoticed in conditions:
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if unnoticed(mean - middle * along) else (low, middle)
        assert np.allclose(attack(honest, q=1).numpy(), mean - low * along, atol=1e-8)


OFFSETS = [
    *((torch.float64, *case) for case in ((0, 1), (1e5, 0.01), (1e8, 1e-3), (1e12, 1e-3))),
    *((torch.float64, *case) for case in ((0, 1e-100), (0, 1e100), (1, 1e-15))),
    *((torch.float32, *case) for case in ((0, 1), (1e3, 0.01), (1e5, 0.01), (1e5, 1), (1e8, 9))),
    *((torch.float16, *case) for case in ((0, 1), (1, 1e-3), (1e3, 1))),
]


@pytest.mark.parametrize(("dtype", "offset", "spread"), OFFSETS)
@pytest.mark.parametrize("attack", [bz.MinMax(), bz.MinSum(), bz.MinMax("sign")], ids=repr)
@pytest.mark.parametrize("d", [1, 7, 600])
def test_min_max_and_min_sum_keep_their_promise_beside_a_large_common_part(
    attack: bz.Attack, dtype: torch.dtype, offset: float, spread: float, d: int
) -> None:
    """Of the vector that is sent, whose digits may be as few as the spread has."""
    for seed in range(5):
        honest = (offset + spread * inputs.gaussian(20, d, seed)).to(dtype)
        wide = honest.double()
        sent = attack(honest, q=1)[0].double()
        pairs = torch.stack([(wide - x).square().sum(dim=1) for x in wide])
        distances = (wide - sent).square().sum(dim=1)
        if isinstance(attack, bz.MinMax):
            assert distances.max() <= (1 + 1e-6) * pairs.max()
        else:
            assert distances.sum() <= (1 + 1e-6) * pairs.sum(dim=1).max()
        # And it goes as far as that, where the dtype has the digits for it.
        if isinstance(attack, bz.MinMax) and spread > 1e3 * torch.finfo(dtype).eps * offset:
            assert distances.max() >= 0.99 * pairs.max()


def test_attacks_on_rows_that_are_all_equal_stay_with_them() -> None:
    same = torch.full((7, 3), 1e12 + 0.1, dtype=torch.float64)
    assert torch.equal(bz.MinMax()(same, q=1), same[:1])
    assert torch.equal(bz.MinSum()(same, q=1), same[:1])
    honest = torch.ones(4, 3)
    for attack in (bz.MinMax(), bz.MinSum(), bz.MinMax("unit"), bz.ALittleIsEnough()):
        assert torch.equal(attack(honest, q=1), torch.ones(1, 3))
    single = torch.ones(1, 3)
    assert torch.equal(bz.ALittleIsEnough(z=1)(single, q=1), single)


def oja(rounds: list[np.ndarray], z: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The paper's appendix, written out."""
    mu, copied = np.zeros_like(z), []
    for t, X in enumerate(rounds):
        mu = t / (1 + t) * mu + 1 / (1 + t) * X.mean(axis=0)
        scatter = sum(np.outer(x - mu, x - mu) for x in X)
        z = t / (1 + t) * z + 1 / (1 + t) * scatter @ z
        z = z / np.linalg.norm(z)
        copied.append(int((X @ z).argmax()))
    return z, copied


@pytest.mark.parametrize("retarget", [False, True])
def test_mimic_follows_the_appendix_of_the_paper(retarget: bool) -> None:
    rounds = [inputs.heterogeneous(H, D, seed=k) for k in range(8)]
    start = torch.randn(D, generator=seeded()).double()
    z, copied = oja([X.numpy() for X in rounds[:4]], (start / start.norm()).numpy())
    attack, generator = bz.Mimic(warmup=4, retarget=retarget), seeded()
    for t, X in enumerate(rounds):
        sent = attack(X, q=Q, generator=generator)
        if t >= 4:
            copied.append(int((X.numpy() @ z).argmax()) if retarget else copied[3])
        assert torch.equal(sent, X[copied[t]].expand(Q, D))
    if not retarget:
        assert len(set(copied[3:])) == 1


def test_mimic_chooses_anew_among_fewer_vectors() -> None:
    """Where workers are sampled, a round may have fewer honest vectors than the one before."""
    attack, X = bz.Mimic(warmup=1), inputs.heterogeneous(H, D)
    attack(X, q=Q, generator=seeded())
    direction, far = attack.state_dict()["direction"], int(attack.state_dict()["copied"])
    for h in (far + 1, far, 1):
        there = X[:h] if h <= far else X[far : far + 1]
        expected = there[(there @ direction).argmax()]
        assert torch.equal(attack(X[:h], q=Q, generator=seeded()), expected.expand(Q, D))


def test_mimic_warms_up_for_an_epoch_unless_told_otherwise() -> None:
    with pytest.raises(ValueError, match=r"Mimic\(\) warms up for one epoch of unknown"):
        bz.Mimic()(torch.ones(3, 2), q=1)
    attack = bz.Mimic()
    for _ in range(3):
        attack(inputs.gaussian(4), q=1, epoch=2)
    assert int(attack.state_dict()["rounds"]) == 2


def test_mimic_copies_another_worker_where_the_one_that_it_copied_takes_no_part() -> None:
    attack, honest = bz.Mimic(warmup=1), torch.tensor([[0.0], [0.0], [0.0], [9.0]])
    assert attack(honest, q=1, generator=seeded()).item() in (0.0, 9.0)
    attack.load_state_dict({**attack.state_dict(), "copied": torch.tensor(3)})
    assert attack(honest, q=1, generator=seeded()).item() == 9.0
    assert attack(honest[:3] + 1, q=1, generator=seeded()).item() == 1.0
    assert int(attack.state_dict()["copied"]) < 3


def test_a_tuned_attack_is_at_least_as_bad_as_any_of_its_strengths() -> None:
    honest, _ = scene()
    for rule in (bz.Krum(f=Q), bz.Median(), bz.GeometricMedian()):

        def distance(attack: bz.Attack, rule: bz.Aggregator = rule) -> float:
            sent = attack(honest, q=Q, rule=rule, generator=seeded())
            moved = rule(torch.cat([honest, sent])) - honest.mean(dim=0)
            return float(moved.norm())

        tuned = distance(bz.Tuned(bz.InnerProduct()))
        assert all(
            tuned >= distance(bz.InnerProduct(epsilon=e)) - 1e-9
            for e in (0.1, 0.125, 0.5, 1, 8, 32)
        )


@pytest.mark.parametrize("aim", ["alignment", "distance", "loss", "collapse"])
def test_tuned_maximizes_its_aim(aim: Any) -> None:
    honest = torch.randn(12, 6, generator=seeded()) + 1
    mean, model, rule = honest.mean(0), torch.arange(6.0), bz.TrimmedMean(f=3)
    wished: dict[str, Callable[[Tensor], float]] = {
        "alignment": lambda out: -float(out @ mean),
        "distance": lambda out: float((out - mean).norm()),
        "loss": lambda out: float(out[0] ** 2),
        "collapse": lambda out: float(out @ model),
    }

    def harms(attack: bz.Attack) -> dict[str, float]:
        sent = attack(
            honest,
            q=3,
            rule=rule,
            generator=seeded(),
            model=model,
            step_loss=wished["loss"],
        )
        out = rule(torch.cat([honest, sent]))
        return {name: function(out) for name, function in wished.items()}

    most = harms(bz.Tuned(bz.InnerProduct(), aim=aim))[aim]
    assert most >= max(harms(bz.InnerProduct(epsilon=e))[aim] for e in (0.5, 1, 4, 32))


def test_tuned_says_what_its_aim_needs() -> None:
    needs: dict[Any, str] = {"loss": "step_loss=", "collapse": "model="}
    for aim, needed in needs.items():
        with pytest.raises(bz.ByzantiumError, match=needed):
            bz.Tuned(bz.InnerProduct(), aim=aim)(torch.ones(3, 2), q=1, rule=bz.Mean())


def test_a_tuned_attack_pushes_either_way() -> None:
    """The median gives way to a push in one direction that it stands in the other."""
    honest = torch.randn(10, 5, generator=seeded())

    def distance(attack: bz.Attack) -> float:
        sent = attack(honest, q=3, rule=bz.Median(), generator=seeded())
        return float((bz.Median()(torch.cat([honest, sent])) - honest.mean(dim=0)).norm())

    one, both = (distance(bz.Tuned(bz.ALittleIsEnough(), both=b)) for b in (False, True))
    assert (round(one, 3), round(both, 3)) == (0.845, 1.222)
    for k in range(-4, 6):
        for z in (2.0**k, -(2.0**k)):
            sent = (honest.mean(dim=0) - z * honest.std(dim=0)).expand(3, 5)
            moved = bz.Median()(torch.cat([honest, sent])) - honest.mean(dim=0)
            assert both >= float(moved.norm()) - 1e-6


def test_probing_never_advances_the_server_and_never_sees_its_permutation() -> None:
    honest, _ = scene()
    server = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=5.0)
    server(torch.cat([honest, honest[:Q]]), seeded())
    state, generator = server.state_dict()["center"], seeded()
    before = generator.get_state()
    calls = []

    class Spy(bz.Median):
        def _run(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
            calls.append(arguments[1])
            return super()._run(*arguments, **options)  # type: ignore[arg-type]

    bz.Tuned(bz.ALittleIsEnough())(honest, q=Q, rule=server, generator=seeded())
    assert torch.equal(server.state_dict()["center"], state)
    assert torch.equal(generator.get_state(), before)
    bz.Tuned(bz.InnerProduct())(honest, q=Q, rule=Spy(), generator=seeded())
    assert 1 <= len(calls) <= 26
    assert all(isinstance(g, torch.Generator) and g is not generator for g in calls)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: bz.InnerProduct(epsilon=-1), "InnerProduct needs epsilon >= 0, got epsilon=-1.0"),
    (lambda: bz.ALittleIsEnough(z=math.nan), "ALittleIsEnough needs z >= 0, got z=nan"),
    (lambda: bz.Mimic(warmup=0), "Mimic needs warmup >= 1, got warmup=0"),
    (lambda: bz.Mimic(target=1, retarget=True), "Mimic takes either a target, or warmup and"),
    (lambda: bz.Mimic(target=9)(torch.ones(3, 2), q=1), "needs more than 9 honest workers, got 3"),
    (
        lambda: bz.NonFinite("null"),  # type: ignore[arg-type]
        "NonFinite needs 'nan', 'inf', '-inf' or 'mixture' for kind, got",
    ),
    (lambda: bz.Tuned(bz.Mimic()), "Tuned needs an attack that has a strength, such as Inner"),
    (
        lambda: bz.Tuned(bz.InnerProduct())(torch.ones(3, 2), q=1),
        "Tuned(attack=InnerProduct(), both=True) needs the server's rule to tune itself to",
    ),
    (lambda: bz.BitFlip()(torch.ones(3, 2), q=1), "BitFlip() needs the attackers' own vectors"),
    (lambda: bz.InnerProduct()(torch.ones(3, 2)), "needs the number of attackers, q=..., or"),
    (lambda: bz.parse_attack("Mimik()"), "which does not exist; did you mean 'Mimic'?"),
    (lambda: bz.parse_attack("Krum(f=1)"), "names 'Krum', which does not exist"),
]


@pytest.mark.parametrize(
    ("attempt", "sentence"), REFUSED, ids=lambda x: x[:40] if isinstance(x, str) else None
)
def test_bad_input_gets_a_sentence(attempt: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        attempt()
