"""The adaptive attack: its trials are what the rule would do, and it finds what others miss."""

from __future__ import annotations

import copy
import math
from typing import Any

import inputs
import members
import pytest
import torch
from torch import Tensor

import byzantium as bz
from byzantium.attacks.attack import Scene
from byzantium.attacks.space import Space

H, Q, D = 20, 5, 300
MODEL = torch.linspace(-1, 1, D, dtype=torch.float64)
WEIGHTINGS = [m.rule for m in members.EVERYTHING if m.rule.knows_weights == "always"]
ROOT_RULES = [member.rule for member in members.ROOT_RULES]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scene_of(rule: bz.Aggregator, honest: Tensor, root: Tensor | None = None) -> Scene:
    return Scene(honest, None, Q, rule, None, seeded(), root, MODEL)


def aligned(rule: bz.Aggregator, honest: Tensor, sent: Tensor) -> float:
    """The inner product of the result with the honest mean; over draws, if the rule is random."""
    rows = torch.cat([honest, sent])
    results = [copy.deepcopy(rule)(rows, seeded(seed)) for seed in range(20)]
    return float(torch.stack([out @ honest.mean(dim=0) for out in results]).mean())


@pytest.mark.parametrize("rule", WEIGHTINGS, ids=repr)
def test_trials_in_few_dimensions_have_the_results_of_the_rule(rule: bz.Aggregator) -> None:
    honest = inputs.heterogeneous(H, D)
    rule = copy.deepcopy(rule)
    if rule.center is None and "Clipping(radius" in repr(rule):
        rule(torch.cat([honest, honest[:Q]]), seeded())  # it has a center from now on
    space = Space(scene_of(rule, honest))
    assert space.points.shape[1] < 40
    coefficients = torch.randn(len(space.features), generator=seeded(3), dtype=torch.float64) / 3
    sent = space.full(coefficients.numpy())
    (results,) = space.results([coefficients.numpy()])
    for draw, result in zip(space.draws, results, strict=True):
        rows = torch.cat([honest, sent.expand(Q, D)])
        expected = copy.deepcopy(rule)(rows, seeded(space.seed + draw))
        products = (space.features @ expected, space.points @ result)
        assert torch.allclose(*products, rtol=1e-6, atol=1e-6 * float(space.gram.max()))


@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
def test_trials_see_the_root_gradient(member: members.RootRule) -> None:
    honest = inputs.heterogeneous(H, D)
    root = honest.mean(dim=0) + 0.1
    space = Space(scene_of(member.rule, honest, root))
    sent = honest[0] - 2 * honest[1]
    coefficients = torch.zeros(len(space.features), dtype=torch.float64)
    coefficients[0], coefficients[1] = 1, -2
    [[result]] = space.results([coefficients.numpy()])
    expected = member.rule(torch.cat([honest, sent.expand(Q, D)]), root=root)
    assert torch.allclose(space.features @ expected, space.points @ result, atol=1e-5)


@pytest.mark.parametrize("rule", [*WEIGHTINGS, *ROOT_RULES], ids=repr)
def test_a_trial_has_the_same_result_to_the_bit_alone_and_among_others(rule: bz.Aggregator) -> None:
    honest = inputs.heterogeneous(H, D)
    root = honest.mean(dim=0) + 0.1 if rule.needs_root else None
    space = Space(scene_of(rule, honest, root))
    drawn = torch.randn(12, len(space.features), generator=seeded(4), dtype=torch.float64) / 3
    drawn[5:] *= 100  # rules leave these out, after different numbers of iterations
    candidates = [*drawn.numpy(), drawn[:Q].numpy()]
    together = space.results(candidates)
    for candidate, results in zip(candidates, together, strict=True):
        (alone,) = space.results([candidate])
        assert all(torch.equal(*pair) for pair in zip(alone, results, strict=True))


