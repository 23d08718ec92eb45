"""Robust all-reduce, on ranks in processes of their own that talk over gloo."""

from __future__ import annotations

import copy
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import inputs
import members
import pytest
import torch
import world
from agreement import agree
from filelock import FileLock
from jail import jailed, needs_jail
from members import N
from paths import ROOT, SUPPORT
from threads import torch_threads
from torch import Tensor

import byzantium as bz
from byzantium.engines.distributed.reduce import robust_all_reduce

pytestmark = needs_jail
TESTS = SUPPORT
Seen = list[dict[str, Any]]


def visit(n: int, scenario: str, folder: Path) -> Seen:
    """What each of n ranks saw. Where tests run in several processes, one of them goes there."""
    folder = folder / scenario
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            done = jailed([sys.executable, TESTS / "world.py", str(n), scenario, folder])
            assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(n)]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Seen]:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    return lambda n, scenario: visit(n, scenario, shared)


def same(found: Any) -> Any:
    """What all ranks found, when it is the same to the bit."""
    first = found[0]
    if isinstance(first, Tensor):
        assert all(_bits(one) == _bits(first) for one in found)
    elif isinstance(first, list):
        return [same([one[k] for one in found]) for k in range(len(first))]
    else:
        assert all(one == first for one in found)
    return first


def _bits(tensor: Tensor) -> tuple[torch.dtype, list[int]]:
    return tensor.dtype, tensor.contiguous().view(torch.uint8).tolist()


@pytest.mark.parametrize(
    ("scenario", "rules"),
    [
        pytest.param("sweep", world.BUCKETED, id="rules alone and behind buckets"),
        pytest.param("whole sweep", members.BY_COLUMNS, id="all", marks=pytest.mark.slow),
    ],
)
def test_every_rule_and_pipeline_is_what_it_is_in_one_process(
    scenario: str, rules: list[members.Rule], worlds: Callable[[int, str], Seen]
) -> None:
    """And all ranks have the same bits, though each draws with a generator of its own."""
    seen = worlds(N, scenario)
    X = inputs.heterogeneous(N, 90)
    for k, member in enumerate(rules):
        ours = same([one[str(k)] for one in seen])
        agree(member, ours, member.fresh()(X, world.seeded()))
        # The same where one vector, which is not finite, is set aside or is one too many.
        spoiled, ours = world.spoiled(k, N), same([one[f"{k} spoiled"] for one in seen])
        theirs = world.outcome(partial(member.fresh(), spoiled, world.seeded()))
        if isinstance(theirs, str):
            assert ours == theirs
        else:
            agree(member, ours, theirs)
        for rank, one in enumerate(seen):
            drawn = world.seeded(7 + rank)
            world.outcome(partial(member.fresh(), spoiled, drawn))
            assert torch.equal(one[f"{k} drawn"], drawn.get_state())


def test_rows_whose_squares_underflow_are_what_they_are_in_one_process(
    worlds: Callable[[int, str], Seen],
) -> None:
    seen, X, larger = worlds(9, "tiny"), world.tiny(9), 2.0**570
    for k, rule in enumerate(world.TINY):
        theirs = copy.deepcopy(rule).explain(X)
        found, weights, mixing = same([one[f"{k} explained"] for one in seen])
        assert torch.equal(same([one[str(k)] for one in seen]), found)
        assert torch.allclose(found * larger, theirs.aggregate * larger, rtol=1e-9, atol=1e-9)
        assert torch.allclose(weights, theirs.weights, atol=1e-9)
        assert torch.allclose(mixing, theirs.mixing, atol=1e-9)
        # All but the two bad ones are at most 13 from zero, in these units.
        assert float((found * larger).norm()) <= 13, rule


