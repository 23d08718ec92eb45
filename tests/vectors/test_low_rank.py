"""Low-rank updates: rules see their products, which are never formed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import low_rank
import members
import numpy as np
import pytest
import torch
from agreement import seeded
from memory import LINUX, megabytes
from torch import Tensor

import byzantium as bz
from byzantium.related import ByzantineSGD, Safeguard, SignSum, SignVote
from byzantium.rules.kinds import CoordinateWise
from byzantium.vectors import LowRank, LowRankUpdate
from byzantium.vectors.distances import squared_distances
from byzantium.vectors.factors import Product, Stack
from byzantium.vectors.points import SourcePoints


def by_coordinate(member: members.Rule) -> bool:
    needs = CoordinateWise | SignVote | SignSum | Safeguard | ByzantineSGD
    return isinstance(member.rule.stages[-1].expansion[-1], needs)


BY_COORDINATE = [member for member in members.EVERYTHING if by_coordinate(member)]
BY_WEIGHTS = [member for member in members.EVERYTHING if not by_coordinate(member)]


class ByColumns(LowRank):
    """The same, measured through its columns instead of inner products of factors."""

    def inner_products(self, rows: Any, anchors: Mapping[str, Tensor | None]) -> None:
        return None


def near(result: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    assert float((result - expected).norm()) <= tolerance * float(expected.norm())


def distances(source: LowRank) -> Any:
    return squared_distances(SourcePoints(source).gram)


def exact_distances(rows: list[low_rank.Update]) -> Any:
    X = low_rank.matrix(rows)
    return (X[:, None] - X).square().sum(dim=2).numpy()


# -- equality with the dense computation --------------------------------------------------------


@pytest.mark.parametrize("source", [LowRank, ByColumns])
@pytest.mark.parametrize("member", BY_WEIGHTS, ids=members.name)
def test_rules_agree_with_the_slow_reference_on_the_products(
    member: members.Rule, source: type[LowRank]
) -> None:
    rows = low_rank.updates(members.N)
    expected, margin = member.reference(low_rank.matrix(rows).numpy())
    assert margin > 1e-9
    near(low_rank.flattened(member.fresh()(source(rows), seeded())), torch.from_numpy(expected))


@pytest.mark.parametrize("member", members.EVERYTHING, ids=members.name)
def test_full_weights_are_for_all_rules(member: members.Rule) -> None:
    rows = low_rank.updates(members.N)
    expected = member.fresh()(low_rank.matrix(rows), seeded())
    result = member.fresh()(LowRank(rows, full=True), seeded())
    near(low_rank.flattened(result), expected, 1e-12)
    assert {name: tuple(value.shape) for name, value in result.items()} == {
        "q": (30, 20),
        "v": (8, 50),
        "bias": (7,),
    }


@pytest.mark.parametrize("ranks", [(1,), (64,), (16, 8, 1, 64), (3, 200)], ids=str)
@pytest.mark.parametrize("shape", [(96, 80), (30, 200), (200, 7), (1, 1)], ids=str)
def test_any_ranks_and_shapes(ranks: tuple[int, ...], shape: tuple[int, int]) -> None:
    """Also where the ranks together, or one alone, are larger than the matrix."""
    rows = low_rank.updates(9, ranks, {"m": shape})
    for text in (
        "GeometricMedian()",
        "Krum(f=2)",
        "NearestNeighborMixing(f=2) >> SpectralFilter(f=2)",
    ):
        expected = bz.parse_rule(text).explain(low_rank.matrix(rows))
        for source in (LowRank, ByColumns):
            report = bz.parse_rule(text).explain(source(rows))
            near(low_rank.flattened(report.aggregate), expected.aggregate)
            assert (report.weights - expected.weights).abs().max() <= 1e-9


def test_weights_and_mixing_of_the_report() -> None:
    rows = low_rank.updates(members.N)
    rule = bz.parse_rule("Bucketing(s=2) >> GeometricMedian()")
    report = rule.explain(LowRank(rows), seeded())
    expected = rule.explain(low_rank.matrix(rows), seeded())
    assert torch.allclose(report.weights, expected.weights, atol=1e-10)
    assert torch.equal(report.mixing, expected.mixing)
    near(report.weights @ low_rank.matrix(rows), low_rank.flattened(report.aggregate))


def test_narrow_factors_come_out_in_their_dtype() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        rows = low_rank.updates(7, dtype=dtype)
        merged = bz.GeometricMedian()(LowRank(rows))
        assert {tensor.dtype for tensor in merged.values()} == {dtype}
        expected = bz.GeometricMedian()(low_rank.matrix(rows))
        near(low_rank.flattened(merged), expected, 2 * torch.finfo(dtype).eps)


def test_numpy_factors() -> None:
    rows = low_rank.updates(5, bad=1)
    arrays = [
        {
            name: (v[0].numpy(), v[1].numpy().astype(">f8"), v[2])
            if isinstance(v, tuple)
            else v.numpy()
            for name, v in row.items()
        }
        for row in rows
    ]
    for row in arrays:
        row["q"][0].flags.writeable = False
    expected = low_rank.flattened(bz.Krum(f=1)(LowRank(rows)))
    assert torch.equal(low_rank.flattened(bz.Krum(f=1)(LowRank(arrays))), expected)


def test_whole_numbers_become_their_median() -> None:
    rows = [{**row, "steps": torch.tensor([k, 7])} for k, row in enumerate(low_rank.updates(5))]
    assert bz.GeometricMedian()(LowRank(rows))["steps"].tolist() == [2, 7]
    assert bz.Median()(LowRank(rows, full=True))["steps"].tolist() == [2, 7]


# -- a base and a root --------------------------------------------------------------------------


@pytest.mark.parametrize("source", [LowRank, ByColumns])
@pytest.mark.parametrize("member", BY_WEIGHTS[:9] + BY_WEIGHTS[-9:], ids=members.name)
def test_relative_to_a_base(member: members.Rule, source: type[LowRank]) -> None:
    rows, base = low_rank.updates(members.N), low_rank.updates(1, (4,), seed=5)[0]
    dense_base = low_rank.dense(base)
    expected = member.fresh()(low_rank.matrix(rows) - dense_base, seeded()) + dense_base
    near(low_rank.flattened(member.fresh()(source(rows, base=base), seeded())), expected)


def test_a_base_given_to_the_call() -> None:
    rows, base = low_rank.updates(7), low_rank.updates(1, seed=5)[0]
    rule = bz.CenteredClipping(radius=2.0)
    first = low_rank.flattened(rule(LowRank(rows), base=base))
    rule.reset()
    assert torch.equal(first, low_rank.flattened(rule(LowRank(rows, base=base))))
    rule.reset()
    full = rule(LowRank(rows, base=base, full=True))
    near(low_rank.flattened(full), first, 1e-12)


@pytest.mark.parametrize("member", members.ROOT_RULES, ids=members.name)
def test_rules_with_a_root(member: members.RootRule) -> None:
    rows, root = low_rank.updates(members.N), low_rank.updates(1, (3,), seed=9, bad=0)[0]
    expected = member.reference(low_rank.matrix(rows).numpy(), low_rank.dense(root).numpy())
    result = member.rule(LowRank(rows), root=root)
    near(low_rank.flattened(result), torch.from_numpy(expected), 1e-9)
    base = low_rank.updates(1, (2,), seed=4)[0]
    shifted = low_rank.matrix(rows) - low_rank.dense(base)
    expected = member.reference(
        shifted.numpy(), (low_rank.dense(root) - low_rank.dense(base)).numpy()
    )
    result = member.rule(LowRank(rows, base=base), root=root)
    near(low_rank.flattened(result) - low_rank.dense(base), torch.from_numpy(expected), 1e-9)


# -- invariances --------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("text", ["Krum(f=2, m=3)", "GeometricMedian()", "SpectralFilter(f=2)"])
def test_the_basis_of_the_factors_does_not_matter(text: str, condition: float) -> None:
    rows = low_rank.updates(9)
    other = [low_rank.rotated(row, seed, condition) for seed, row in enumerate(rows)]
    # Factors that nearly cancel have rounding of their own, which is in the products, too.
    rounded = float((low_rank.matrix(other) - low_rank.matrix(rows)).norm())
    tolerance = max(1e-10, 10 * rounded)
    expected = low_rank.flattened(bz.parse_rule(text)(LowRank(rows)))
    near(low_rank.flattened(bz.parse_rule(text)(LowRank(other))), expected, tolerance)


@pytest.mark.parametrize("exponent", [-900, -300, 40, 300, 900])
def test_sizes_that_cancel_in_the_product_change_nothing(exponent: int) -> None:
    rows, other = low_rank.updates(9), low_rank.updates(9)
    for row in other[::2]:
        b, a, scale = row["q"]
        row["q"] = (b * 2.0**exponent, a * 2.0**-exponent, scale)
    for rank in (None, 3):
        merged, expected = (bz.GeometricMedian()(LowRank(one)) for one in (other, rows))
        near(merged["q"], expected["q"], 1e-14)
        cuts = [one.cut("q", rank) for one in (merged, expected)]
        near(cuts[0].b @ cuts[0].a, cuts[1].b @ cuts[1].a, 1e-13)


def test_ranks_padded_with_zeros_change_nothing() -> None:
    rows, padded = low_rank.updates(9), low_rank.updates(9)
    for k, row in enumerate(padded):
        b, a, scale = row["q"]
        b = torch.cat([b, torch.zeros(len(b), k)], dim=1)
        a = (
            torch.cat([a, torch.ones(k, a.shape[1])])
            if k % 2
            else torch.cat([a, torch.zeros(k, a.shape[1])])
        )
        row["q"] = (b, a, scale)
    for text in ("Krum(f=2, m=3)", "GeometricMedian()"):
        expected = low_rank.flattened(bz.parse_rule(text)(LowRank(rows)))
        near(low_rank.flattened(bz.parse_rule(text)(LowRank(padded))), expected)
    cuts = [bz.Mean()(LowRank(one)).cut("q", 5) for one in (padded, rows)]
    near(cuts[0].b @ cuts[0].a, cuts[1].b @ cuts[1].a)
    assert cuts[0].lost == pytest.approx(cuts[1].lost)


def test_the_order_of_contributors_does_not_matter() -> None:
    rows = low_rank.updates(9)
    order = [3, 1, 8, 0, 5, 7, 2, 6, 4]
    for text in ("Krum(f=2)", "GeometricMedian()", "NearestNeighborMixing(f=2) >> Mean()"):
        report = bz.parse_rule(text).explain(LowRank([rows[i] for i in order]))
        expected = bz.parse_rule(text).explain(LowRank(rows))
        near(low_rank.flattened(report.aggregate), low_rank.flattened(expected.aggregate))
        assert torch.allclose(report.weights, expected.weights[order], atol=1e-10)


@pytest.mark.parametrize("member", BY_WEIGHTS, ids=members.name)
def test_equal_updates_give_that_update(member: members.Rule) -> None:
    if "unanimity" in member.fails:
        pytest.skip("clips to a length")
    row = low_rank.updates(1, (3, 2), bad=0)[0]
    merged = member.fresh()(LowRank([row] * members.N), seeded())
    near(low_rank.flattened(merged), low_rank.dense(row), 1e-14)
    cut = merged.cut("q", 3)
    near((cut.b @ cut.a).reshape(-1), low_rank.dense({"q": row["q"]}), 1e-14)
    assert cut.lost <= 1e-28 * cut.square


def test_updates_of_equal_bytes_have_the_distance_zero() -> None:
    rows = low_rank.updates(8)
    rows += [dict(rows[3]), dict(reversed(rows[3].items()))]
    for source in (LowRank, ByColumns):
        found = distances(source(rows))
        assert found[3, 8] == found[3, 9] == found[8, 9] == 0
        assert (found[3] == found[8]).all()


@pytest.mark.parametrize("apart", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("source", [LowRank, ByColumns])
def test_nearly_equal_updates_lose_no_digits(source: type[LowRank], apart: float) -> None:
    """Also in other bases, where the factors themselves are far from each other."""
    first = low_rank.updates(1, (4,), bad=0)[0]
    rows = []
    for k, own in enumerate(low_rank.updates(7, (4,), seed=1, bad=0)):
        b, a, scale = first["q"]
        wide = torch.cat([b, apart * own["q"][0]], dim=1), torch.cat([a, own["q"][1]])
        rows.append(low_rank.rotated({"q": (*wide, scale)}, k))
    # The exact distances of these factors, in sums of twice the precision.
    exact = np.zeros((7, 7))
    wide_rows = [_exact_product(row["q"]) for row in rows]
    for i, j in itertools.combinations(range(7), 2):
        exact[i, j] = exact[j, i] = float(((wide_rows[i] - wide_rows[j]) ** 2).sum())
    assert abs(distances(source(rows)) - exact).max() <= 1e-13 / apart * exact.max()


def _exact_product(value: tuple[Tensor, Tensor, float]) -> Any:
    b, a, scale = (np.asarray(x, dtype=np.longdouble) for x in value)
    return scale * (b @ a)


def test_updates_that_cancel_in_a_mixing() -> None:
    """+v and -v in one bucket, where v is huge: the mixed updates are measured themselves."""
    rows = low_rank.updates(8, bad=0)
    big = low_rank.updates(1, bad=0, seed=3)[0]
    for k, sign in ((0, 1e7), (1, -1e7)):
        rows[k] = {
            name: (sign * v[0], *v[1:]) if isinstance(v, tuple) else sign * v
            for name, v in big.items()
        }

    class InOrder(bz.Permutations):
        def permutation(self, n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
            return np.arange(n)

    for text in ("Bucketing(s=2) >> Krum(f=0)", "Bucketing(s=2) >> GeometricMedian()"):
        expected = bz.parse_rule(text).explain(low_rank.matrix(rows), InOrder())
        report = bz.parse_rule(text).explain(LowRank(rows), InOrder())
        assert (report.weights - expected.weights).abs().max() <= 1e-8
        assert any("cancel" in note for note in report.notes)


def test_tiny_updates() -> None:
    for exponent in (-400, -600):
        rows = low_rank.updates(9)
        tiny = [{"q": (row["q"][0] * 2.0**exponent, *row["q"][1:])} for row in rows]
        usual = [{"q": row["q"]} for row in rows]
        for text in ("Krum(f=2)", "GeometricMedian()", "AdaptiveClipping(f=2) >> Mean()"):
            report = bz.parse_rule(text).explain(LowRank(tiny))
            expected = bz.parse_rule(text).explain(LowRank(usual))
            assert torch.allclose(report.weights, expected.weights, atol=1e-9)


# -- unusable updates ---------------------------------------------------------------------------


def spoiled() -> dict[str, tuple[Any, str]]:
    row = low_rank.updates(1, bad=0)[0]
    b, a, scale = row["q"]
    return {
        "NaN in B": ({**row, "q": (b * torch.nan, a, scale)}, "not finite"),
        "infinity in A": ({**row, "q": (0 * b, a + torch.inf, scale)}, "not finite"),
        "NaN in an array": ({**row, "bias": row["bias"] * torch.nan}, "not finite"),
        "an infinite scale": ({**row, "q": (b, a, torch.inf)}, "not finite"),
        "absurd product": ({**row, "q": (1e80 * b, 1e80 * a, scale)}, "norm above 1e+150"),
        "ranks that differ": ({**row, "q": (b, a[:0], scale)}, "with no product"),
        "rank of B": ({**row, "q": (b[:, :1], torch.cat([a, a]), scale)}, "with no product"),
        "rank zero": ({**row, "q": (b[:, :0], a[:0], scale)}, "with no product"),
        "another shape": ({**row, "q": (b[:5], a, scale)}, "has the shape (5, 20) instead of"),
        "a vector": ({**row, "q": (b[:, 0], a, scale)}, "with no product"),
        "an array": ({**row, "q": b @ a}, "an array that others have not"),
        "a product": ({**row, "bias": (b, a, scale)}, "a product that others have not"),
        "a missing name": ({"q": row["q"]}, "lacks the entry"),
        "a further name": ({**row, "x": row["bias"]}, "that the others lack"),
        "another dtype": ({**row, "bias": row["bias"].float()}, "has the dtype torch.float32"),
        "two dtypes": ({**row, "q": (b.float(), a, scale)}, "factors of torch.float32 and"),
        "integers": ({**row, "q": (b.long(), a.long(), scale)}, "factors of torch.int64"),
        "sparse": ({**row, "q": (b.to_sparse(), a, scale)}, "as a factor"),
        "no mapping": ([1.0], "instead of a mapping"),
        "no scale": ({**row, "q": (b, a, "1x")}, "cannot be read"),
        "one factor": ({**row, "q": (b,)}, "instead of (B, A, scale)"),
        "nothing": (None, "instead of a mapping"),
    }


@pytest.mark.parametrize("what", spoiled())
def test_an_unusable_update_is_rejected_with_a_reason(what: str) -> None:
    bad, reason = spoiled()[what]
    rows = low_rank.updates(6, bad=0)
    for full in (False, True):
        report = bz.Krum(f=1).explain(LowRank([*rows[:3], bad, *rows[3:]], full=full))
        assert report.rejected == (3,)
        assert reason in report.reasons[3]
        expected = bz.Krum(f=0)(LowRank(rows))
        near(low_rank.flattened(report.aggregate), low_rank.flattened(expected), 1e-12)


def test_too_many_unusable_updates() -> None:
    rows = low_rank.updates(5, bad=0)
    with pytest.raises(bz.TooManyRejected, match="worker 0 \\(is a NoneType"):
        bz.Krum(f=0)(LowRank([None, *rows]))
    with pytest.raises(bz.TooManyRejected, match="none of 3 low-rank updates"):
        LowRank([None, 1, "x"])  # type: ignore[list-item]
    with pytest.raises(bz.TooManyRejected):
        bz.Mean()(LowRank([{"q": (b * torch.nan, a, s)} for b, a, s in (row["q"] for row in rows)]))


def test_reasons_of_the_caller_count() -> None:
    rows: list[Any] = [None, *low_rank.updates(6, bad=0)]
    report = bz.Krum(f=1).explain(LowRank(rows, reasons={0: "has lied"}, names=list("abcdefg")))
    assert report.reasons == {0: "has lied"}


def test_errors_of_the_caller() -> None:
    rows, base = low_rank.updates(5), low_rank.updates(1, seed=5)[0]
    with pytest.raises(bz.ByzantiumError, match=r"the base is not finite"):
        LowRank(rows, base={**base, "bias": base["bias"] / 0})
    with pytest.raises(bz.ByzantiumError, match=r"the base is an int instead of"):
        LowRank(rows, base=3)  # type: ignore[arg-type]
    with pytest.raises(bz.ByzantiumError, match=r"the base of low-rank updates is one"):
        bz.Mean()(LowRank(rows), base=base["bias"])
    with pytest.raises(bz.ByzantiumError, match=r"the root lacks the entry 'bias'"):
        bz.FLTrust()(LowRank(rows), root={"q": base["q"], "v": base["v"]})
    with pytest.raises(bz.ByzantiumError, match=r"the root holds numbers that are not finite"):
        bz.FLTrust()(LowRank(rows), root={**base, "bias": base["bias"] / 0})
    with pytest.raises(bz.ByzantiumError, match="must hold floating-point numbers"):
        LowRank([{"n": torch.tensor([1])}])


@pytest.mark.parametrize("member", BY_COORDINATE, ids=members.name)
def test_rules_by_coordinate_need_full_weights(member: members.Rule) -> None:
    with pytest.raises(bz.ByzantiumError, match=r"take full weights, LowRank\(..., full=True\)"):
        member.fresh()(LowRank(low_rank.updates(members.N)), seeded())


def test_what_else_needs_coordinates() -> None:
    class Largest(bz.MatrixRule):
        def aggregate(self, updates: Tensor) -> Tensor:
            return updates.max(dim=0).values

    rows = low_rank.updates(7)
    for rule in (Largest(), bz.Bucketing(s=2)):
        with pytest.raises(bz.ByzantiumError, match="needs the coordinates"):
            rule(LowRank(rows))
    whole = Largest()(LowRank(rows, full=True))
    near(low_rank.flattened(whole), low_rank.matrix(rows).max(dim=0).values, 1e-12)


def test_a_state_is_refused_unless_weights_are_full() -> None:
    rows = low_rank.updates(9)
    rule = bz.CenteredClipping(radius=5.0)
    first = low_rank.flattened(rule(LowRank(rows)))
    with pytest.raises(bz.ByzantiumError, match=r"other bases in each call; reset\(\)"):
        rule(LowRank(rows))
    rule.reset()
    assert torch.equal(first, low_rank.flattened(rule(LowRank(rows))))
    full, dense = bz.CenteredClipping(radius=5.0), bz.CenteredClipping(radius=5.0)
    for _ in range(2):
        result = low_rank.flattened(full(LowRank(rows, full=True)))
        near(result, dense(low_rank.matrix(rows)), 1e-12)


# -- cuts ---------------------------------------------------------------------------------------


def best(whole: Tensor, rank: int) -> tuple[Tensor, float]:
    """The nearest matrix of a rank, and the share of the squared norm that it lacks."""
    U, s, V = torch.linalg.svd(whole, full_matrices=False)
    lost = float(s[rank:].square().sum() / s.square().sum())
    return U[:, :rank] * s[:rank] @ V[:rank], lost


@pytest.mark.parametrize("rank", [1, 3, 8, 20, None])
@pytest.mark.parametrize("condition", [1.0, 1e5])
def test_a_cut_is_the_nearest_matrix_of_its_rank(rank: int | None, condition: float) -> None:
    rows = [low_rank.rotated(row, k, condition) for k, row in enumerate(low_rank.updates(9))]
    merged = bz.GeometricMedian()(LowRank(rows))
    whole = sum(
        weight * row["q"][2] * (row["q"][0] @ row["q"][1])
        for weight, row in zip(
            bz.GeometricMedian().explain(LowRank(rows)).weights, rows, strict=True
        )
    )
    assert isinstance(whole, Tensor)
    cut = merged.cut("q", rank)
    expected, lost = best(whole, 20 if rank is None else rank)
    near(cut.b @ cut.a, expected)
    assert cut.lost / cut.square == pytest.approx(lost, abs=1e-10)
    assert cut.square == pytest.approx(float(whole.square().sum()), rel=1e-10)
    assert float(cut.b.norm()) == pytest.approx(float(cut.a.norm()))
    if rank is not None:
        assert cut.b.shape == (30, rank)


def test_a_sum_of_few_updates_has_their_rank() -> None:
    """Krum takes one update, whose factors are returned but for their basis."""
    rows = low_rank.updates(9, (4,), {"m": (50, 40)})
    report = bz.Krum(f=2).explain(LowRank(rows))
    winner = int(report.weights.argmax())
    cut = report.aggregate.cut("m")
    assert cut.b.shape == (50, 4)
    near((cut.b @ cut.a).reshape(-1), low_rank.dense({"m": rows[winner]["m"]}), 1e-14)
    wide = report.aggregate.cut("m", 7)
    assert wide.b.shape == (50, 7)
    near(wide.b @ wide.a, cut.b @ cut.a, 1e-14)


def test_factors_of_zero_can_still_be_trained() -> None:
    """If both factors of a rank were zero, no gradient would ever change them."""
    rows = low_rank.updates(5, (4,), {"m": (50, 40)})
    zero = [{"m": (0 * b, a, scale)} for b, a, scale in (row["m"] for row in rows)]
    for updates, rank in ((zero, 4), (rows[:1], 6)):
        cut = bz.Mean()(LowRank(updates)).cut("m", rank)
        assert (cut.a.norm(dim=1) > 0.1).all()
        assert not cut.b[:, 4:].any()
    assert not bz.Mean()(LowRank(zero)).cut("m", 4).b.any()


def test_a_spectrum_down_to_rounding() -> None:
    """Singular values from 1 to 1e-14 come back, as in the dense computation."""
    g = torch.Generator().manual_seed(0)
    U, V = (torch.linalg.qr(torch.randn(60, 8, generator=g, dtype=torch.float64)).Q for _ in "ab")
    values = torch.logspace(0, -14, 8, dtype=torch.float64)
    product = Product(U * values, V.T.contiguous())
    for members_ in ([product], [product, Product(torch.randn(60, 8).double(), V.T.contiguous())]):
        cut = Stack(members_).cut(np.array([1.0, 0.0])[: len(members_)], 8)
        near(cut.b @ cut.a, U * values @ V.T, 3e-14)


def test_the_result_is_a_mapping() -> None:
    merged = bz.Krum(f=1)(LowRank(low_rank.updates(7)))
    assert isinstance(merged, LowRankUpdate)
    assert list(merged) == ["q", "v", "bias"]
    assert len(merged) == 3
    assert merged.products == ["q", "v"]


MEMORY = """
import torch, byzantium as bz
from byzantium.vectors import LowRank
n, size, rank = 12, 3000, 4
rows = [
    {f"m{k}": (torch.randn(size, rank), torch.randn(rank, size), 1.0) for k in range(2)}
    for _ in range(n)
]

