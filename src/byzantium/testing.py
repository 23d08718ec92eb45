"""Checks for rules, mixings and attacks of your own: the laws that the built-in ones obey.

Call them from a test; each raises an `AssertionError` that says which law is broken:

>>> from byzantium import Bucketing, ByzantiumError, InnerProduct, Krum
>>> check_rule(Krum(f=2))
>>> check_mixing(Bucketing(s=2))
>>> check_attack(InnerProduct(epsilon=0.5))
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from byzantium.attacks import Attack, Node
from byzantium.core import ByzantiumError
from byzantium.rules import Aggregator, Mixing

# The size of all inputs: enough vectors for 4f + 3 after buckets of two, with f = 2.
N, D = 23, 17
# By how much results in float64 may differ, relative to their size.
CLOSE = 1e-9

LAWS = ("permutation", "translation", "rotation", "scale", "unanimity", "robustness")


def check_rule(rule: Aggregator, *, n: int = N, breaks: Iterable[str] = ()) -> None:
    """Assert that a rule or pipeline obeys the laws of rules.

    - `n`: how many vectors it is tried on; it must be defined for so many.
    - `breaks`: the names of the laws below that it breaks by nature.

    Every rule must return one finite vector of the dtype of the input; leave the input unchanged;
    give equal results for equal generators; store nothing from call to call except its
    `state_dict`; have independent copies; and reject vectors that are not finite. Its `explain`
    must agree with a call. A rule that needs a root gradient is given one near the mean, which
    moves, turns and grows with the vectors; one that needs the loss of root data, the squared
    distance of a step from this gradient.

    These laws have exceptions:

    - "permutation": the order of the workers does not matter.
    - "translation", "rotation", "scale": the result moves, turns and grows with the vectors.
    - "unanimity": if all vectors are equal, they are the result.
    - "robustness": with f Byzantine vectors of any size, the result is no farther from the honest
      mean than four times the farthest honest vector.

    >>> from byzantium import Median
    >>> check_rule(Median(), breaks=["rotation"])
    """
    broken = _check_names(breaks)
    X = torch.randn(n, D, generator=_generator(1), dtype=torch.float64)
    plain = _call(rule, X)
    _check_form(rule, X)
    _check_state(rule, X)
    _check_rejection(rule, X)
    _check_report(rule, X)
    if not _is_random(rule) and "permutation" not in broken:
        permuted = _call(rule, X[torch.randperm(n, generator=_generator(2))])
        _assert_close(permuted, plain, f"{rule!r} breaks 'permutation'")
    _check_laws(rule, partial(_call, rule), broken, X, plain)
    if "robustness" not in broken:
        _check_robustness(rule, X)


def check_mixing(mixing: Mixing, *, n: int = N, breaks: Iterable[str] = ()) -> None:
    """Assert that a mixing obeys the laws of mixings.

    - `n`: how many vectors it is tried on.
    - `breaks`: the names of the laws that it breaks by nature, as in `check_rule`; "translation",
      "rotation", "scale" and "unanimity" apply to mixings.

    Every mixing must give as many vectors as `rows` says; leave the input unchanged; give equal
    results for equal generators; and compose with rules.

    >>> from byzantium import Clipping
    >>> check_mixing(Clipping(radius=1), breaks=["translation", "scale", "unanimity"])
    """
    from byzantium.rules import Mean

    broken = _check_names(breaks)
    X = torch.randn(n, D, generator=_generator(1), dtype=torch.float64)
    before = X.clone()
    mixed = mixing(X, _generator())
    assert mixed.shape == (mixing.rows(n), D), (
        f"{mixing!r}: rows({n}) is {mixing.rows(n)}, but the mixed vectors have the shape "
        f"{tuple(mixed.shape)}"
    )
    assert torch.equal(X, before), f"{mixing!r} changes its input"
    assert torch.equal(mixed, mixing(X, _generator())), (
        f"{mixing!r} gives different results for equal generators"
    )
    _check_laws(mixing, lambda changed: mixing(changed, _generator()), broken, X, mixed)
    composed = (mixing >> Mean()).explain(X, _generator())
    sentence = f"{mixing!r} >> Mean() is not the mean of the mixed vectors"
    _assert_close(composed.aggregate, mixed.mean(dim=0), sentence)
    sentence = f"{mixing!r}: the mixing in the report is not what it does"
    _assert_close(composed.mixing.to(X) @ X, mixed, sentence)


def check_attack(attack: Attack, *, honest: int = N, attackers: int = 3) -> None:
    """Assert that an attack obeys the laws of attacks.

    - `honest`, `attackers`: how many honest workers and attackers it is tried with.

    Every attack must send one vector for each attacker, of the dtype of the honest ones; leave its
    input unchanged; send equal vectors for equal generators; and continue from its `state_dict`.

    >>> from byzantium import BitFlip
    >>> check_attack(BitFlip())
    """
    from byzantium.rules import Krum

    X = torch.randn(honest, D, generator=_generator(1))
    own = torch.randn(attackers, D, generator=_generator(2))
    rule = Krum(f=attackers)

    def call(attack: Attack, seed: int = 0) -> Tensor:
        return attack(
            X,
            own,
            rule=rule,
            epoch=2,
            generator=_generator(seed),
            root=X.mean(dim=0),
            model=X[0],
            step_loss=lambda aggregate: float(aggregate.norm()),
            last_aggregate=X[1],
            node=_node(X, len(own)),
        )

    before = X.clone(), own.clone()
    first, again = copy.deepcopy(attack), copy.deepcopy(attack)
    vectors = call(first)
    assert vectors.shape == own.shape, f"{attack!r} sends {tuple(vectors.shape)}"
    assert vectors.dtype == X.dtype, f"{attack!r} sends {vectors.dtype} for {X.dtype}"
    assert torch.equal(X, before[0]), f"{attack!r} changes the honest vectors"
    assert torch.equal(own, before[1]), f"{attack!r} changes the attackers' own vectors"
    assert _same(vectors, call(again)), f"{attack!r} sends different vectors for equal generators"
    images, labels = torch.randn(10, 1, 8, 8, generator=_generator(3)), torch.arange(10)
    shown = images.clone()
    poisoned = attack.inputs(images, labels)
    assert torch.equal(images, shown), f"{attack!r} changes the inputs that it is given"
    assert (poisoned.shape, poisoned.dtype) == (images.shape, images.dtype), (
        f"{attack!r} changes the shape or the dtype of inputs"
    )
    assert torch.equal(poisoned, attack.inputs(images, labels)), (
        f"{attack!r} gives different inputs for equal batches"
    )
    assert attack.labels(labels, 10).shape == labels.shape, (
        f"{attack!r} changes the number of labels"
    )
    resumed = copy.deepcopy(attack)
    resumed.load_state_dict(first.state_dict())
    assert _same(call(first, 5), call(resumed, 5)), (
        f"{attack!r} does not continue from its state_dict"
    )


# -- parts of the checks ----------------------------------------------------------------------


def _check_laws(
    checked: Aggregator | Mixing,
    call: Callable[[Tensor], Tensor],
    broken: Collection[str],
    X: Tensor,
    plain: Tensor,
) -> None:
    """Assert the laws of rules and mixings alike; `plain` is what comes of X itself."""
    rotation = torch.linalg.qr(torch.randn(D, D, generator=_generator(3), dtype=X.dtype))[0]
    laws = {
        "translation": (X + 3, plain + 3),
        "rotation": (X @ rotation, plain @ rotation),
        "scale": (4 * X, 4 * plain),
        "unanimity": (X[:1].expand(X.shape), X[0].expand(plain.shape)),
    }
    for name, (changed, expected) in laws.items():
        if name not in broken:
            _assert_close(call(changed), expected, f"{checked!r} breaks {name!r}")


def _check_form(rule: Aggregator, X: Tensor) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        vectors = X.to(dtype)
        before = vectors.clone()
        result = _call(rule, vectors)
        assert result.shape == (D,), f"{rule!r} gives the shape {tuple(result.shape)}"
        assert result.dtype == dtype, f"{rule!r} gives {result.dtype} for {dtype}"
        assert result.isfinite().all(), f"{rule!r} gives numbers that are not finite"
        assert torch.equal(vectors, before), f"{rule!r} changes its input"


def _check_state(rule: Aggregator, X: Tensor) -> None:
    first, again = _copy(rule), _copy(rule)
    root, later = _root(rule, X), _root(rule, X + 1)
    assert torch.equal(first(X, _generator(), root=root), again(X, _generator(), root=root)), (
        f"{rule!r} gives different results for equal generators"
    )
    resumed = _copy(rule)
    resumed.load_state_dict(first.state_dict())
    expected = first(X + 1, _generator(), root=later)
    assert torch.equal(resumed(X + 1, _generator(), root=later), expected), (
        f"{rule!r} does not continue from its state_dict"
    )
    assert torch.equal(again(X + 1, _generator(), root=later), expected), (
        f"copies of {rule!r} share state"
    )
    first.reset()
    assert torch.equal(first(X, _generator(), root=root), _call(rule, X)), (
        f"{rule!r} remembers something after reset()"
    )


def _check_rejection(rule: Aggregator, X: Tensor) -> None:
    root, X = _root(rule, X), X.clone()
    X[3, 5] = math.nan
    if _smallest_f(rule, default=len(X) // 2) == 0:
        try:
            _call(rule, X, root)
        except ByzantiumError:
            return
        raise AssertionError(f"{rule!r} accepts NaN with f = 0")
    report = _copy(rule).explain(X, _generator(), root=root)
    assert report.rejected == (3,), f"{rule!r} rejects {report.rejected} where row 3 is NaN"
    assert report.aggregate.isfinite().all(), f"{rule!r} lets NaN through"


def _check_report(rule: Aggregator, X: Tensor) -> None:
    report = _copy(rule).explain(X, _generator(), root=_root(rule, X))
    _assert_close(report.aggregate, _call(rule, X), f"{rule!r}: explain and a call disagree")
    if report.weights.isfinite().all():
        total = float(report.weights.sum()) + report.remainder
        assert abs(total - 1) < CLOSE, f"{rule!r}: the weights in its report sum to {total}"


def _check_robustness(rule: Aggregator, X: Tensor) -> None:
    f = _smallest_f(rule, default=1)
    honest, vectors, root = X[f:], X.clone(), _root(rule, X)
    spread = float((honest - honest.mean(dim=0)).norm(dim=1).max())
    for size in (10.0, 1e4, 1e12):
        vectors[:f] = size
        distance = float((_call(rule, vectors, root) - honest.mean(dim=0)).norm())
        assert distance <= 4 * spread, (
            f"{rule!r} breaks 'robustness': {f} vectors of size {size:g} move it {distance:g} away "
            f"from the honest mean, and no honest vector is farther from it than {spread:g}"
        )


def _smallest_f(rule: Aggregator, default: int) -> int:
    return min((stage.bad for stage in rule.stages if stage.bad is not None), default=default)


def _is_random(rule: Aggregator) -> bool:
    X = torch.randn(N, D, generator=_generator(1), dtype=torch.float64)
    first, second = (_copy(rule)(X, _generator(seed), root=_root(rule, X)) for seed in (1, 2))
    return not torch.equal(first, second)


def _check_names(breaks: Iterable[str]) -> frozenset[str]:
    broken = frozenset(breaks)
    if unknown := sorted(broken - set(LAWS)):
        raise ByzantiumError(f"there is no law {unknown[0]!r}; there are {', '.join(LAWS)}")
    return broken


def _call(rule: Aggregator, X: Tensor, root: Any = None) -> Tensor:
    """The result of a fresh copy of a rule; its root data are by default those of these rows."""
    return _copy(rule)(X, _generator(), root=_root(rule, X) if root is None else root)


def _root(rule: Aggregator, X: Tensor) -> Any:
    """Root data for rules that need them: near the mean, they move, turn and grow with X."""
    rows = X.double()
    mean = rows.mean(dim=0)
    gradient = 0.9 * mean + 0.1 * rows[(rows - mean).norm(dim=1).argmax()]
    return rule.trusted(gradient, lambda step: float((step - gradient).square().sum()))


def _node(X: Tensor, q: int) -> Node:
    """A node of a complete graph, with the first vector, and q attackers among its neighbors."""
    h = len(X)
    cut = [1.0, *[-1 / (h - 1)] * (h - 1)] if h > 1 else [0.0]
    return Node(0, [1 / (h + q)] * (h + q - 1), X, cut)


def _copy(rule: Aggregator) -> Aggregator:
    return copy.deepcopy(rule)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.nan_to_num(), b.nan_to_num())


def _assert_close(actual: Tensor, expected: Tensor, sentence: str) -> None:
    error = float((actual - expected).abs().max() / (1 + expected.abs().max()))
    assert error < CLOSE, f"{sentence}: off by {error:g}"