@pytest.mark.parametrize(
    "rule",
    [
        bz.AgnosticClipping(f=Q, b=0.6),
        bz.GeometricMedian(),
        bz.Bucketing(s=2) >> bz.GeometricMedian(),
        bz.Krum(f=Q),
        bz.SpectralFilter(f=Q),
        bz.TrimmedMean(f=Q),
        bz.Median(),
    ],
    ids=repr,
)
def test_it_is_at_least_as_harmful_as_attacks_that_are_among_its_candidates(
    rule: bz.Aggregator,
) -> None:
    honest = inputs.heterogeneous(H, D)
    sent = bz.Adaptive()(honest, q=Q, rule=rule, generator=seeded(), model=MODEL)
    others = [bz.InnerProduct(epsilon=10.0), bz.InnerProduct(epsilon=0.3), bz.Mimic(target=0)]
    slack = 0.2 if isinstance(rule.stages[0], bz.Bucketing) else 1e-9  # it averages few draws
    for other in others:
        theirs = aligned(rule, honest, other(honest, q=Q, generator=seeded()))
        assert aligned(rule, honest, sent) <= theirs + slack * abs(theirs)


def test_each_aim_is_best_at_its_aim() -> None:
    honest, rule = inputs.heterogeneous(H, D), bz.AgnosticClipping(f=Q, b=0.6)
    mean = honest.mean(dim=0)
    results = {}
    for aim in ("alignment", "distance", "collapse"):
        attack = bz.Adaptive(aim)
        sent = attack(honest, q=Q, rule=rule, generator=seeded(), model=MODEL)
        results[aim] = rule(torch.cat([honest, sent]))
    assert min(results, key=lambda aim: float(results[aim] @ mean)) == "alignment"
    assert max(results, key=lambda aim: float((results[aim] - mean).norm())) == "distance"
    assert max(results, key=lambda aim: float(results[aim] @ MODEL)) == "collapse"


def test_it_tries_copies_only_and_never_sees_the_servers_permutation() -> None:
    honest = inputs.heterogeneous(H, D)
    server = bz.Bucketing(s=2) >> bz.CenteredClipping(radius=5.0)
    server(torch.cat([honest, honest[:Q]]), seeded())
    state = server.state_dict()["center"]
    bz.Adaptive()(honest, q=Q, rule=server, generator=seeded(), model=MODEL)
    assert torch.equal(server.state_dict()["center"], state)


def test_what_it_needs() -> None:
    honest = inputs.heterogeneous(H, D)
    with pytest.raises(bz.ByzantiumError, match="needs the server's rule"):
        bz.Adaptive()(honest, q=Q)
    with pytest.raises(bz.ByzantiumError, match="needs the parameters of the model"):
        bz.Adaptive("collapse")(honest, q=Q, rule=bz.Median(), generator=seeded())
    with pytest.raises(bz.ByzantiumError, match="needs the loss after a step"):
        bz.Adaptive("loss")(honest, q=Q, rule=bz.Median(), generator=seeded())
    with pytest.raises(bz.ByzantiumError, match="at least 10 trials"):
        bz.Adaptive(budget=9)


@pytest.mark.parametrize("h", [1, 2, 100])
def test_few_and_many_honest_workers_and_equal_vectors(h: int) -> None:
    for honest in (inputs.gaussian(h, 8), torch.ones(h, 8), torch.zeros(h, 8)):
        sent = bz.Adaptive()(honest, q=1, rule=bz.Mean(), generator=seeded())
        assert sent.isfinite().all()


@pytest.mark.parametrize("aim", ["alignment", "distance", "collapse"])
def test_vectors_grow_no_longer_than_the_server_admits(aim: Any) -> None:
    """Against the mean each round finds longer vectors than the one before."""
    attack, honest, generator = bz.Adaptive(aim), inputs.gaussian(H, 40).float(), seeded()
    rule, model, lengths = bz.Mean(), MODEL[:40].float(), []
    for _ in range(30):
        sent = attack(honest, q=Q, rule=rule, generator=generator, model=model)
        lengths.append(float(sent.double().norm(dim=1).max()))
        assert not rule.explain(torch.cat([honest, sent])).rejected
    assert lengths[0] < 1e6 < 9e17 < lengths[-1] <= 1e18


@pytest.mark.parametrize("huge", [1e60, 1e200, math.inf])
def test_candidates_that_overflow_are_not_sent_and_give_no_warning(huge: float) -> None:
    attack, honest = bz.Adaptive("collapse"), inputs.heterogeneous(H, D)
    scene = scene_of(bz.Mean(), honest)
    k = len(Space(scene).features)
    attack.load_state_dict({"last": torch.full((k,), huge, dtype=torch.float64)})
    sent = attack.vectors(scene).expand(Q, D)
    assert not bz.Mean().explain(torch.cat([honest, sent])).rejected
