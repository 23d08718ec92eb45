"""Ranks in processes of their own, for the tests: python world.py RANKS SCENARIO FOLDER.

Each rank writes what it saw into the folder; the test compares. The ranks are forked from a process
that has imported everything, so that many of them start in a moment.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import inputs
import members
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import byzantium as bz
from byzantium.engines import distributed
from byzantium.engines.distributed import ranks, shard
from byzantium.engines.distributed.reduce import explain_all_reduce, robust_all_reduce

Seen = dict[str, Any]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
# More columns than ranks, fewer, and none.
LENGTHS = [61, 3, 0]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def outcome(call: Callable[[], object]) -> Any:
    """What comes out, or what an error says."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def told(call: Callable[[], object]) -> str:
    """What an error says."""
    found = outcome(call)
    return found if isinstance(found, str) else "no error"


BUCKETED = members.BY_COLUMNS[: 2 * len(members.RULES)]
# Rules within groups, whose members the first rank draws.
BUCKETED += [
    members.Rule(bz.Hierarchy(4, inner, deal) >> outer, None)  # type: ignore[arg-type]
    for inner, deal, outer in (
        (bz.Krum(f=1), "order", bz.Median()),
        (bz.GeometricMedian(), "random", bz.GeometricMedian()),
    )
]


def swept(rules: Sequence[members.Rule], rank: int, n: int) -> Seen:
    """Each rank draws something else, and what the first one draws counts."""
    seen: Seen = {}
    vector = inputs.heterogeneous(n, 90)[rank]
    for k, member in enumerate(rules):
        seen[str(k)] = robust_all_reduce(vector, member.fresh(), None, seeded(7 + rank))
        drawn = seeded(7 + rank)
        given = spoiled(k, n)[rank], member.fresh(), None, drawn
        seen[f"{k} spoiled"] = outcome(partial(robust_all_reduce, *given))
        seen[f"{k} drawn"] = drawn.get_state()
    return seen


def spoiled(k: int, n: int) -> Tensor:
    """Vectors of which one, each time that of another rank, has one number that is none."""
    X = inputs.heterogeneous(n, 90)
    X[k % n, 7 * k % 90] = torch.nan
    return X


def forms_of(rules: Sequence[bz.Aggregator], rank: int, n: int) -> Seen:
    """All lengths, dtypes and modes."""
    seen: Seen = {}
    for k, rule in enumerate(rules):
        for d in LENGTHS:
            for dtype in DTYPES:
                vector = inputs.heterogeneous(n, d)[rank].to(dtype)
                seen[f"{k} {d} {dtype}"] = robust_all_reduce(vector, copy.deepcopy(rule))
        vector, mixed = inputs.heterogeneous(n, 61)[rank], bz.Bucketing(s=2) >> copy.deepcopy(rule)
        report = explain_all_reduce(vector, copy.deepcopy(mixed), None, seeded())
        seen[f"{k} explained"] = [report.aggregate, report.weights, report.mixing]
        drawn = seeded(7 + rank)
        seen[f"{k} replicated"] = robust_all_reduce(vector, mixed, None, drawn, replicated=True)
        seen[f"{k} drawn"] = drawn.get_state()
    return seen