FORMS = [
    pytest.param(9, "forms", [members.Rule(rule, None) for rule in world.FEW], id="a few rules"),  # type: ignore[arg-type]
    pytest.param(N, "all forms", members.RULES_BY_COLUMNS, id="every rule", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("n", "scenario", "rules"), FORMS)
def test_any_length_dtype_and_mode_will_do(
    n: int, scenario: str, rules: list[members.Rule], worlds: Callable[[int, str], Seen]
) -> None:
    seen = worlds(n, scenario)
    for k, member in enumerate(rules):
        for d in world.LENGTHS:
            for dtype in world.DTYPES:
                ours = same([one[f"{k} {d} {dtype}"] for one in seen])
                X = inputs.heterogeneous(n, d).to(dtype)
                assert ours.dtype == dtype
                agree(member, ours, member.fresh()(X))
        X, rule = inputs.heterogeneous(n, 61), bz.Bucketing(s=2) >> member.fresh()
        report = (bz.Bucketing(s=2) >> member.fresh()).explain(X, world.seeded())
        theirs = [report.aggregate, report.weights, report.mixing]
        for one, other in zip(same([one[f"{k} explained"] for one in seen]), theirs, strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-12)
        generator = world.seeded()
        ours = same([one[f"{k} replicated"] for one in seen])
        assert torch.equal(ours, rule(X, generator))
        assert torch.equal(seen[0][f"{k} drawn"], generator.get_state())


# -- what may be wrong --------------------------------------------------------------------------

RANKS = 5
SENTENCES = {
    "rule": "disagree on what to aggregate: rule Krum(f=1) on ranks 0, 1, 2, 3 and Median()",
    "length": "(40,) of torch.float64 on ranks 0, 1, 2, 3 and (39,) of torch.float64 on rank 4",
    "dtype": "(40,) of torch.float64 on ranks 0, 1, 2, 3 and (40,) of torch.float32 on rank 4",
    "shape": "(1, 40) of torch.float64 on rank 4",
    "kind": "a list on rank 4",
    "generator": "an int on rank 4",
    "out": "out unknown on ranks 0, 1, 2, 3 and (39,) of torch.float32 on rank 4",
    "mode": "replicated False on ranks 0, 1, 2, 3 and True on rank 4",
    "state": "state none on ranks 0, 1, 2, 3 and center (40,)",
    "all whole numbers": "one dense vector (d,) of floats, got (40,) of torch.int64",
    "no rule": "rule must be an Aggregator, got a builtin_function_or_method",
    "too few": "Krum(f=5) needs at least 2f + 3 = 13 vectors, got 5",
    "timeout": "robust_all_reduce needs timeout > 0, got timeout=0.0",
    "whole matrix": "Largest() needs whole vectors, but here each machine holds only some columns",
    "base": "vectors of several ranks take no base: each rank subtracts it from its own",
    "two bad False": "but 2 are unusable: workers 1, 3 (not finite",
    "two bad True": "but 2 are unusable: workers 1, 3 (not finite",
    "no weights": "5 vectors, and no weights",
}


@pytest.fixture(scope="module")
def awkward(worlds: Callable[[int, str], Seen]) -> Seen:
    return worlds(RANKS, "awkward")


@pytest.mark.parametrize("case", SENTENCES)
def test_what_is_wrong_anywhere_is_one_sentence_everywhere(case: str, awkward: Seen) -> None:
    assert SENTENCES[case] in same([one[case] for one in awkward])


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize(("case", "bad"), [("one bad", 2), ("one huge", 4)])
def test_a_rank_that_sends_nonsense_is_rejected_as_a_worker(
    case: str, bad: int, replicated: bool, awkward: Seen
) -> None:
    X = inputs.gaussian(RANKS, 40)
    X[bad, -1] = torch.nan
    aggregate, weights, rejected = same([one[f"{case} {replicated}"] for one in awkward])
    report = bz.Krum(f=1).explain(X)
    assert torch.equal(aggregate, report.aggregate)
    assert torch.equal(weights, report.weights)
    assert rejected.tolist() == [bad]
    median = same([one[f"{case} {replicated} median"] for one in awkward])
    assert torch.equal(median, bz.TrimmedMean(f=1)(X))


# How often the others hear from the first rank: once that all agree, and once what was decided;
# before that, what a mixing is and what was found, if the first rank needs the others again.
HEARD = {
    "as usual": 2,
    "about another row": 4,
    "what cancels": 5,
    "all the same": 5,
    "without looking": 2,
}


@pytest.mark.parametrize("case", HEARD)
def test_the_first_rank_decides_and_tells_no_more_than_it_must(case: str, awkward: Seen) -> None:
    rule, X = world.decisions(RANKS)[case]
    aggregate, weights, heard = same([one[case] for one in awkward])
    report = rule.explain(X)
    assert torch.allclose(aggregate, report.aggregate, rtol=1e-12, atol=1e-12)
    assert torch.allclose(weights, report.weights, rtol=1e-12, atol=1e-12)
    assert same([one[f"{case}: notes"] for one in awkward]) == list(report.notes)
    assert ("cancel" in "".join(report.notes)) == (case == "what cancels")
    assert int(heard) == HEARD[case]


def test_a_rule_that_needs_the_matrix_works_where_each_rank_has_it(awkward: Seen) -> None:
    expected = inputs.gaussian(RANKS, 40).max(dim=0).values
    assert torch.equal(same([one["whole matrix replicated"] for one in awkward]), expected)


@pytest.mark.parametrize("kind", ["", "chunks "])
def test_a_rule_with_a_memory_goes_on_in_the_next_round(kind: str, awkward: Seen) -> None:
    X, rule = inputs.gaussian(RANKS, 40), bz.CenteredClipping(radius=1.0)
    expected = [rule(X * k) for k in (1, 2, 3)]
    found = same([one[f"{kind}clipping"] for one in awkward])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    if not kind:
        assert torch.equal(same([one["centre"] for one in awkward]), found[-1])


def test_the_result_is_written_where_it_is_wanted(awkward: Seen) -> None:
    X = inputs.gaussian(RANKS, 40)
    for found, rule in zip(same([one["places"] for one in awkward]), world.FEW, strict=True):
        assert torch.allclose(found, copy.deepcopy(rule)(X), rtol=1e-12, atol=1e-12)


def test_an_error_leaves_the_vector_as_it_was(awkward: Seen) -> None:
    assert "2 are unusable: workers 1, 3" in same([one["too many"] for one in awkward])
    assert same([one["kept"] for one in awkward]) is True


def test_columns_may_travel_in_many_chunks(awkward: Seen) -> None:
    X = inputs.gaussian(RANKS, 40)
    found = same([one["chunks"] for one in awkward])
    assert torch.allclose(found, bz.GeometricMedian()(X), rtol=1e-12, atol=1e-12)
    assert torch.equal(same([one["chunks median"] for one in awkward]), bz.Median()(X))


def test_a_group_is_some_of_the_ranks(awkward: Seen) -> None:
    inside, outside = [1, 2, 4], [0, 3]
    expected = bz.Median()(inputs.gaussian(RANKS, 40)[inside])
    assert torch.equal(same([awkward[rank]["group"] for rank in inside]), expected)
    assert "is not a member" in same([awkward[rank]["group"] for rank in outside])


def test_the_vector_may_be_a_view_and_is_not_changed(awkward: Seen) -> None:
    expected = bz.Krum(f=1)(inputs.gaussian(RANKS, 40)[:, ::2])
    assert torch.equal(same([one["a view"] for one in awkward]), expected)
    assert same([one["unchanged"] for one in awkward])


@pytest.mark.parametrize(("case", "dtype"), [("", torch.float64), (" half", torch.float16)])
def test_the_result_may_take_the_place_of_the_vector(
    case: str, dtype: torch.dtype, awkward: Seen
) -> None:
    """The first aggregate is then what each rank brings to the second."""
    found, written = same([one[f"in place{case}"] for one in awkward])
    assert torch.equal(found, bz.Krum(f=1)(inputs.gaussian(RANKS, 40).to(dtype)))
    assert written.all()


def test_without_a_process_group_the_error_says_how_to_get_one() -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group first"):
        robust_all_reduce(torch.ones(3), bz.Median())


# -- training -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(worlds: Callable[[int, str], Seen]) -> Iterator[Seen]:
    """One thread here as there: by how many there are, gradients are rounded."""
    with torch_threads(1):
        yield worlds(RANKS, "trained")


def in_one_process(rule: bz.Aggregator, rooted: bool = False) -> Tensor:
    """What the training must come to."""
    model, momentum = world.network(), bz.learning.Momentum(0.9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    workers = [bz.learning.Momentum(0.9) for _ in range(RANKS)]
    for step in range(4):
        rows = []
        for rank, worker in enumerate(workers):
            world.gradient_of(model, rank, step)
            gradient = torch.cat([torch.as_tensor(p.grad).reshape(-1) for p in model.parameters()])
            rows.append(worker.update(gradient))
        sizes = [parameter.numel() for parameter in model.parameters()]
        root = world.root_at(model, momentum) if rooted else None
        pieces = torch.split(rule(torch.stack(rows), root=root), sizes)
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("way", ["by hand", "hook", "in ddp"])
def test_training_by_krum_of_the_whole_gradient_is_what_it_is_in_one_process(
    way: str, trained: Seen
) -> None:
    """Worker momentum included; inside DDP through several buckets."""
    assert trained[0]["buckets"] >= 3
    ours = same([one[f"krum {way}"] for one in trained])
    assert torch.equal(ours, in_one_process(bz.Krum(f=1)))


@pytest.mark.parametrize("way", ["by hand", "hook", "in ddp"])
def test_a_centre_is_the_same_however_ddp_orders_its_buckets(way: str, trained: Seen) -> None:
    ours = same([one[f"clipping {way}"] for one in trained])
    expected = in_one_process(bz.CenteredClipping(radius=0.5))
    assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_krum_of_each_bucket_would_be_something_else(trained: Seen) -> None:
    by_bucket = same([one["krum by bucket"] for one in trained])
    assert not torch.allclose(by_bucket, trained[0]["krum in ddp"], rtol=1e-3, atol=1e-3)


def test_parameters_may_lack_a_gradient_and_differ_in_dtype(trained: Seen) -> None:
    first, wide, unused = same([one["odd"] for one in trained])
    assert first.tolist() == [2.0] * 3
    assert wide.dtype == torch.float64
    assert wide.tolist() == [[4.0, 4.0]] * 2
    assert unused.tolist() == [0.0] * 3
    assert same([one["kept"] for one in trained]) == [True, True]
    assert "no parameter to train" in same([one["nothing"] for one in trained])


# -- with a root gradient -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rooted(worlds: Callable[[int, str], Seen]) -> Iterator[Seen]:
    with torch_threads(1):
        yield worlds(RANKS, "rooted")


def test_rules_with_a_root_are_what_they_are_in_one_process(rooted: Seen) -> None:
    X = inputs.heterogeneous(RANKS, 90)
    root = world.root_of(X)
    for k, rule in enumerate(world.ROOTED):
        report = rule.explain(X, world.seeded(), root=root)
        for name in (str(k), f"{k} replicated"):
            ours = same([one[name] for one in rooted])
            assert torch.allclose(ours, report.aggregate, rtol=1e-9, atol=1e-12), rule
        aggregate, weights = same([one[f"{k} explained"] for one in rooted])
        assert torch.equal(aggregate, same([one[str(k)] for one in rooted]))
        assert torch.allclose(weights, report.weights, rtol=1e-9, atol=1e-12)
        for dtype in world.DTYPES:
            ours = same([one[f"{k} {dtype}"] for one in rooted])
            theirs = rule(X.to(dtype), world.seeded(), root=root.to(dtype))
            assert ours.dtype == dtype
            assert torch.allclose(ours.double(), theirs.double(), rtol=2e-2, atol=1e-2), rule
        ours = same([one[f"{k} spoiled"] for one in rooted])
        theirs = rule(world.spoiled(k, RANKS), world.seeded(), root=root)
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), rule
        # No more messages than Krum: that all agree, what a mixing drew, and the decision.
        assert same([one[f"{k} heard"] for one in rooted]) <= 2 + len(rule.stages)
    assert same([one["0 heard"] for one in rooted]) == HEARD["as usual"]
    found, expected = same([one["chunks"] for one in rooted]), bz.RootMatching(f=1)(X, root=root)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(same([one["unused"] for one in rooted]), bz.Krum(f=1)(X))


@pytest.mark.parametrize("mode", ["", " replicated"])
@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("missing", "needs the root gradient, root="),
        ("missing on one", r"the ranks disagree .*: root .* on ranks 0, 1, 2, 3 and .* on rank 4"),
        ("different", "the ranks disagree on what to aggregate: root "),
        ("not finite", "the root holds numbers that are not finite"),
        ("length", r"the root gradient must be .*\(90,\) of torch.float64, got \(89,\)"),
        ("shape", r"the root gradient must be .* got \(1, 90\)"),
        ("whole numbers", r"the root gradient must be .* got \(90,\) of torch.int64"),
        ("no tensor", r"the root gradient must be .* got a list"),
    ],
)
def test_a_wrong_root_is_the_same_error_on_all_ranks(
    case: str, told: str, mode: str, rooted: Seen
) -> None:
    assert re.search(told, same([one[f"{case}{mode}"] for one in rooted]))
    assert rooted[0]["still there"].isfinite().all()


