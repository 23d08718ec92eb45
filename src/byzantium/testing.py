"""The laws that our own rules, mixings and attacks are held to, for whoever writes another.

Call them from a test; each raises an AssertionError that says which law is broken:

>>> from byzantium import Bucketing, ByzantiumError, InnerProduct, Krum
>>> check_rule(Krum(f=2))
>>> check_mixing(Bucketing(s=2))
>>> check_attack(InnerProduct(epsilon=0.5))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from byzantium.aggregation import Aggregator, Mixing
from byzantium.core import ByzantiumError
from byzantium.threats import Attack

# Vectors that everything is tried on: enough for 4f + 3 behind buckets of two, with f = 2.
N, D = 23, 17
# What results in float64 may differ by, in units of the numbers at hand.
CLOSE = 1e-9

LAWS = ("permutation", "translation", "rotation", "scale", "unanimity", "robustness")


def check_rule(rule: Aggregator, *, n: int = N, breaks: Iterable[str] = ()) -> None:
    """Assert what every rule or pipeline promises for n vectors.

    Always: the result is one finite vector of the input's dtype; the input stays as it is; equal
    generators give equal results; one call does not change the next beyond `state_dict`; a copy is
    independent; vectors that are not finite are rejected, and never make the result so; what
    `explain` says agrees with what a call gives.

    breaks: those of LAWS that it breaks by nature. `permutation`: the order of workers does not
    matter. `translation`, `rotation`, `scale`: it moves, turns and grows with the vectors.
    `unanimity`: where all vectors agree, that is the result. `robustness`: with f bad vectors of
    any size, the result stays as near the others as their spread.
    """
    broken = _named(breaks)
    X = torch.randn(n, D, generator=_seeded(1), dtype=torch.float64)
    plain = _fresh(rule)(X, _seeded())
    _check_form(rule, X)
    _check_state(rule, X)
    _check_rejection(rule, X)
    _check_report(rule, X)

    def law(name: str, changed: Tensor, expected: Tensor) -> None:
        if name not in broken:
            _assert_close(_fresh(rule)(changed, _seeded()), expected, f"{rule!r} breaks {name!r}")

    if not _is_random(rule):
        law("permutation", X[torch.randperm(n, generator=_seeded(2))], plain)
    law("translation", X + 3, plain + 3)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=_seeded(3), dtype=X.dtype))[0]
    law("rotation", X @ rotation, plain @ rotation)
    law("scale", 4 * X, 4 * plain)
    law("unanimity", X[:1].expand(n, D), X[0])
    if "robustness" not in broken:
        _check_robustness(rule, X)


def check_mixing(mixing: Mixing, *, n: int = N, breaks: Iterable[str] = ()) -> None:
    """Assert what every mixing promises for n vectors.

    As many vectors come out as `rows` says; each is an affine combination of those that went in,
    so it moves, turns and grows with them; the input stays as it is; equal generators give equal
    results; it composes with rules and mixings. `breaks` is as in `check_rule`.
    """
    from byzantium.aggregation import Mean

    broken = _named(breaks)
    X = torch.randn(n, D, generator=_seeded(1), dtype=torch.float64)
    before = X.clone()
    mixed = mixing(X, _seeded())
    assert mixed.shape == (mixing.rows(n), D), f"{mixing!r}: rows({n}) is {mixing.rows(n)}"
    assert torch.equal(X, before), f"{mixing!r} changes its input"
    assert torch.equal(mixed, mixing(X, _seeded())), f"{mixing!r}: equal generators, other results"

    def law(name: str, changed: Tensor, expected: Tensor) -> None:
        if name not in broken:
            _assert_close(mixing(changed, _seeded()), expected, f"{mixing!r} breaks {name!r}")

    law("translation", X + 3, mixed + 3)
    rotation = torch.linalg.qr(torch.randn(D, D, generator=_seeded(3), dtype=X.dtype))[0]
    law("rotation", X @ rotation, mixed @ rotation)
    law("scale", 4 * X, 4 * mixed)
    law("unanimity", X[:1].expand(n, D), X[:1].expand(len(mixed), D))
    composed = (mixing >> Mean()).explain(X, _seeded())
    _assert_close(composed.aggregate, mixed.mean(dim=0), f"{mixing!r} >> Mean() is another mean")
    _assert_close(composed.mixing.to(X) @ X, mixed, f"{mixing!r}: what a report says it mixed")


def check_attack(attack: Attack, *, honest: int = N, attackers: int = 3) -> None:
    """Assert what every attack promises, for so many honest workers and attackers.

    One vector for each attacker, of the honest ones' dtype; what it is shown stays as it is; equal
    generators give equal vectors; it goes on from its `state_dict`; it never touches the server's
    rule.
    """
    from byzantium.aggregation import Krum

    X = torch.randn(honest, D, generator=_seeded(1))
    own = torch.randn(attackers, D, generator=_seeded(2))
    rule = Krum(f=attackers)

    def sent(attack: Attack, seed: int = 0) -> Tensor:
        generator = _seeded(seed)
        return attack(X, own, rule=rule, epoch=2, generator=generator)

    before = X.clone(), own.clone()
    first, again = copy.deepcopy(attack), copy.deepcopy(attack)
    vectors = sent(first)
    assert vectors.shape == own.shape, f"{attack!r} sends {tuple(vectors.shape)}"
    assert vectors.dtype == X.dtype, f"{attack!r} sends {vectors.dtype} for {X.dtype}"
    assert torch.equal(X, before[0]), f"{attack!r} changes the honest vectors"
    assert torch.equal(own, before[1]), f"{attack!r} changes the attackers' own vectors"
    assert _same(vectors, sent(again)), f"{attack!r}: equal generators, other vectors"
    labels = torch.arange(10)
    assert attack.labels(labels, 10).shape == labels.shape, f"{attack!r} loses labels"
    resumed = copy.deepcopy(attack)
    resumed.load_state_dict(first.state_dict())
    assert _same(sent(first, 5), sent(resumed, 5)), f"{attack!r} does not go on from its state"


# -- what the checks are made of --------------------------------------------------------------


def _check_form(rule: Aggregator, X: Tensor) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = X.to(dtype)
        before = given.clone()
        result = _fresh(rule)(given, _seeded())
        assert result.shape == (D,), f"{rule!r} gives the shape {tuple(result.shape)}"
        assert result.dtype == dtype, f"{rule!r} gives {result.dtype} for {dtype}"
        assert result.isfinite().all(), f"{rule!r} gives numbers that are not finite"
        assert torch.equal(given, before), f"{rule!r} changes its input"


def _check_state(rule: Aggregator, X: Tensor) -> None:
    first, again = _fresh(rule), _fresh(rule)
    assert torch.equal(first(X, _seeded()), again(X, _seeded())), (
        f"{rule!r}: equal generators, other results"
    )
    resumed = _fresh(rule)
    resumed.load_state_dict(first.state_dict())
    expected = first(X + 1, _seeded())
    assert torch.equal(resumed(X + 1, _seeded()), expected), (
        f"{rule!r} does not go on from its state_dict"
    )
    assert torch.equal(again(X + 1, _seeded()), expected), f"copies of {rule!r} share something"
    first.reset()
    assert torch.equal(first(X, _seeded()), _fresh(rule)(X, _seeded())), (
        f"{rule!r} remembers something after reset()"
    )


def _check_rejection(rule: Aggregator, X: Tensor) -> None:
    spoiled = X.clone()
    spoiled[3, 5] = math.nan
    f = min((stage.bad for stage in rule.stages if stage.bad is not None), default=len(X) // 2)
    if f == 0:
        _assert_refuses(lambda: _fresh(rule)(spoiled, _seeded()), f"{rule!r} takes NaN with f = 0")
        return
    report = _fresh(rule).explain(spoiled, _seeded())
    assert report.rejected == (3,), f"{rule!r} rejects {report.rejected} where row 3 is NaN"
    assert report.aggregate.isfinite().all(), f"{rule!r} lets NaN through"


def _check_report(rule: Aggregator, X: Tensor) -> None:
    report = _fresh(rule).explain(X, _seeded())
    _assert_close(report.aggregate, _fresh(rule)(X, _seeded()), f"{rule!r}: explain and call")
    if report.weights.isfinite().all():
        total = float(report.weights.sum()) + report.remainder
        assert abs(total - 1) < CLOSE, f"{rule!r}: the weights in its report sum to {total}"


def _check_robustness(rule: Aggregator, X: Tensor) -> None:
    bounds = [stage.bad for stage in rule.stages if stage.bad is not None]
    f = min(bounds, default=1)
    honest = X[f:]
    spread = float((honest - honest.mean(dim=0)).norm(dim=1).max())
    for size in (10.0, 1e4, 1e12):
        bad = X.clone()
        bad[:f] = size
        distance = float((_fresh(rule)(bad, _seeded()) - honest.mean(dim=0)).norm())
        assert distance <= 4 * spread, (
            f"{rule!r} breaks 'robustness': {f} vectors of size {size:g} move it by {distance:g}, "
            f"where no other is farther from the mean than {spread:g}"
        )


def _is_random(rule: Aggregator) -> bool:
    X = torch.randn(N, D, generator=_seeded(1), dtype=torch.float64)
    return not torch.equal(_fresh(rule)(X, _seeded(1)), _fresh(rule)(X, _seeded(2)))


def _named(breaks: Iterable[str]) -> frozenset[str]:
    broken = frozenset(breaks)
    if unknown := sorted(broken - set(LAWS)):
        raise ByzantiumError(f"there is no law {unknown[0]!r}; there are {', '.join(LAWS)}")
    return broken


def _fresh(rule: Aggregator) -> Aggregator:
    return copy.deepcopy(rule)


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _assert_close(found: Tensor, expected: Tensor, sentence: str) -> None:
    error = float((found - expected).abs().max() / (1 + expected.abs().max()))
    assert error < CLOSE, f"{sentence}: off by {error:g}"


def _assert_refuses(attempt: Callable[[], object], sentence: str) -> None:
    try:
        attempt()
    except ByzantiumError:
        return
    raise AssertionError(sentence)
