"""Vectors from anywhere: every rule gives the same result from every kind of source."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import inputs
import members
import numpy as np
import pytest
import torch
from agreement import agree, seeded
from members import EVERYTHING, N
from torch import Tensor

import byzantium as bz
from byzantium._kernels import torch_passes as plain
from byzantium.vectors import points
from byzantium.vectors import source as sources
from byzantium.vectors.source import Matrix, Source, Vectors, as_source
from byzantium.vectors.team import Team

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

pytestmark = pytest.mark.usefixtures("two_threads")  # which gather the vectors


# -- the same vectors, in other forms -----------------------------------------------------------


def cut(row: Tensor) -> list[Tensor]:
    """A vector as arrays of different shapes, some of them empty or of no dimension."""
    d = len(row)
    third = d // 3
    return [
        row[: third - third % 2].reshape(-1, 2),
        row[third - third % 2 : d - 1],
        row[d:].reshape(0, 4),
        row[d - 1 :].reshape(()) if d else row[d:],
    ]


def joined(arrays: Any) -> Tensor:
    values = arrays.values() if isinstance(arrays, dict) else arrays
    return torch.cat([torch.as_tensor(array).reshape(-1) for array in values])


FORMS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "list of vectors": (list, lambda result: result),
    "state dicts": (
        lambda X: [dict(enumerate(cut(row))) for row in X],
        joined,
    ),
    "lists of arrays": (lambda X: [cut(row) for row in X], joined),
    "NumPy matrix": (lambda X: X.numpy(), torch.as_tensor),
    "NumPy state dicts": (
        lambda X: [{str(k): a.numpy() for k, a in enumerate(cut(row))} for row in X],
        joined,
    ),
    "transposed in memory": (lambda X: list(X.T.contiguous().T), lambda result: result),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_the_form_of_the_vectors_does_not_matter(member: members.Rule, form: str) -> None:
    make, back = FORMS[form]
    for d in (1, 7, 641):
        X = inputs.heterogeneous(N, d)
        expected = member.fresh()(X, seeded())
        agree(member, back(member.fresh()(make(X), seeded())), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("member", members.RULES, ids=members.name)
def test_every_dtype_comes_out_as_it_went_in(member: members.Rule, dtype: torch.dtype) -> None:
    X = inputs.heterogeneous(N, 301).to(dtype)
    result = member.fresh()([dict(enumerate(cut(row))) for row in X], seeded())
    assert all(array.dtype == dtype for array in result.values())
    assert [array.shape for array in result.values()] == [array.shape for array in cut(X[0])]
    agree(member, joined(result), member.fresh()(X, seeded()))


@pytest.mark.parametrize("width", [1 << 10, 1 << 14])
def test_several_blocks_are_one_vector(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X = inputs.heterogeneous(N, 2003)
    expected = [member.fresh()(X, seeded()) for member in members.RULES]
    monkeypatch.setattr(plain, "BLOCK_BYTES", width)
    for member, theirs in zip(members.RULES, expected, strict=True):
        ours = member.fresh()([cut(row) for row in X], seeded())
        assert torch.allclose(joined(ours), theirs, rtol=1e-12, atol=1e-12)


class Counting(Team):
    """A team of one that counts what it would broadcast."""

    decisions = 0

    def broadcast(self, numbers: sources.Array) -> sources.Array:
        self.decisions += 1
        return numbers


class Shards(Source):
    """A matrix cut into columns, as on several machines, but one after the other in one process.

    All of them are asked for each sum and each vector, so that every machine has the whole.
    """

    def __init__(self, X: Tensor, cuts: list[int]) -> None:
        self.parts = [
            Matrix(X[:, a:b]) for a, b in zip([0, *cuts], [*cuts, X.shape[1]], strict=True)
        ]
        self.n, self.d = X.shape
        self.dtype, self.device, self.unreadable = X.dtype, X.device, {}
        self.team: Counting = Counting()

    def block(self, columns: slice, rows: sources.Rows) -> Tensor:
        raise AssertionError("pieces are all there is")

    def pieces(self, rows: sources.Rows) -> Iterator[tuple[slice, Tensor, sources.Rows]]:
        start = 0
        for part in self.parts:
            for columns, matrix, which in part.pieces(rows):
                yield slice(start + columns.start, start + columns.stop), matrix, which
            start += part.d

    def result(self, vector: Tensor, rows: sources.Rows) -> Tensor:
        return vector.to(self.dtype)


@pytest.mark.parametrize("member", EVERYTHING, ids=members.name)
def test_columns_on_several_machines_are_one_vector(member: members.Rule) -> None:
    X = inputs.heterogeneous(N, 90)
    source = Shards(X, [1, 1, 40])
    agree(member, member.fresh()(source, seeded()), member.fresh()(X, seeded()))
    mixings = sum(isinstance(stage, bz.Mixing) for stage in member.rule.stages)
    assert source.team.decisions >= mixings


# -- what goes in comes out ---------------------------------------------------------------------


def state(value: float, steps: int = 3) -> OrderedDict[str, Tensor]:
    return OrderedDict(
        weight=torch.full((2, 3), value),
        bias=torch.tensor(value, dtype=torch.float64),
        steps=torch.tensor(steps),
        frozen=torch.tensor([True, value > 1]),
    )


def test_a_state_dict_comes_back_as_one() -> None:
    result = bz.Median()([state(1.0, 3), state(2.0, 5), state(4.0, 1000)])
    assert isinstance(result, OrderedDict)
    assert list(result) == ["weight", "bias", "steps", "frozen"]
    assert torch.equal(result["weight"], torch.full((2, 3), 2.0))
    assert result["bias"].dtype == torch.float64
    assert result["bias"].shape == ()
    assert result["steps"].dtype == torch.int64
    assert int(result["steps"]) == 5
    assert result["frozen"].tolist() == [True, True]


def test_a_model_can_load_what_comes_out() -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(5)]
    aggregate = bz.GeometricMedian()([model.state_dict() for model in models])
    models[0].load_state_dict(aggregate)


def test_numpy_goes_in_and_comes_out() -> None:
    X = np.arange(12, dtype=np.float32).reshape(4, 3)
    X.flags.writeable = False
    result = bz.Mean()(X[::-1])
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float32
    assert result.tolist() == [4.5, 5.5, 6.5]
    pair = bz.Mean()([(np.float64(1), X[0]), (np.float64(3), X[1])])
    assert isinstance(pair, tuple)
    assert pair[0].shape == ()
    assert float(pair[0]) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 9], 2),
        ([1, 2], 1),
        ([-3, -2], -3),
        ([2**63 - 1, 2**63 - 3], 2**63 - 2),
        ([-(2**63), 1], -(2**62)),
    ],
)
def test_counters_become_their_median_rounded_down(values: list[int], expected: int) -> None:
    rows = [{"x": torch.zeros(1), "count": torch.tensor(value)} for value in values]
    assert int(bz.Mean()(rows)["count"]) == expected


def test_counters_have_no_part_in_distances() -> None:
    rows = [{"x": torch.tensor([float(k)]), "count": torch.tensor(10**k)} for k in range(7)]
    report = bz.Krum(f=1).explain(rows)
    alone = bz.Krum(f=1).explain(torch.arange(7.0)[:, None])
    assert torch.equal(report.weights, alone.weights)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_base_is_subtracted_first_and_added_again(dtype: torch.dtype) -> None:
    """A rule with a length of its own sees the updates, not the models."""
    base = 100 * inputs.gaussian(1, 50)[0]
    deltas = inputs.gaussian(9, 50, seed=1)
    rule = bz.CenteredClipping(radius=2.0)
    expected = base + bz.CenteredClipping(radius=2.0)(deltas)
    models = (base + deltas).to(dtype)
    atol = 400 * torch.finfo(dtype).eps
    result = rule(models, base=base.to(dtype))
    assert result.dtype == dtype
    assert torch.allclose(result.double(), expected, rtol=0, atol=atol)
    rule.reset()
    named = rule([{"w": row} for row in models], base={"w": base.to(dtype)})["w"]
    assert torch.allclose(named.double(), expected, rtol=0, atol=atol)


# -- rows that do not fit -----------------------------------------------------------------------

GOOD = {"w": np.zeros((2, 2), np.float32), "n": np.array(1)}
ODD: dict[str, tuple[Any, str]] = {
    "a key is missing": ({"w": GOOD["w"]}, "lacks the entry 'n'"),
    "a key too many": ({**GOOD, "x": np.zeros(1)}, "has an entry 'x' that the others lack"),
    "a shape": ({**GOOD, "w": np.zeros((4,), np.float32)}, "has the shape (4,) instead of (2, 2)"),
    "broadcastable": ({**GOOD, "w": np.zeros((1, 2), np.float32)}, "has the shape (1, 2) instead"),
    "a dtype": ({**GOOD, "w": np.zeros((2, 2))}, "has the dtype float64 instead of float32"),
    "complex": ({**GOOD, "w": np.zeros((2, 2), complex)}, "holds numbers of the kind complex128"),
    "objects": ({**GOOD, "w": np.array([[None, 1], [2, 3]])}, "holds numbers of the kind object"),
    "text": ({**GOOD, "w": "weights"}, "holds a str at 'w'"),
    "nothing": (None, "is a NoneType"),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_row_that_does_not_fit_is_refused_by_name(odd: str) -> None:
    row, reason = ODD[odd]
    with pytest.raises(ValueError, match="vector 3") as error:
        bz.Mean()([GOOD, GOOD, GOOD, row])
    assert reason in str(error.value)


@pytest.mark.parametrize("member", members.RULES, ids=members.name)
@pytest.mark.parametrize("odd", ODD)
def test_or_it_is_rejected_and_counts_as_byzantine(member: members.Rule, odd: str) -> None:
    X = inputs.heterogeneous(N, 4).float()
    rows: list[Any] = [{"w": x.reshape(2, 2).numpy(), "n": np.array(1)} for x in X]
    rows[0], reason = ODD[odd]
    report = member.fresh().explain(rows, strict=False)
    assert report.rejected == (0,)
    assert reason in report.reasons[0]
    poisoned = X.clone()
    poisoned[0] = torch.nan
    expected = member.fresh()(poisoned)
    assert np.allclose(report.aggregate["w"].reshape(-1), expected, atol=1e-5)


def test_what_most_rows_look_like_is_right_unless_it_is_said() -> None:
    odd = {"w": torch.ones(2), "v": torch.ones(1)}
    rows = [odd, {"w": torch.zeros(2)}, {"w": torch.zeros(2)}]
    assert bz.Median().explain(rows, strict=False).rejected == (0,)
    report = bz.Median().explain(Vectors([odd, odd, rows[1]], like=odd, strict=False))
    assert report.rejected == (2,)


def test_too_many_that_do_not_fit_are_too_many() -> None:
    rows = [GOOD, GOOD, GOOD, GOOD, {"w": GOOD["w"]}, None]
    with pytest.raises(ValueError, match=r"but 2 are unusable: worker 4 \(lacks the entry 'n'\)"):
        bz.TrimmedMean(f=1)(rows, strict=False)


def test_without_floating_point_numbers_there_is_nothing_to_aggregate() -> None:
    with pytest.raises(TypeError, match="updates must hold floating-point numbers, got none"):
        bz.Mean()([{"n": torch.tensor(1)}])


def test_a_base_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="needs as many numbers as each vector, 3, got 2"):
        bz.Mean()(torch.ones(4, 3), base=torch.ones(2))


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        ({"v": torch.ones(3)}, "the base lacks the entry 'w'"),
        ({"w": torch.ones(4)}, r"the base has the shape \(4,\) instead of \(3,\) at 'w'"),
        ({"w": torch.tensor([0.0, torch.nan, 1.0])}, "the base holds numbers that are not finite"),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_wrong_base_is_not_blamed_on_a_worker(
    base: dict[str, Tensor], sentence: str, strict: bool
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        bz.Mean()([{"w": torch.ones(3)}] * 4, base=base, strict=strict)


def test_a_source_is_taken_as_it_is() -> None:
    source = Matrix(torch.ones(3, 2))
    assert as_source(source) is source
    assert points.row_norms(source).tolist() == pytest.approx([2**0.5] * 3)


class Counted(Matrix):
    readings = 0

    def pieces(self, rows: sources.Rows) -> Iterator[tuple[slice, Tensor, sources.Rows]]:
        self.readings += 1
        return super().pieces(rows)


@pytest.mark.parametrize(
    "rule", [bz.Mean(), bz.Median(), bz.TrimmedMean(f=2), bz.MeaMed(f=2)], ids=repr
)
def test_rules_by_coordinate_read_the_vectors_once_and_check_them_meanwhile(
    rule: bz.Aggregator,
) -> None:
    X = inputs.gaussian(N, 100)
    source = Counted(X)
    result = rule(source)
    assert source.readings == 1
    assert torch.equal(result, rule.explain(X).aggregate)
    X[3, 50] = torch.nan
    assert torch.equal(rule(X), rule.explain(X).aggregate)