def tiny(n: int) -> Tensor:
    """Rows whose squares underflow, and two that are a million and 1e300 times larger."""
    X = 2.0**-570 * inputs.gaussian(n, 90)
    X[0] *= 1e6
    X[n // 2] *= 1e300
    return X


TINY = [
    bz.Krum(f=2),
    bz.GeometricMedian(),
    bz.AgnosticClipping(f=2),
    bz.CenteredClipping(radius=2.0**-569),
    bz.NearestNeighborMixing(f=2) >> bz.TrimmedMean(f=2),
    bz.AdaptiveClipping(f=2) >> bz.Krum(f=2),
]


def swept_tiny(rank: int, n: int) -> Seen:
    seen: Seen = {}
    for k, rule in enumerate(TINY):
        report = explain_all_reduce(tiny(n)[rank], copy.deepcopy(rule))
        seen[str(k)] = robust_all_reduce(tiny(n)[rank], copy.deepcopy(rule))
        seen[f"{k} explained"] = [report.aggregate, report.weights, report.mixing]
    return seen


FEW = [bz.Krum(f=1), bz.GeometricMedian(), bz.CenteredClipping(radius=2.0), bz.Median()]


def awkward(rank: int, n: int) -> Seen:
    """What may be wrong, on one rank or on several."""
    seen: Seen = {}
    X = inputs.gaussian(n, 40)
    krum, vector = bz.Krum(f=1), X[rank]
    last = rank == n - 1

    def reduced(*args: Any, **kwargs: Any) -> str:
        return told(lambda: robust_all_reduce(*args, **kwargs))

    seen["rule"] = reduced(vector, bz.Median() if last else krum)
    seen["length"] = reduced(vector[: 40 - last], krum)
    seen["dtype"] = reduced(vector.float() if last else vector, krum)
    seen["shape"] = reduced(vector[None] if last else vector, krum)
    seen["kind"] = reduced(vector.tolist() if last else vector, krum)
    seen["generator"] = reduced(vector, krum, None, 3 if last else None)
    seen["mode"] = reduced(vector, krum, replicated=last)
    clipping = bz.CenteredClipping(radius=1.0)
    if last:
        clipping.load_state_dict({"center": torch.zeros(40)})
    seen["state"] = reduced(vector, clipping)
    seen["all whole numbers"] = reduced(vector.long(), krum)
    seen["no rule"] = reduced(vector, torch.median)
    seen["too few"] = reduced(vector, bz.Krum(f=n))
    seen["timeout"] = reduced(vector, krum, timeout=0)
    # They still understand each other.
    for name, bad in (("one bad", [2]), ("two bad", [1, 3]), ("one huge", [4])):
        mine = vector.clone()
        if rank in bad:
            mine[-1] = 1e200 if name == "one huge" else torch.nan
        for replicated in (False, True):
            key = f"{name} {replicated}"
            seen[key] = reduced(mine, krum, replicated=replicated)
            if len(bad) == 1:
                report = explain_all_reduce(mine, krum, replicated=replicated)
                seen[key] = [report.aggregate, report.weights, torch.tensor(report.rejected)]
                median = robust_all_reduce(mine, bz.TrimmedMean(f=1), replicated=replicated)
                seen[f"{key} median"] = median
    seen["whole matrix"] = reduced(vector, Largest())
    ours = shard.Shard(vector, ranks.Ranks(None, vector.device, 10.0))
    seen["base"] = told(lambda: krum(ours, base=vector))
    seen["whole matrix replicated"] = robust_all_reduce(vector, Largest(), replicated=True)
    # Where the result is written; an error leaves the vector as it was.
    places = [torch.full_like(vector, torch.nan) for _ in FEW]
    for rule, place in zip(FEW, places, strict=True):
        robust_all_reduce(vector, copy.deepcopy(rule), out=place)
    seen["places"] = places
    mine = vector.clone()
    mine[-1] = torch.nan if rank in (1, 3) else mine[-1]
    before = mine.clone()
    seen["too many"] = reduced(mine, bz.TrimmedMean(f=1), out=mine)
    seen["kept"] = torch.equal(mine.nan_to_num(), before.nan_to_num())
    # A state that goes on, and columns in many chunks.
    clipping = bz.CenteredClipping(radius=1.0)
    seen["clipping"] = [robust_all_reduce(vector * k, clipping) for k in (1, 2, 3)]
    seen["centre"] = clipping.state_dict()["center"]
    shard.CHUNK = 17
    seen["chunks"] = robust_all_reduce(vector, bz.GeometricMedian())
    seen["chunks median"] = robust_all_reduce(vector, bz.Median())
    clipping = bz.CenteredClipping(radius=1.0)
    seen["chunks clipping"] = [robust_all_reduce(vector * k, clipping) for k in (1, 2, 3)]
    seen |= decided(rank, n)
    # A group of some ranks; the others are none of its members.
    members_of = [1, 2, 4]
    group = dist.new_group(members_of)
    seen["group"] = (
        robust_all_reduce(vector, bz.Median(), group)
        if rank in members_of
        else reduced(vector, bz.Median(), group)
    )
    for name, dtype in (("in place", torch.float64), ("in place half", torch.float16)):
        mine = vector.to(dtype, copy=True)
        results = [robust_all_reduce(mine, rule, out=mine) for rule in (krum, bz.Median())]
        seen[name] = [mine, torch.tensor([result is mine for result in results])]
    seen["out"] = reduced(vector, krum, out=torch.empty(39) if last else None)
    gradient = vector.clone().requires_grad_()
    result = robust_all_reduce(gradient[::2], krum)
    seen["a view"] = result
    seen["unchanged"] = bool(torch.equal(gradient, vector)) and not result.requires_grad
    return seen


def decisions(n: int) -> dict[str, tuple[bz.Aggregator, Tensor]]:
    """Rules and vectors for which the first rank needs the others more than once, or not at all."""
    X = inputs.gaussian(n, 40)
    away = 1e-6 * X
    away[:, 0] += 10 + 1e-4 * torch.arange(n)
    away[0] = -away[0]  # far from all others
    huge = X.clone()
    huge[-2], huge[-1] = X[-2] + 1e12, X[-1] - 1e12
    return {
        "as usual": (bz.Krum(f=1), X),
        "about another row": (bz.GeometricMedian(), away),
        "what cancels": (Pairs() >> bz.GeometricMedian(), huge),
        "all the same": (
            bz.NearestNeighborMixing(f=1) >> Blend() >> bz.GeometricMedian(),
            X,
        ),
        "without looking": (Fixed(), X),
    }


def decided(rank: int, n: int) -> Seen:
    """What the first rank decides, and how often the others hear from it."""
    seen: Seen = {}
    for name, (rule, X) in decisions(n).items():
        heard.clear()
        report = explain_all_reduce(X[rank], rule)
        seen[name] = [report.aggregate, report.weights, torch.tensor([len(heard)])]
        seen[f"{name}: notes"] = list(report.notes)
    seen["no weights"] = told(lambda: robust_all_reduce(X[rank], Helpless()))
    return seen


heard: list[ranks.Numbers] = []
broadcast = ranks.Ranks.broadcast


def counted(self: ranks.Ranks, numbers: ranks.Numbers) -> ranks.Numbers:
    heard.append(numbers)
    return broadcast(self, numbers)


ranks.Ranks.broadcast = counted  # type: ignore[method-assign]


class Pairs(bz.Mixing):
    """The means of two neighbours each; the first stays alone where there is one too many."""

    def matrix(self, geometry: bz.Geometry, generator: object) -> np.ndarray:
        matrix = np.zeros((self.rows(geometry.n), geometry.n))
        for i in range(geometry.n):
            matrix[(i + geometry.n % 2) // 2, i] = 1
        return matrix / matrix.sum(axis=1, keepdims=True)

    def rows(self, n: int) -> int:
        return (n + 1) // 2


class Blend(bz.Mixing):
    """Each is the mean of all."""

    def matrix(self, geometry: bz.Geometry, generator: object) -> np.ndarray:
        return np.full((geometry.n, geometry.n), 1 / geometry.n)


class Fixed(bz.Weighting):
    """Weights that need no distances."""

    def weights(self, geometry: bz.Geometry) -> np.ndarray:
        return geometry.at(1)


class Helpless(bz.Weighting):
    """A rule that looks, and then does not know."""

    def weights(self, geometry: bz.Geometry) -> np.ndarray:
        raise bz.ByzantiumError(f"{len(geometry.squared_distances)} vectors, and no weights")


def gradient_of(model: torch.nn.Module, rank: int, step: int) -> None:
    """What a worker's batch makes of a model; those of the last rank are nonsense."""
    x = inputs.gaussian(6, 20, seed=100 * step + rank).float()
    y = inputs.gaussian(6, 3, seed=100 * step + rank + 50).float()
    loss = (model(x) - y * (1 + rank)).square().mean()
    model.zero_grad()
    loss.backward()


def network() -> torch.nn.Sequential:
    torch.manual_seed(3)
    sizes = [20, 60, 50, 40, 3]
    layers = [torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return torch.nn.Sequential(*layers)


def trained(rank: int, n: int) -> Seen:
    """The same training by hand, by a hook of the optimizer, inside DDP; and by bucket."""
    seen: Seen = {}
    rules = {"krum": bz.Krum(f=1), "clipping": bz.CenteredClipping(radius=0.5)}

    def steps(name: str, model: torch.nn.Module, aggregate: Callable[[], None]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if name.endswith("hook"):
            rule = copy.deepcopy(rules[name.split()[0]])
            momentum = bz.learning.Momentum(0.9)
            distributed.aggregate_before_step(optimizer, rule, momentum=momentum)
        for step in range(4):
            gradient_of(model, rank, step)
            aggregate()
            optimizer.step()
        seen[name] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def in_ddp() -> torch.nn.parallel.DistributedDataParallel:
        # A bucket for each layer, about.
        return torch.nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.004)

    for kind, rule in rules.items():
        by_hand, model = copy.deepcopy(rule), network()
        momentum = bz.learning.Momentum(0.9)
        steps(
            f"{kind} by hand",
            model,
            lambda m=model, r=by_hand, w=momentum: distributed.aggregate_gradients(  # type: ignore[misc]
                m.parameters(), r, momentum=w
            ),
        )
        steps(f"{kind} hook", network(), lambda: None)
        wrapped = in_ddp()
        distributed.aggregate_in_ddp(
            wrapped, copy.deepcopy(rule), momentum=bz.learning.Momentum(0.9)
        )
        steps(f"{kind} in ddp", wrapped, lambda: None)

    buckets: list[int] = []

    def by_bucket(_: object, bucket: Any) -> Any:
        buckets.append(bucket.index())
        future: Any = torch.futures.Future()
        future.set_result(robust_all_reduce(bucket.buffer(), bz.Krum(f=1)))
        return future

    wrapped = in_ddp()
    by_bucket.__annotations__.clear()  # DDP compares them with classes
    wrapped.register_comm_hook(None, by_bucket)
    steps("krum by bucket", wrapped, lambda: None)
    seen["buckets"] = max(buckets) + 1
    # A parameter that nobody uses, one that is not trained, and one of another dtype.
    odd = [torch.nn.Parameter(torch.full((3,), 1.0 + rank)) for _ in range(4)]
    odd[1].requires_grad_(False)
    odd[2] = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    odd[0].grad = torch.full((3,), float(rank))
    odd[2].grad = torch.full((2, 2), 2.0 * rank, dtype=torch.float64)
    kept = odd[0].grad
    distributed.aggregate_gradients(iter(odd), bz.Median())
    seen["odd"] = [odd[0].grad, odd[2].grad, odd[3].grad]
    seen["kept"] = [kept is odd[0].grad, odd[1].grad is None]
    seen["nothing"] = told(lambda: distributed.aggregate_gradients([odd[1]], bz.Median()))
    return seen


ROOTED = [
    bz.RootMatching(f=1),
    bz.RootMatching(f=4),
    bz.RootMatching(f=1, guard=True),
    bz.FLTrust(),
    bz.Bucketing(s=2) >> bz.RootMatching(f=1),
    bz.RankClipping(f=1) >> bz.FLTrust(),
]


def root_of(X: Tensor) -> Tensor:
    """A root gradient: the mean of the vectors and some noise."""
    return X.mean(dim=0) + 0.3 * inputs.gaussian(1, X.shape[1], seed=77)[0].to(X)


def rooted(rank: int, n: int) -> Seen:
    """Rules that need a root gradient: in all forms, and where it is wrong."""
    seen: Seen = {}
    X, last = inputs.heterogeneous(n, 90), rank == n - 1
    root, matching = root_of(X), bz.RootMatching(f=1)
    for k, rule in enumerate(ROOTED):
        heard.clear()
        seen[str(k)] = robust_all_reduce(X[rank], rule, None, seeded(), root=root)
        seen[f"{k} heard"] = len(heard)
        report = explain_all_reduce(X[rank], rule, None, seeded(), root=root)
        seen[f"{k} explained"] = [report.aggregate, report.weights]
        options: dict[str, Any] = {"root": root, "replicated": True}
        seen[f"{k} replicated"] = robust_all_reduce(X[rank], rule, None, seeded(), **options)
        for dtype in DTYPES:
            mine = X[rank].to(dtype)
            seen[f"{k} {dtype}"] = robust_all_reduce(
                mine, rule, None, seeded(), root=root.to(dtype)
            )
        spoiled_X = spoiled(k, n)
        mine = spoiled_X[rank]
        seen[f"{k} spoiled"] = robust_all_reduce(mine, rule, None, seeded(), root=root)

    def reduced(root: Any, rule: bz.Aggregator = matching, **options: Any) -> str:
        return told(lambda: robust_all_reduce(X[rank], rule, root=root, **options))

    ways: dict[str, dict[str, Any]] = {"": {}, " replicated": {"replicated": True}}
    for name, options in ways.items():
        seen[f"missing{name}"] = reduced(None, **options)
        seen[f"missing on one{name}"] = reduced(None if last else root, **options)
        seen[f"different{name}"] = reduced(root + 1e-9 * last, **options)
        seen[f"not finite{name}"] = reduced(root / 0, **options)
        seen[f"length{name}"] = reduced(root[:-1], **options)
        seen[f"shape{name}"] = reduced(root[None], **options)
        seen[f"whole numbers{name}"] = reduced(root.long(), **options)
        seen[f"no tensor{name}"] = reduced(root.tolist(), **options)
    seen["unused"] = robust_all_reduce(X[rank], bz.Krum(f=1), root=root)
    shard.CHUNK = 17
    seen["chunks"] = robust_all_reduce(X[rank], matching, root=root)
    seen["still there"] = robust_all_reduce(X[rank], matching, root=root)
    # A training by hand, by a hook of the optimizer and inside DDP, each with a function.
    for way in ("by hand", "hook", "in ddp"):
        model: torch.nn.Module = network()
        inner, momentum = model, bz.learning.Momentum(0.9)
        given: dict[str, Any] = {
            "momentum": bz.learning.Momentum(0.9),
            "root": partial(root_at, inner, momentum),
        }
        if way == "in ddp":
            model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.004)
            distributed.aggregate_in_ddp(model, matching, **given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if way == "hook":
            distributed.aggregate_before_step(optimizer, matching, **given)
        for step in range(4):
            gradient_of(model, rank, step)
            if way == "by hand":
                distributed.aggregate_gradients(model.parameters(), matching, **given)
            optimizer.step()
        seen[way] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return seen


WEIGHTED: list[bz.Aggregator] = [
    bz.Mean(),
    bz.TrimmedMean(f=1),
    bz.MeaMed(f=1),
    bz.GeometricMedian(),
    bz.CenteredClipping(radius=2.0),
    bz.NearestNeighborMixing(f=1) >> bz.Median(),
    bz.Bucketing(s=2) >> bz.GeometricMedian(),
]


def sizes(n: int) -> list[float]:
    """Weights of n ranks."""
    return [1.0 + k % 3 / 2 for k in range(n)]


def weighted(rank: int, n: int) -> Seen:
    """Rules with weights: in all forms, and where the weights are wrong."""
    seen: Seen = {}
    X, last, weights = inputs.heterogeneous(n, 90), rank == n - 1, sizes(n)
    for k, rule in enumerate(WEIGHTED):
        one: dict[str, Any] = {"weights": weights}
        seen[str(k)] = robust_all_reduce(X[rank], copy.deepcopy(rule), None, seeded(), **one)
        report = explain_all_reduce(X[rank], copy.deepcopy(rule), None, seeded(), **one)
        seen[f"{k} explained"] = [report.aggregate, report.weights]
        seen[f"{k} replicated"] = robust_all_reduce(
            X[rank], copy.deepcopy(rule), None, seeded(), replicated=True, **one
        )
        mine = X[rank] * torch.nan if rank == 1 else X[rank]
        seen[f"{k} spoiled"] = robust_all_reduce(mine, copy.deepcopy(rule), None, seeded(), **one)
        without = [0.0, *weights[1:]]
        seen[f"{k} without"] = robust_all_reduce(
            X[rank], copy.deepcopy(rule), None, seeded(), weights=without
        )

    def reduced(weights: Any, rule: bz.Aggregator) -> str:
        return told(lambda: robust_all_reduce(X[rank], rule, weights=weights))

    median = bz.Median()
    seen["different"] = reduced([*weights[:-1], 9.0] if last else weights, median)
    seen["missing on one"] = reduced(None if last else weights, median)
    seen["length"] = reduced(weights[1:], median)
    seen["negative"] = reduced([-1.0, *weights[1:]], median)
    seen["a text"] = reduced("sizes", median)
    seen["other rule"] = reduced(weights, bz.Krum(f=1))
    seen["heavy"] = reduced([50.0, *weights[1:]], bz.TrimmedMean(f=1))
    seen["still there"] = robust_all_reduce(X[rank], median, weights=weights)
    for way in ("by hand", "hook", "in ddp"):
        model: torch.nn.Module = network()
        if way == "in ddp":
            model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.004)
            distributed.aggregate_in_ddp(model, median, weights=weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if way == "hook":
            distributed.aggregate_before_step(optimizer, median, weights=weights)
        for step in range(2):
            gradient_of(model, rank, step)
            if way == "by hand":
                distributed.aggregate_gradients(model.parameters(), median, weights=weights)
            optimizer.step()
        seen[way] = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return seen


def root_at(model: torch.nn.Module, momentum: bz.learning.Momentum) -> Tensor:
    """The root gradient of a training, with the momentum that workers have."""
    x, y = inputs.gaussian(8, 20, seed=7).float(), inputs.gaussian(8, 3, seed=8).float()
    gradient = bz.learning.root_gradient(model, [(x, y)], torch.nn.functional.mse_loss)
    return momentum.update(gradient)


class Largest(bz.MatrixRule):
    def aggregate(self, updates: Tensor) -> Tensor:
        return updates.max(dim=0).values


SCENARIOS: dict[str, Callable[[int, int], Seen]] = {
    "sweep": partial(swept, BUCKETED),
    "tiny": swept_tiny,
    "whole sweep": partial(swept, members.BY_COLUMNS),
    "forms": partial(forms_of, FEW),
    "all forms": partial(forms_of, [member.rule for member in members.RULES_BY_COLUMNS]),
    "awkward": awkward,
    "trained": trained,
    "rooted": rooted,
    "weighted": weighted,
}


def lost(rank: int, n: int, signal: int, folder: Path) -> None:
    """Rank 2 is gone in the middle of a training; the others write down what they are told.

    Torch's own time-out of half an hour is left as it is.
    """
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=n
    )
    vector = inputs.gaussian(n, 1000)[rank]
    robust_all_reduce(vector, bz.Median())
    if rank == 2:
        os.kill(os.getpid(), signal)

    def go_on() -> None:
        for _ in range(3):
            robust_all_reduce(vector, bz.GeometricMedian(), timeout=5)

    (folder / f"{rank}.txt").write_text(told(go_on))
    sys.exit(0)


def process(rank: int, n: int, scenario: str, folder: Path) -> None:
    torch.set_num_threads(1)
    if scenario.startswith("lost"):
        lost(rank, n, int(scenario.split()[1]), folder)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=n,
        timeout=timedelta(seconds=distributed.TIMEOUT),
    )
    torch.save(SCENARIOS[scenario](rank, n), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(n: int, scenario: str, folder: Path) -> int:
    bz.Median()(torch.ones(3, 2))  # compiled code is loaded once
    bz.Krum(f=0)(torch.ones(3, 2))
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=process, args=(rank, n, scenario, folder)) for rank in range(n)]
    for rank in ranks:
        rank.start()
    for k, rank in enumerate(ranks):
        if scenario.startswith("lost") and k == 2:
            continue
        rank.join()
    if scenario.startswith("lost"):
        ranks[2].kill()
        ranks[2].join()
    return max(abs(rank.exitcode or 0) for rank in ranks)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
