"""One row of a stranger stops nobody, and chooses nothing: not the form, nor the order of keys."""

from __future__ import annotations

import functools
import io
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import byzantium as bz
from byzantium.vectors import as_source

N, PLACES = 7, (0, 3, 6)
RULES = [bz.Mean(), bz.Krum(f=1), bz.Bucketing(s=1) >> bz.GeometricMedian()]

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch about its nested and sparse tensors


def numbers(k: int) -> Tensor:
    """What honest worker k sends, (3, 2)."""
    return torch.randn(3, 2, generator=torch.Generator().manual_seed(k))


def state(k: int) -> dict[str, Tensor]:
    return {"w": numbers(k), "b": numbers(k)[:, 0].double(), "steps": torch.tensor(k)}


def of_numpy(row: Mapping[str, Tensor]) -> dict[str, Any]:
    return {key: value.numpy() for key, value in row.items()}


class Own(dict[str, Any]):
    """A kind of dictionary that cannot be made without arguments."""

    def __init__(self, name: str, entries: Mapping[str, Any]) -> None:
        super().__init__(entries)


# What honest workers send, and the type in which the result comes.
FORMS: dict[str, tuple[Callable[[int], Any], type]] = {
    "dict": (state, dict),
    "OrderedDict": (lambda k: OrderedDict(state(k)), OrderedDict),
    "defaultdict": (lambda k: defaultdict(int, state(k)), defaultdict),
    "another dict": (lambda k: Own("mine", state(k)), dict),
    "proxy": (lambda k: MappingProxyType(state(k)), dict),
    "UserDict": (lambda k: UserDict(state(k)), dict),
    "dict of NumPy": (lambda k: of_numpy(state(k)), dict),
    "list of tensors": (lambda k: list(state(k).values()), list),
    "tuple of NumPy": (lambda k: tuple(of_numpy(state(k)).values()), tuple),
    "tensor": (numbers, Tensor),
    "NumPy": (lambda k: numbers(k).numpy(), np.ndarray),
    "list of floats": (lambda k: numbers(k).reshape(-1).tolist(), list),
    "tuple of floats": (lambda k: tuple(numbers(k).reshape(-1).tolist()), tuple),
}


class Traced(Tensor):
    """A class of tensors of somebody else's."""