@pytest.mark.parametrize("way", ["by hand", "hook", "in ddp"])
def test_training_with_a_root_is_what_it_is_in_one_process(way: str, rooted: Seen) -> None:
    ours = same([one[way] for one in rooted])
    expected = in_one_process(bz.RootMatching(f=1), rooted=True)
    assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(ours, in_one_process(bz.Krum(f=1)), rtol=1e-3, atol=1e-3)


# -- faults, for real ---------------------------------------------------------------------------

TRAIN = ROOT / "examples" / "distributed" / "train.py"
ELASTIC = [
    "--nnodes=1",
    "--nproc-per-node=5",
    "--max-restarts=2",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:29400",
]
# Enough rounds that a run is in their midst when a signal comes.
SHORT = ["--rule", "CenteredClipping(radius=1)", "--rounds", "80", "--every", "10"]


def torchrun(folder: Path, *faults: str, timeout: float = 20) -> tuple[str, set[str]]:
    """What a run printed, and the digests of what its ranks came to.

    faults: the numbers of signals, each for a rank in the midst of training.
    """
    run = [sys.executable, "-m", "torch.distributed.run", *ELASTIC]
    train = [str(TRAIN), *SHORT, "--folder", str(folder), "--timeout", str(timeout)]
    watch = [sys.executable, str(TESTS / "faults.py"), str(folder), *faults, "--"]
    done = jailed(
        [*watch, *run, *train],
        env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr
    digests = re.findall(r"rank \d of 5: digest (\w+)", done.stdout)
    assert len(digests) == 5
    return done.stdout + done.stderr, set(digests)


@pytest.mark.slow
def test_a_run_whose_ranks_die_or_hang_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    told, undisturbed = torchrun(tmp_path / "calm")
    assert len(undisturbed) == 1
    assert "going on" not in told
    for name, signal_ in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        told, disturbed = torchrun(tmp_path / name, str(int(signal_)))
        assert "going on after round" in told
        # Of a rank that died, torchrun may hear before the others do.
        lost = "has lost another rank, which died or did not answer within 20 s" in told
        assert lost or signal_ == signal.SIGKILL
        assert disturbed == undisturbed


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_when_a_rank_is_gone_all_others_say_so_and_end(
    signal_: signal.Signals, tmp_path: Path
) -> None:
    """None is left: the group has torch's time-out of half an hour, and nobody waits so long."""
    done = jailed(
        [sys.executable, TESTS / "world.py", "4", f"lost {int(signal_)}", tmp_path], seconds=120
    )
    told = [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1, 3)]
    for rank, sentence in zip((0, 1, 3), told, strict=True):
        assert f"LostRankError: rank {rank} of 4 has lost another rank" in sentence, done.stderr


