"""Bad input gets one clear sentence, and nothing is repaired silently."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable

import inputs
import members
import pytest
import torch
from members import EVERYTHING, MIXINGS, N

import byzantium as bz
from byzantium.rules import subset
from byzantium.vectors.source import ROW

BUILDING: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: bz.Krum(f=-1), ValueError, "Krum needs f >= 0, got f=-1"),
    (lambda: bz.Krum(f=True), TypeError, "Krum needs a whole number for f, got f=True"),
    (lambda: bz.Krum(f=1.5), TypeError, "Krum needs a whole number for f, got f=1.5"),  # type: ignore[arg-type]
    (lambda: bz.Krum(f=1, m=0), ValueError, "Krum needs m >= 1, got m=0"),
    (lambda: bz.Krum(f=1, power=0), ValueError, "Krum needs 0 < power <= 1000, got power=0.0"),
    (
        lambda: bz.Krum(f=1, power=1001),
        ValueError,
        "Krum needs 0 < power <= 1000, got power=1001.0",
    ),
    (lambda: bz.Krum(f=1, power=math.inf), ValueError, "Krum needs a finite power, got power=inf"),
    (lambda: bz.TrimmedMean(f=-2), ValueError, "TrimmedMean needs f >= 0, got f=-2"),
    (lambda: bz.MeaMed(f=-2), ValueError, "MeaMed needs f >= 0, got f=-2"),
    (lambda: bz.Bulyan(f=-2), ValueError, "Bulyan needs f >= 0, got f=-2"),
    (lambda: bz.MinimumDiameter(f=-2), ValueError, "MinimumDiameter needs f >= 0, got f=-2"),
    (lambda: bz.SpectralFilter(f=-2), ValueError, "SpectralFilter needs f >= 0, got f=-2"),
    (lambda: bz.NearestNeighborMixing(f=-2), ValueError, "needs f >= 0, got f=-2"),
    (lambda: bz.AdaptiveClipping(f=False), TypeError, "needs a whole number for f, got f=False"),
    (lambda: bz.Bucketing(s=0), ValueError, "Bucketing needs s >= 1, got s=0"),
    (lambda: bz.Resampling(s=0), ValueError, "Resampling needs s >= 1, got s=0"),
    (lambda: bz.CenteredClipping(radius=0), ValueError, "needs radius > 0, got radius=0.0"),
    (lambda: bz.CenteredClipping(radius=-1), ValueError, "needs radius > 0, got radius=-1.0"),
    (lambda: bz.CenteredClipping(radius=math.nan), ValueError, "radius > 0, got radius=nan"),
    (lambda: bz.CenteredClipping(radius="1"), TypeError, "a number for radius, got radius='1'"),  # type: ignore[arg-type]
    (lambda: bz.CenteredClipping(radius=1, steps=0), ValueError, "needs steps >= 1, got steps=0"),
    (lambda: bz.GeometricMedian(steps=0), ValueError, "needs steps >= 1, got steps=0"),
    (lambda: bz.GeometricMedian(smoothing=-1), ValueError, "needs smoothing >= 0, got"),
    (
        lambda: bz.GeometricMedian(start="mean"),  # type: ignore[arg-type]
        ValueError,
        "GeometricMedian needs 'medoid' or 'zero' for start, got start='mean'",
    ),
    (
        lambda: bz.Krum(f=1) >> bz.Mean(),
        TypeError,
        "Krum(f=1) is a rule and ends a pipeline; mixings come before it",
    ),
    (lambda: bz.Krum(), TypeError, "Krum needs f, how many vectors may be bad, at least 0"),  # type: ignore[call-arg]
    (lambda: bz.Bucketing(), TypeError, "Bucketing needs s, how many vectors a bucket has, at"),  # type: ignore[call-arg]
    (lambda: bz.CenteredClipping(steps=1), TypeError, "CenteredClipping needs radius, the length"),  # type: ignore[call-arg]
    (lambda: bz.Tuned(), TypeError, "Tuned needs attack, the attack to tune"),  # type: ignore[call-arg]
    (lambda: bz.Krum(5, f=5), TypeError, "Krum is given the parameter f twice"),  # type: ignore[misc]
    (lambda: bz.Krum(1, 2, 3, 4), TypeError, "Krum takes at most 3 parameters, got 4"),  # type: ignore[call-arg]
    (
        lambda: bz.Krum(f=1, powr=2),  # type: ignore[call-arg]
        TypeError,
        "Krum has no parameter 'powr'; did you mean 'power'?",
    ),
    (
        lambda: bz.Median(torch.ones(3, 2)),
        TypeError,
        "Median takes no parameters, got 1: write Median() and call the result",
    ),
    (
        lambda: bz.Bucketing(s=2) >> bz.Median,
        TypeError,
        ">> joins objects, but Median is a class: write Median()",
    ),
    (
        lambda: bz.Bucketing(s=2) >> bz.Krum,
        TypeError,
        ">> joins objects, but Krum is a class: write Krum(f=...)",
    ),
    (
        lambda: bz.Bucketing >> bz.Median(),
        TypeError,
        ">> joins objects, but Bucketing is a class: write Bucketing(s=...)",
    ),
    (lambda: bz.NearestNeighborMixing >> bz.Median, TypeError, "NearestNeighborMixing is a class"),
    (
        lambda: bz.Tuned(bz.InnerProduct),  # type: ignore[arg-type]
        TypeError,
        "Tuned needs an Attack for attack, got the class InnerProduct: write InnerProduct(...)",
    ),
    (
        lambda: bz.guarantees.guarantee(bz.Median, 10, 2),  # type: ignore[arg-type]
        TypeError,
        "guarantee needs an Aggregator for rule, got the class Median: write Median(...)",
    ),
    (
        lambda: bz.guarantees.certify(bz.Median, 10, 2),  # type: ignore[arg-type]
        TypeError,
        "an attack needs an Aggregator for rule, got the class Median: write Median(...)",
    ),
    (
        lambda: bz.learning.Server(torch.nn.Linear(1, 1), bz.Median, None),  # type: ignore[arg-type]
        TypeError,
        "Server needs an Aggregator for rule, got the class Median: write Median(...)",
    ),
]

CALLING: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: bz.Mean()("abc"),
        TypeError,
        "updates must be one matrix (n, d), or n vectors, mappings or lists of arrays, got a str",
    ),
    (lambda: bz.Mean()(torch.ones(3)), ValueError, "one row per worker, got (3,)"),
    (lambda: bz.Mean()(torch.ones(3, 2, 2)), ValueError, "one row per worker, got (3, 2, 2)"),
    (lambda: bz.Mean()(torch.ones(3, 2).int()), TypeError, "or float64, got torch.int32"),
    (lambda: bz.Mean()(torch.ones(3, 2).bool()), TypeError, "or float64, got torch.bool"),
    (lambda: bz.Mean()(torch.ones(3, 2) * 1j), TypeError, "or float64, got torch.complex64"),
    (
        lambda: bz.Mean()(torch.ones(3, 2).to_sparse()),
        TypeError,
        "updates must be a dense tensor, got a tensor of layout torch.sparse_coo",
    ),
    (lambda: bz.Mean()(torch.ones(0, 2)), ValueError, "at least one vector, got n = 0"),
    (lambda: bz.Mean()([1.0, 2.0]), ValueError, "one row per worker, got 2 numbers"),
    (
        lambda: bz.Mean()([[1.0, 2.0], [3.0]]),
        ValueError,
        "vector 1 has the shape (1,) instead of (2,)",
    ),
    (lambda: bz.Mean()(["ab", "cd"]), TypeError, f"vector 0 is a str, but must be {ROW}"),
    (lambda: bz.Mean()([torch.ones(2), None]), TypeError, "vector 1 is a NoneType, but must be an"),
    (lambda: bz.Mean()([torch.nn.Linear(1, 1)]), TypeError, "vector 0 is a Linear, but must be an"),
    (
        lambda: bz.Mean()([torch.nn.Linear(1, 1).parameters()] * 3),
        TypeError,
        "vector 0 is a generator, but must be an array, a list of numbers or of arrays, or a map",
    ),
    (lambda: bz.Mean()([([1.0], [2.0])]), TypeError, "vector 0 holds a list at 0, but must be"),
    (lambda: bz.Mean()([torch.ones(1), bz.Mean]), TypeError, "vector 1 is the class Mean, but"),
    (
        lambda: bz.Krum(f=5)(torch.ones(9, 2)),
        ValueError,
        "Krum(f=5) needs at least 2f + 3 = 13 vectors, got 9",
    ),
    (
        lambda: (bz.Bucketing(s=3) >> bz.Krum(f=5))(torch.ones(25, 2)),
        ValueError,
        "Krum(f=5) needs at least 2f + 3 = 13 vectors, got 9 (Bucketing(s=3) left 9 of 25)",
    ),
    (
        lambda: bz.Krum(f=1, m=5)(torch.ones(5, 2)),
        ValueError,
        "Krum(f=1, m=5) needs m <= n - f = 4, got m=5",
    ),
    (
        lambda: bz.Bulyan(f=2)(torch.ones(10, 2)),
        ValueError,
        "Bulyan(f=2) needs at least 4f + 3 = 11 vectors, got 10",
    ),
    (
        lambda: bz.TrimmedMean(f=2)(torch.ones(4, 2)),
        ValueError,
        "TrimmedMean(f=2) needs at least 2f + 1 = 5 vectors, got 4",
    ),
    (
        lambda: bz.Bucketing(s=6)(torch.ones(5, 2)),
        ValueError,
        "Bucketing(s=6) needs at least s = 6 vectors, got 5",
    ),
    (
        lambda: bz.Median()(torch.ones(4, 2), 7),  # type: ignore[call-overload]
        TypeError,
        "generator must be a torch.Generator or None, got an int",
    ),
]


@pytest.mark.parametrize(
    ("attempt", "kind", "sentence"),
    BUILDING + CALLING,
    ids=lambda x: x[:60] if isinstance(x, str) else None,
)
def test_the_sentence(attempt: Callable[[], object], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=re.escape(sentence)) as error:
        attempt()
    assert "\n" not in str(error.value)


NEAR = {
    "Krumm": "Krum",
    "KRUM": "Krum",
    "Trimmedmean": "TrimmedMean",
    "geometric_median": "GeometricMedian",
    "ByzantineError": "ByzantiumError",
}


@pytest.mark.parametrize("name", NEAR)
def test_an_unknown_name_gets_the_nearest_one(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(bz, name)
    expected = f"module 'byzantium' has no attribute '{name}'; did you mean '{NEAR[name]}'?"
    shown = "".join(traceback.format_exception_only(caught.value))
    assert shown == f"AttributeError: {expected}\n"  # to which Python adds no second hint
    assert not hasattr(bz, name)
    with pytest.raises(AttributeError, match=r"'byzantium.attacks' has no attribute 'Mimik'; did"):
        _ = bz.attacks.Mimik  # type: ignore[attr-defined]


def test_a_name_that_is_like_no_other_gets_no_hint() -> None:
    with pytest.raises(AttributeError, match=r"^module 'byzantium' has no attribute 'qqqqq'$"):
        _ = bz.qqqqq  # type: ignore[attr-defined]


def test_what_a_mistake_in_a_class_says_is_not_changed() -> None:
    class Broken(bz.Attack):
        def __init__(self) -> None:
            len(3)  # type: ignore[arg-type]

        def vectors(self, scene: bz.Scene) -> torch.Tensor:
            return scene.honest

    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        Broken()
    with pytest.raises(TypeError, match="Can't instantiate abstract class Mixing"):
        bz.Mixing()  # type: ignore[abstract]


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_too_few_vectors_never_give_an_answer(member: members.Rule) -> None:
    """At each size a member either works or names the bound; it never breaks in between."""
    works = []
    for n in range(1, N + 1):
        X = inputs.gaussian(n)
        try:
            assert member.fresh()(X).isfinite().all()
        except bz.ByzantiumError as error:
            if not re.search(r"needs (at least|m <=)", str(error)):
                raise
            works.append(False)
        else:
            works.append(True)
    assert works == sorted(works)  # first it refuses, from some size on it works
    assert works[-1]


@pytest.mark.parametrize("mix", MIXINGS, ids=members.name)
def test_only_stages_compose(mix: members.Mix) -> None:
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for >>"):
        mix.mixing >> 3  # type: ignore[operator]


def test_a_centre_of_another_dimension_is_refused() -> None:
    rule = bz.CenteredClipping(radius=1.0)
    rule(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"center of dimension 4, got vectors of dimension 5"):
        rule(torch.ones(3, 5))
    rule.reset()
    rule(torch.ones(3, 5))


def test_beyond_its_budget_the_exact_search_says_so_and_goes_on_with_the_best_set() -> None:
    """Honest rows that tie, and attackers between them: nobody can stop a rule by being hard."""
    X = torch.zeros(50, 40, dtype=torch.float64)
    X[torch.arange(38), torch.arange(38) // 2] = 1
    X[38:] = 0.1 * inputs.gaussian(12, 40)
    reports = [bz.MinimumDiameter(f=12).explain(X) for _ in range(2)]
    assert torch.equal(reports[0].weights, reports[1].weights)
    assert reports[0].notes[0].startswith("MinimumDiameter(f=12) found no proof within its budget")
    kept = X[reports[0].weights > 0]
    assert len(kept) == 38
    around = torch.stack([torch.cdist(X, X)[i].sort().values[37] for i in range(50)])
    assert torch.pdist(kept).max() <= 2 * around.min()


def test_the_set_of_smallest_diameter_is_never_worse_than_the_nearest_rows_of_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subset, "BUDGET", 0)
    for seed in range(20):
        X = inputs.gaussian(15, 3, seed)
        kept = X[bz.MinimumDiameter(f=5).explain(X).weights > 0]
        nearest = [X[torch.cdist(X, X)[i].argsort()[:10]] for i in range(15)]
        assert torch.pdist(kept).max() <= min(torch.pdist(rows).max() for rows in nearest)