def work(rows):
    for rule in (bz.Krum(f=1), bz.GeometricMedian()):
        merged = rule(LowRank(rows))
        for name in merged:
            merged.cut(name, rank)

work([{"m0": (b[:400], a[:, :400], s)} for b, a, s in (row["m0"] for row in rows)])  # libraries
print(peak(lambda: work(rows)))
"""


@LINUX
def test_no_product_is_ever_formed() -> None:
    """One product of one contributor takes 36 MB, those of all 860 MB."""
    taken, printed = megabytes(MEMORY)
    assert not printed.strip()
    assert taken < 36


@pytest.mark.parametrize("full", [False, True])
def test_weights_count_as_on_whole_matrices_and_rows_without_weight_do_not(full: bool) -> None:
    rows = low_rank.updates(7)
    weights = [2.0, 1.0, 0.0, 3.0, 1.5, 0.0, 1.0]
    some = [0, 1, 3, 4, 6]
    for rule in (bz.GeometricMedian(), bz.AgnosticClipping(f=1), bz.Mean()):
        ours = low_rank.flattened(rule(LowRank(rows, full=full), weights=weights))
        near(ours, rule(low_rank.matrix(rows), weights=weights), 1e-6)
        left = LowRank([rows[i] for i in some], full=full)
        near(ours, low_rank.flattened(rule(left, weights=[weights[i] for i in some])), 1e-6)