# -- with weights of the operator -----------------------------------------------------------------


@pytest.fixture(scope="module")
def weighted(worlds: Callable[[int, str], Seen]) -> Seen:
    return worlds(RANKS, "weighted")


def test_weights_of_ranks_are_what_they_are_in_one_process(weighted: Seen) -> None:
    X, weights = inputs.heterogeneous(RANKS, 90), world.sizes(RANKS)
    X_spoiled = X.clone()
    X_spoiled[1] = torch.nan
    for k, rule in enumerate(world.WEIGHTED):
        report = copy.deepcopy(rule).explain(X, world.seeded(), weights=weights)
        for name in (str(k), f"{k} replicated"):
            ours = same([one[name] for one in weighted])
            assert torch.allclose(ours, report.aggregate, rtol=1e-9, atol=1e-12), rule
        aggregate, counted = same([one[f"{k} explained"] for one in weighted])
        assert torch.equal(aggregate, same([one[str(k)] for one in weighted]))
        assert torch.allclose(counted, report.weights, rtol=1e-9, atol=1e-12)
        theirs = copy.deepcopy(rule)(X_spoiled, world.seeded(), weights=weights)
        ours = same([one[f"{k} spoiled"] for one in weighted])
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), rule
        theirs = copy.deepcopy(rule)(X[1:], world.seeded(), weights=weights[1:])
        ours = same([one[f"{k} without"] for one in weighted])
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12), rule
    assert same([one["still there"] for one in weighted]).isfinite().all()


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("different", "the ranks disagree on what to aggregate: weights 1, 1.5, "),
        ("missing on one", "the ranks disagree on what to aggregate: weights "),
        ("length", f"one number for each of {RANKS} vectors"),
        ("negative", "finite and at least 0, got -1 for vector 0"),
        ("a text", "weights must be a number for each vector, got a str"),
        ("other rule", "takes no weights"),
        ("heavy", "% of the weight; TrimmedMean tolerates less than 50 %"),
    ],
)
def test_wrong_weights_are_the_same_error_on_all_ranks(
    case: str, told: str, weighted: Seen
) -> None:
    assert told in same([one[case] for one in weighted])


def test_every_way_to_train_takes_weights(weighted: Seen) -> None:
    by_hand = same([one["by hand"] for one in weighted])
    assert torch.equal(by_hand, same([one["hook"] for one in weighted]))
    assert torch.allclose(by_hand, same([one["in ddp"] for one in weighted]), atol=1e-6)