def released(x: Tensor) -> Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def nested(x: Tensor, layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor(list(x), layout=layout)


# What is no dense array of real numbers, made from one.
ARRAYS: dict[str, Callable[[Tensor], Any]] = {
    "sparse": lambda x: x.to_sparse(),
    "compressed": lambda x: x.reshape(len(x), -1).to_sparse_csr(),
    "meta": lambda x: x.to("meta"),
    "nested": lambda x: nested(x, torch.strided),
    "jagged": lambda x: nested(x, torch.jagged),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
    "subclass": lambda x: x.as_subclass(Traced),
    "without data": released,
    "zeros that are nowhere": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "complex": lambda x: torch.complex(x.float(), x.float()),
    "conjugate": lambda x: torch.complex(x.float(), x.float()).conj(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "bits": lambda x: x.to(torch.uint8).view(torch.bits8),
    "other shape": lambda x: x[:1],
    "expanded to 1e15 numbers": lambda x: x.reshape(-1)[0].expand(10**15),
    "other dtype": lambda x: x.half(),
    "masked": lambda x: np.ma.masked_array(x.numpy(), mask=x.numpy() > 0),
    "objects": lambda x: x.numpy().astype(object),
    "fields": lambda x: np.zeros(x.shape, dtype=[("\x1b[2J" * 999, "f4")]),
    "texts": lambda x: x.numpy().astype(str),
    "dates": lambda x: x.numpy().astype("datetime64[s]"),
    "long double": lambda x: x.numpy().astype(np.longdouble),
    "nothing": lambda x: None,
    "text": lambda x: "weights",
    "list of lists": lambda x: x.tolist(),
    "too large an integer": lambda x: [10**400, *[0.0] * 5],
    "truth values": lambda x: [True, *[0.0] * 5],
}


def within_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


class Trap(UserDict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("nobody reads me")


# Whole rows, which no form of honest rows has.
ROWS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "a number": lambda: 1.0,
    "a text": lambda: "abc",
    "bytes": lambda: b"abc",
    "a set": lambda: {1.0, 2.0},
    "an empty list": list,
    "an empty mapping": dict,
    "a model": lambda: torch.nn.Linear(2, 3),
    "a generator": lambda: torch.nn.Linear(2, 3).parameters(),
    "a class": lambda: bz.Median,
    "a mapping of keys that are tensors": lambda: {torch.ones(2): torch.ones(2)},
    "a mapping that raises": lambda: Trap({"w": torch.ones(2)}),
    "a key of a million characters": lambda: {"\x1b[2J" * 250_000: torch.ones(2)},
    "a torch.Size": lambda: torch.Size([3, 2]),
    "a list in itself": within_itself,
}


def made_hostile(honest: Any, make: Callable[[Tensor], Any]) -> Any:
    """An honest row, one array of which is replaced."""
    if isinstance(honest, Mapping):
        return type(state(0))({**honest, "w": make(torch.as_tensor(honest["w"]))})
    if isinstance(honest, list | tuple) and not isinstance(honest[0], float):
        return type(honest)([make(torch.as_tensor(honest[0])), *honest[1:]])
    return make(torch.as_tensor(honest).reshape(3, 2))


def flat(result: Any) -> list[float]:
    """All numbers of a result, in the order of its entries."""
    values = result.values() if isinstance(result, Mapping) else result
    if isinstance(result, Tensor | np.ndarray) or isinstance(next(iter(values)), float):
        values = [result]
    return [x for value in values for x in np.asarray(value, dtype=float).reshape(-1).tolist()]


@functools.cache
def expected(rule: bz.Aggregator, place: int, form: str) -> list[float]:
    """The result of the honest rows, all but one; that of the mean is computed here."""
    rows = [FORMS[form][0](k) for k in range(N) if k != place]
    if rule == bz.Mean():
        means = np.mean([flat(row) for row in rows], axis=0).tolist()
        if len(means) == 10:  # the last of which is a counter
            means[-1] = np.floor(np.median([flat(row)[-1] for row in rows]))
        return means
    return flat((bz.Krum(f=0) if rule == bz.Krum(f=1) else rule)(rows))


def agrees(rule: bz.Aggregator, rows: list[Any], place: int, form: str) -> None:
    """The row in this place is rejected, and the result is that of the others, in their form."""
    make, kind = FORMS[form]
    report = rule.explain(rows, strict=False)
    assert report.rejected == (place,)
    assert report.reasons[place].isprintable()
    assert len(report.reasons[place]) < 300
    assert type(report.aggregate) is kind
    if isinstance(report.aggregate, Mapping):
        assert list(report.aggregate) == list(make(0))
    for entry, like in zip(parts(report.aggregate), parts(make(0)), strict=True):
        assert isinstance(entry, Tensor) == isinstance(like, Tensor)
        assert getattr(entry, "dtype", float) == getattr(like, "dtype", float)
    found, wanted = flat(report.aggregate), expected(rule, place, form)
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def refused(form: str, hostile: Callable[[Any], Any]) -> None:
    """A hostile row is rejected in every place; where rows must fit, one error names it."""
    for place in PLACES:
        rows = [FORMS[form][0](k) for k in range(N)]
        rows[place] = hostile(rows[place])
        for rule in RULES:
            agrees(rule, rows, place, form)
        with pytest.raises(bz.ByzantiumError, match=f"^vector {place} ") as caught:
            bz.Mean()(rows)
        assert str(caught.value).isprintable()


def parts(row: Any) -> list[Any]:
    if isinstance(row, Mapping):
        return list(row.values())
    return list(row) if isinstance(row, list | tuple) else [row]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ARRAYS)
def test_an_array_that_cannot_be_read_is_a_rejected_row(kind: str, form: str) -> None:
    refused(form, lambda honest: made_hostile(honest, ARRAYS[kind]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ROWS)
def test_what_is_no_row_is_a_rejected_row(kind: str, form: str) -> None:
    refused(form, lambda _: ROWS[kind]())


LOADED = ["sparse", "compressed", "meta", "nested", "quantized", "complex", "conjugate"]


@pytest.mark.parametrize("kind", LOADED)
def test_whatever_comes_out_of_a_file_is_at_most_a_rejected_row(kind: str) -> None:
    def loaded(honest: Any) -> Any:
        file = io.BytesIO()
        torch.save(made_hostile(honest, ARRAYS[kind]), file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    refused("dict", loaded)


# -- rows that are used -------------------------------------------------------------------------

USED: dict[str, Callable[[Tensor], Tensor]] = {
    "to be negated": lambda x: torch._neg_view(-x),
    "imaginary part of a conjugate": lambda x: torch.complex(x, -x).conj().imag,
    "parameter": torch.nn.Parameter,
    "with a gradient": lambda x: x.clone().requires_grad_() * 1,
    "transposed in memory": lambda x: x.T.contiguous().T,
    "of inference mode": lambda x: in_inference(x),
}


def in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", USED)
@pytest.mark.parametrize("form", ["dict", "list of tensors", "tensor"])
def test_dense_real_numbers_are_used_however_they_are_stored(
    kind: str, form: str, place: int
) -> None:
    rows = [FORMS[form][0](k) for k in range(N)]
    for rule in RULES:
        honest = rule(rows, torch.Generator().manual_seed(1))
        other = list(rows)
        other[place] = made_hostile(rows[place], USED[kind])
        report = rule.explain(other, torch.Generator().manual_seed(1), strict=False)
        assert report.rejected == ()
        assert flat(report.aggregate) == flat(honest)
        assert all(type(part) is Tensor for part in parts(report.aggregate))


def test_a_matrix_that_is_to_be_negated_is() -> None:
    X = torch.stack([numbers(k).reshape(-1) for k in range(N)])
    for rule in RULES:
        assert torch.allclose(rule(torch._neg_view(-X)), rule(X))


def test_counters_that_are_to_be_negated_are() -> None:
    rows = [{"x": torch.zeros(1), "n": torch._neg_view(torch.tensor([-k]))} for k in range(5)]
    assert bz.Mean()(rows)["n"].tolist() == [2]


# -- what one row does not choose ---------------------------------------------------------------

# The honest form, and a row with the same numbers in another.
OTHER_FORMS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "NumPy among tensors": ("tensor", lambda k: numbers(k).numpy()),
    "a tensor among NumPy": ("NumPy", numbers),
    "NumPy among state dicts": ("dict", lambda k: of_numpy(state(k))),
    "tensors among NumPy": ("dict of NumPy", state),
    "one entry of NumPy": ("dict", lambda k: {**state(k), "steps": np.array(k)}),
    "a mapping among lists": ("list of tensors", lambda k: dict(enumerate(state(k).values()))),
    "a list among tensors": ("tensor", lambda k: [numbers(k)]),
    "a mapping among tensors": ("tensor", lambda k: {0: numbers(k)}),
    "an array among lists of floats": (
        "list of floats",
        lambda k: numbers(k).double().reshape(-1).numpy(),
    ),
}


@pytest.mark.parametrize("kind", OTHER_FORMS)
def test_a_row_of_another_form_is_rejected(kind: str) -> None:
    form, make = OTHER_FORMS[kind]
    refused(form, lambda _: make(9))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["dict", "OrderedDict", "defaultdict"])
@pytest.mark.parametrize("odd", ["type", "order", "keys", "both"])
def test_the_first_row_chooses_neither_the_type_nor_the_order_of_the_result(
    odd: str, form: str, place: int
) -> None:
    """Such rows count like the others."""
    make, kind = FORMS[form]
    rows = [make(k) for k in range(N)]
    honest: dict[str, Tensor] = bz.Mean()(rows)

    class Text(str):
        pass

    own = rows[place]
    entries = reversed(own.items()) if odd in ("order", "both") else own.items()
    entries = ((Text(key) if odd == "keys" else key, value) for key, value in entries)
    other = {"dict": OrderedDict, "OrderedDict": dict, "defaultdict": dict}[form]
    rows[place] = (other if odd in ("type", "both") else dict)(entries)
    report = bz.Mean().explain(rows, strict=False)
    assert report.rejected == ()
    assert list(report.aggregate) == list(honest)
    assert all(type(key) is str for key in report.aggregate)
    assert all(torch.equal(report.aggregate[key], honest[key]) for key in honest)
    assert type(report.aggregate) is kind


def test_the_center_of_a_rule_is_not_confused_by_a_row_in_another_order() -> None:
    rows: list[Any] = [{"a": torch.tensor([1.0]), "b": torch.tensor([9.0])} for _ in range(5)]
    rule = bz.CenteredClipping(radius=100)
    rule(rows)
    rows[0] = dict(reversed(rows[0].items()))
    result = rule(rows)
    assert (result["a"].item(), result["b"].item()) == (1, 9)


def test_lists_of_numbers_are_rows() -> None:
    assert bz.Mean()([[1.0, 2.0], [3, 4.5]]) == [2.0, 3.25]
    assert bz.Median()(((1, 2), (3, 4), (5, 600))) == (3.0, 4.0)
    assert bz.Mean()([[np.float64(1), 2], [3, 4]]) == [2.0, 3.0]
    assert bz.Mean()([[5.0, 5.0], [7.0, 7.0]], base=[1.0, 1.0]) == [6.0, 6.0]
    assert bz.Krum(f=1)([[float(k)] for k in (1, 1, 1, 1, 99)]) == [1.0]


def test_if_no_row_can_be_used_the_error_says_so_and_why() -> None:
    with pytest.raises(
        bz.TooManyRejected, match="none of 3 vectors can be used; vector 0 is a"
    ) as e:
        bz.Mean()([None, "a", torch.ones(2).to_sparse()], strict=False)
    assert e.value.reasons[2] == "is a tensor of layout torch.sparse_coo"


@pytest.mark.parametrize("form", ["dict", "tensor", "matrix"])
@pytest.mark.parametrize("kind", ["sparse", "meta", "nested", "quantized", "complex", "nothing"])
def test_a_base_that_cannot_be_read_is_named(kind: str, form: str) -> None:
    base = made_hostile(FORMS["tensor" if form == "matrix" else form][0](0), ARRAYS[kind])
    if base is None:
        return  # which is no base
    rows: Any = [FORMS["dict" if form == "dict" else "tensor"][0](k) for k in range(N)]
    if form == "matrix":
        rows = torch.stack(rows).reshape(N, -1)
    with pytest.raises(bz.ByzantiumError, match=r"^the base "):
        bz.Mean()(rows, base=base, strict=False)


@pytest.mark.parametrize("kind", ["sparse", "meta", "nested", "quantized", "subclass", "complex"])
def test_a_matrix_that_cannot_be_read_is_one_error(kind: str) -> None:
    with pytest.raises(TypeError, match=r"^updates must be ") as caught:
        bz.Krum(f=1)(ARRAYS[kind](torch.ones(5, 2)))
    assert isinstance(caught.value, bz.ByzantiumError)


def test_numpy_matrices_of_other_classes_are_matrices() -> None:
    X = np.arange(6.0).reshape(3, 2)
    assert bz.Mean()(np.matrix(X)).tolist() == [2.0, 3.0]
    assert bz.Mean()([np.matrix(row) for row in X]).tolist() == [[2.0, 3.0]]
    with pytest.raises(TypeError, match=r"^updates must be an array .* got a MaskedArray"):
        bz.Mean()(np.ma.masked_array(X, mask=X > 3))


# -- too many rows ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.ones, np.ones], ids=["torch", "NumPy"])
@pytest.mark.parametrize("rule", [bz.Krum(f=1), bz.Median(), bz.Mean()], ids=repr)
def test_a_transposed_matrix_is_named_before_any_memory_is_taken(
    rule: bz.Aggregator, make: Callable[..., Any]
) -> None:
    with pytest.raises(bz.ByzantiumError) as caught:
        rule(make((100_000, 10)))
    assert "one row per worker, got (100000, 10)" in str(caught.value)
    assert "74.5 GiB; if each worker is a column, transpose updates" in str(caught.value)


def test_many_workers_are_no_mistake() -> None:
    assert bz.Krum(f=100)(torch.ones(1000, 10)).tolist() == [1.0] * 10
    assert bz.Median()(torch.ones(1000, 1)).tolist() == [1.0]
    assert as_source(torch.ones(1, 1).expand(40_000, 4_000)).n == 40_000
    assert as_source(torch.ones(32_768, 1)).n == 32_768
