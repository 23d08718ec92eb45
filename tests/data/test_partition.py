"""Partitions: nothing lost, nothing shared, the same for the same seed, and as uneven as asked."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from byzantium.data import partition
from byzantium.data.datasets import load
from byzantium.data.partition import (
    Partition,
    by_label,
    counts,
    dirichlet,
    iid,
    long_tail,
    mixed,
    read,
    tail,
)

EVERY = [
    iid(),
    by_label(),
    dirichlet(alpha=0.01),
    dirichlet(alpha=1),
    mixed(fraction=0),
    mixed(fraction=0.3),
    mixed(fraction=1),
]
every = pytest.mark.parametrize("way", EVERY, ids=str)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    """Labels, a number of workers that they suffice for, and a seed."""
    labels = draw(st.lists(st.integers(0, 6), min_size=1, max_size=60))
    workers = draw(st.integers(1, len(labels)))
    return torch.tensor(labels), workers, draw(st.integers(0, 2**32))


@every
@given(problem=problems())
def test_complete_disjoint_and_nobody_empty(
    way: Partition, problem: tuple[torch.Tensor, int, int]
) -> None:
    labels, workers, seed = problem
    parts = way(labels, workers, seeded(seed))
    assert len(parts) == workers
    assert all(part.dtype == torch.int64 and len(part) for part in parts)
    held = [set(part.tolist()) for part in parts]
    assert set.union(*held) == set(range(len(labels)))
    assert sum(map(len, held)) == len(labels)  # no sample has two owners


@every
@given(problem=problems())
def test_sizes(way: Partition, problem: tuple[torch.Tensor, int, int]) -> None:
    labels, workers, seed = problem
    sizes = [len(part) for part in way(labels, workers, seeded(seed))]
    each = len(labels) / workers
    if way == by_label():
        assert set(sizes) == {math.ceil(each)}
    elif way == iid():
        assert set(sizes) <= {math.floor(each), math.ceil(each)}
    elif "dirichlet" in repr(way):
        assert sum(sizes) == len(labels)
    else:
        assert max(sizes) - min(sizes) <= 2


@every
def test_the_seed_decides(way: Partition) -> None:
    labels = torch.arange(10).repeat(30)
    first, again, other = (way(labels, 7, seeded(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(a.tolist() == b.tolist() for a, b in zip(first, other, strict=True))


@every
def test_the_generator_moves_on(way: Partition) -> None:
    labels, generator = torch.arange(10).repeat(30), seeded()
    first, second = (way(labels, 7, generator) for _ in range(2))
    assert not all(a.tolist() == b.tolist() for a, b in zip(first, second, strict=True))


@every
def test_nothing_is_drawn_from_or_left_in_the_global_generators(way: Partition) -> None:
    before = torch.get_rng_state()
    way(torch.arange(10).repeat(3), 4, seeded())
    assert torch.equal(torch.get_rng_state(), before)


# iid


def test_iid_gives_everyone_nearly_the_same_classes() -> None:
    labels = torch.arange(10).repeat_interleave(1000)
    table = counts(iid()(labels, 10, seeded()), labels, 10)
    # A hypergeometric count of mean 100 and standard deviation 9.
    assert 55 < table.min() < table.max() < 145


# by_label


def test_by_label_is_sort_and_cut() -> None:
    labels = torch.tensor([2, 0, 1, 2, 0, 1, 2, 0])
    parts = by_label()(labels, 4, seeded())
    assert [sorted(part.tolist()) for part in parts] == [[1, 4], [2, 7], [0, 5], [3, 6]]


def test_by_label_pads_the_last_with_its_own() -> None:
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    parts = by_label()(labels, 3, seeded())
    assert [sorted(part.tolist()) for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 6, 6]]


def test_by_label_pads_evenly_where_the_last_would_have_nothing() -> None:
    """Five workers, six samples: chunks of two would leave two workers without any."""
    parts = by_label()(torch.tensor([0, 0, 1, 1, 2, 2]), 5, seeded())
    assert [sorted(part.tolist()) for part in parts] == [[0, 0], [1, 1], [2, 2], [3, 3], [4, 5]]


@pytest.mark.parametrize("workers", [10, 15, 20, 53])
def test_by_label_gives_few_labels_to_each(workers: int) -> None:
    labels = load("digits").train_y
    table = counts(by_label()(labels, workers, seeded()), labels, 10)
    held = (table > 0).sum(dim=1)
    assert held.max() <= (3 if workers == 10 else 2)
    assert (table > 0).int().argmax(dim=1).diff().min() >= 0  # in the order of the labels


def test_by_label_shuffles_inside_a_worker() -> None:
    part = by_label()(torch.zeros(100, dtype=torch.int64), 1, seeded())[0]
    assert part.tolist() != sorted(part.tolist()) == list(range(100))


# dirichlet


def test_a_huge_alpha_is_nearly_even() -> None:
    labels = torch.arange(10).repeat_interleave(500)
    for alpha in (1e6, 1.7e308):
        table = counts(dirichlet(alpha)(labels, 10, seeded()), labels, 10)
        assert 48 <= table.min() <= table.max() <= 52


@pytest.mark.parametrize("alpha", [1e-4, 1e-300])
def test_a_tiny_alpha_gives_a_class_to_one_worker(alpha: float) -> None:
    labels = torch.arange(10).repeat_interleave(500)
    owners = set()
    for seed in range(5):
        table = counts(dirichlet(alpha)(labels, 10, seeded(seed)), labels, 10)
        assert table.max(dim=0).values.min() >= 490  # up to ten moved to those without any
        owners |= set(table.argmax(dim=0).tolist())
    assert len(owners) > 5  # not always the same ones


def test_shares_have_the_variance_of_dirichlet() -> None:
    """For alpha each, of k: mean 1/k, variance (k - 1) / (k² (k alpha + 1))."""
    k, alpha = 4, 0.5
    labels = torch.arange(300).repeat_interleave(200)
    shares = counts(dirichlet(alpha)(labels, k, seeded()), labels, 300) / 200
    assert abs(float(shares.mean()) - 1 / k) < 1e-6
    variance = (k - 1) / (k**2 * (k * alpha + 1))
    assert abs(float(shares.var()) / variance - 1) < 0.15


def test_whoever_has_nothing_takes_one_from_the_largest() -> None:
    labels = torch.zeros(50, dtype=torch.int64)
    sizes = sorted(len(part) for part in dirichlet(1e-9)(labels, 10, seeded()))
    assert sizes == [1] * 9 + [41]


# mixed


def test_mixed_has_the_two_as_its_ends() -> None:
    labels = load("digits").train_y
    sorted_only = counts(mixed(0)(labels, 20, seeded()), labels, 10)
    assert torch.equal(sorted_only, counts(by_label()(labels, 20, seeded()), labels, 10))
    sizes = [len(part) for part in mixed(1)(labels, 20, seeded())]
    assert sizes == [len(part) for part in iid()(labels, 20, seeded())]


def test_mixed_is_that_much_iid() -> None:
    """Of its own label a worker holds the sorted part and its share of the rest."""
    labels = torch.arange(10).repeat_interleave(1000)
    table = counts(mixed(0.4)(labels, 10, seeded()), labels, 10)
    others = 1 - table.diagonal().sum() / len(labels)
    assert abs(float(others) - 0.4 * 0.9) < 0.03


# long_tail


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    gamma=st.floats(1, 1000),
    seed=st.integers(0, 99),
)
def test_a_long_tail_keeps_the_first_of_each_class(
    sizes: list[int], gamma: float, seed: int
) -> None:
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=seeded(seed))]
    chosen = tail(labels, gamma)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    for label, size in enumerate(sizes):
        mine = [i for i in chosen.tolist() if labels[i] == label]
        exact = size * gamma ** (-label / max(1, len(sizes) - 1))
        assert max(1, exact - 1) <= len(mine) <= max(1, exact) + 1e-5
        assert mine == (labels == label).nonzero().flatten().tolist()[: len(mine)]


def test_the_long_tail_of_the_paper_halves_exactly() -> None:
    labels = torch.arange(10).repeat_interleave(5120)
    kept = labels[tail(labels, gamma=512)].bincount()
    assert kept.tolist() == [5120 >> i for i in range(10)]


def test_gamma_one_keeps_everything() -> None:
    labels = torch.tensor([3, 0, 0, 2])  # class 1 has no sample
    assert tail(labels, gamma=1).tolist() == [0, 1, 2, 3]


def test_a_long_tail_thins_what_is_learnt_from_and_what_is_tested_with() -> None:
    data = load("digits")
    thin = long_tail(data, gamma=512)
    for x, y, all_x, all_y in (
        (thin.train_x, thin.train_y, data.train_x, data.train_y),
        (thin.test_x, thin.test_y, data.test_x, data.test_y),
    ):
        expected = [max(1, int(count * 0.5**i)) for i, count in enumerate(all_y.bincount())]
        assert y.bincount().tolist() == expected
        assert x[y == 3].equal(all_x[all_y == 3][: expected[3]])
    assert thin.name != data.name  # a checkpoint of the one is not for the other


# Notation.


@pytest.mark.parametrize(
    ("text", "notation"),
    [
        ("iid", "iid()"),
        ("by_label", "by_label()"),
        (" by_label() ", "by_label()"),
        ("dirichlet(alpha=0.1)", "dirichlet(alpha=0.1)"),
        ("dirichlet(0.1)", "dirichlet(alpha=0.1)"),
        ("dirichlet(1.0)", "dirichlet(alpha=1)"),
        ("dirichlet(0.12345678901)", "dirichlet(alpha=0.12345678901)"),
        ("dirichlet(1e-9)", "dirichlet(alpha=1e-09)"),
        ("mixed(fraction=0.5)", "mixed(fraction=0.5)"),
        ("mixed(0)", "mixed(fraction=0)"),
    ],
)
def test_text_to_partition_and_back(text: str, notation: str) -> None:
    assert repr(read(text)) == notation
    assert read(notation) == read(text)


def test_equal_by_value_and_fit_for_sets() -> None:
    for one, two in itertools.combinations([*EVERY, dirichlet(1.5), mixed(0.31)], 2):
        assert one != two
    assert len({dirichlet(1), dirichlet(1.0), read("dirichlet(1)")}) == 1


@every
def test_it_travels_to_another_process_and_back(way: Partition) -> None:
    labels = torch.arange(10).repeat(5)
    back = pickle.loads(pickle.dumps(way))
    assert back == way
    pairs = zip(back(labels, 3, seeded()), way(labels, 3, seeded()), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_partition_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        iid().notation = "by_label()"  # type: ignore[misc]


THREE = torch.tensor([0, 1, 2])
ERRORS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: dirichlet(0), ValueError, "dirichlet needs alpha > 0, got alpha=0"),
    (lambda: dirichlet(-0.5), ValueError, "dirichlet needs alpha > 0, got alpha=-0.5"),
    (lambda: dirichlet(math.nan), ValueError, "alpha > 0, got alpha=nan"),
    (lambda: dirichlet(math.inf), ValueError, "a finite alpha, got alpha=inf"),
    (lambda: dirichlet("1"), TypeError, "dirichlet needs a number for alpha, got alpha='1'"),  # type: ignore[arg-type]
    (lambda: mixed(-0.1), ValueError, "mixed needs 0 <= fraction <= 1, got fraction=-0.1"),
    (lambda: mixed(1.1), ValueError, "mixed needs 0 <= fraction <= 1, got fraction=1.1"),
    (lambda: mixed(math.nan), ValueError, "0 <= fraction <= 1, got fraction=nan"),
    (lambda: mixed(True), TypeError, "mixed needs a number for fraction, got fraction=True"),
    (lambda: tail(THREE, 0.5), ValueError, "tail needs gamma >= 1, got gamma=0"),
    (lambda: tail(THREE, math.nan), ValueError, "gamma >= 1, got gamma=nan"),
    (
        lambda: iid()(THREE, 0, seeded()),
        ValueError,
        "iid() needs workers >= 1, got workers=0",
    ),
    (
        lambda: dirichlet(1)(THREE, 4, seeded()),
        ValueError,
        "dirichlet(alpha=1) needs from 1 to 3 workers for 3 samples, got workers=4",
    ),
    (
        lambda: iid()(THREE, 1.5, seeded()),  # type: ignore[arg-type]
        TypeError,
        "iid() needs a whole number for workers, got workers=1.5",
    ),
    (
        lambda: by_label()(THREE.float(), 1, seeded()),
        ValueError,
        "a whole number for each sample as labels, got torch.float32 of shape (3,)",
    ),
    (
        lambda: by_label()(THREE[None], 1, seeded()),
        ValueError,
        "a whole number for each sample as labels, got torch.int64 of shape (1, 3)",
    ),
    (
        lambda: iid()(THREE, 1, 7),  # type: ignore[arg-type]
        TypeError,
        "iid() needs a torch.Generator as generator, got an int",
    ),
    (
        lambda: read("dirichlt(0.1)"),
        ValueError,
        "'dirichlt(0.1)' names 'dirichlt', which does not exist; did you mean 'dirichlet'?",
    ),
    (lambda: read("by-label"), ValueError, "'by-label'"),
    (lambda: read("dirichlet"), ValueError, "'dirichlet()' lacks the argument 'alpha'"),
    (lambda: read("dirichlet(beta=1)"), ValueError, "the argument 'beta', which it does not have"),
    (lambda: read("iid(1)"), ValueError, "gives iid 1 values, but it takes at most 0"),
    (lambda: read("mixed(2)"), ValueError, "mixed needs 0 <= fraction <= 1, got fraction=2"),
    (lambda: read("dirichlet(0.1"), ValueError, "is not of the form 'name(argument=value)'"),
    (lambda: read(""), ValueError, "'' is not of the form 'name(argument=value)'"),
    (lambda: read("iid() >> iid()"), ValueError, "is not of the form 'name(argument=value)'"),
    (lambda: read("__import__('os')"), ValueError, "names '__import__', which does not exist"),
    (lambda: read(7), TypeError, "is needed, got an int"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("attempt", "kind", "sentence"), ERRORS, ids=lambda x: x[:60] if isinstance(x, str) else None
)
def test_the_sentence(attempt: Callable[[], object], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=re.escape(sentence)) as error:
        attempt()
    assert "\n" not in str(error.value)


# To look at.


def test_counts_are_who_holds_what() -> None:
    labels = torch.tensor([0, 2, 2, 1])
    table = counts([torch.tensor([1, 2, 2]), torch.tensor([0])], labels, classes=4)
    assert table.tolist() == [[0, 0, 3, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("workers", [2, 70])
def test_the_picture_is_a_picture(tmp_path: Path, workers: int) -> None:
    labels = torch.arange(3).repeat(40)
    partition.picture(iid()(labels, workers, seeded()), labels, tmp_path / "who.png")
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")
