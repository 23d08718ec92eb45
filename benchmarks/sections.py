"""The sections of the bench; each measures and returns rows for a table."""

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from types import ModuleType
from typing import Any

import torch
from contestants import COORDINATE, RADIUS, Entry, entries, floor_of
from model import Figure, Result, Section
from timing import Contestant, interleave
from torch import Tensor

import byzantium as bz

SIZES = (25, 50, 100, 300)
# Rows, and whether each call gets another matrix.
COORDINATES = ((13, True), (13, False), (51, True))
NO_CACHE = 1 << 29  # bytes that fit into no cache
FIRST_CALLS = 3
OFFSET_NORM, SPREAD = 63.0, 1e-3
PROBE = Path(__file__).with_name("probe.py")


@dataclass
class Run:
    """The settings of one run of the bench, and the functions that show its progress."""

    n: int
    d: int
    repeats: int
    only: str
    sizes: tuple[int, ...]
    byzfl: ModuleType | None
    deadline: float  # for rivals
    end: float  # for all optional parts
    step: Callable[[str], None]
    say: Callable[[str], None]

    @property
    def late(self) -> bool:
        return monotonic() > self.deadline

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self.end - monotonic()

    @property
    def long_repeats(self) -> int:
        """How often contestants that take half a second are repeated."""
        return max(1, self.repeats // 3)

    def normal(self, n: int) -> Tensor:
        torch.manual_seed(0)
        return torch.randn(n, self.d)

    def race(
        self, label: str, contestants: dict[str, Contestant]
    ) -> tuple[dict[str, float], dict[str, Any]]:
        seconds, first = interleave(contestants, self.repeats, lambda: self.step(label))
        for name in contestants.keys() - seconds.keys():
            self.say(f"{label} by {name} is omitted: it failed on this input.")
        return seconds, first


def physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def faster(seconds: dict[str, float], rival: str, goal: str | None) -> Figure | None:
    if rival not in seconds:
        return None
    return Figure(f"{rival} / ours", seconds[rival] / seconds["ours"], goal=goal)


def floor_goal(entry: Entry) -> str | None:
    if (entry.rule, entry.mixing) == ("clipping", "bucketing"):
        return "weighting clipping"
    if entry.rule in ("krum", "geometric", "clipping") and entry.mixing != "resampling":
        return "weighting"
    if entry.floor in ("gram and mean", "gram, mixing and mean"):
        return "counted" if entry.mixing != "bucketing" else None
    if entry.mixing == "bucketing" and entry.rule in ("median", "trimmed", "meamed"):
        return "bucket meamed" if entry.rule == "meamed" else "bucket coordinate"
    if entry.mixing:
        return None
    if entry.rule in ("median", "trimmed"):
        return "coordinate51" if entry.n > 25 else "coordinate"
    return "meamed" if entry.rule == "meamed" and entry.n <= 25 else None


def rival_goals(entry: Entry) -> tuple[str | None, str | None]:
    """The goals against straightforward torch and against byzfl."""
    if entry.mixing:
        nearest_mean = (entry.mixing, entry.rule) == ("nearest", "mean")
        return None, "byzfl order" if nearest_mean else None
    to_plain = {"median": "plain order", "trimmed": "plain order", "geometric": "plain geometric"}
    to_byzfl = dict.fromkeys(("median", "trimmed", "meamed"), "byzfl order")
    to_byzfl |= dict.fromkeys(("krum", "geometric"), "byzfl distance") | {"mean": "byzfl mean"}
    return to_plain.get(entry.rule), to_byzfl.get(entry.rule)


def ours_and_floor(entry: Entry, make_input: Callable[[], Tensor]) -> dict[str, Contestant]:
    return {
        "floor": Contestant(floor_of(entry.floor, entry.n), make_input),
        "ours": Contestant(entry.ours(), make_input),
    }


def with_rivals(run: Run, entry: Entry, x: Tensor) -> dict[str, Contestant]:
    group = ours_and_floor(entry, lambda: x)
    if run.late or not entry.has_rivals:
        run.say(f"{entry.name} is measured without rivals, which would take too long.")
        return group
    group["straightforward"] = Contestant(entry.plain(), lambda: list(x))
    call = entry.byzfl(run.byzfl) if run.byzfl else None
    copies = entry.n - entry.f if entry.mixing == "nearest" else 1  # byzfl's mixing gathers these
    if call is not None and copies * x.nbytes < 0.5 * physical_memory():
        # Some of byzfl writes into its input, hence the copy.
        group["byzfl"] = Contestant(call, x.clone, may_fail=True)
    return group


def rules(run: Run) -> Section:
    x, results = run.normal(run.n), []
    for entry in entries(run.n, run.only):
        seconds, first = run.race(entry.name, with_rivals(run, entry, x))
        to_plain, to_byzfl = rival_goals(entry)
        figures = [
            Figure("ours / floor", seconds["ours"] / seconds["floor"], goal=floor_goal(entry)),
            faster(seconds, "straightforward", to_plain),
            faster(seconds, "byzfl", to_byzfl),
        ]
        if "straightforward" in first and not entry.is_random:
            figures.append(Figure("difference", distance(first), ""))
        results.append(Result(entry.name, seconds, [f for f in figures if f]))
    title = f"Rules on a normal matrix of {run.n} x {run.d}"
    return Section("rules", title, results)


def distance(first: dict[str, Any]) -> float:
    """The distance of our result to that of straightforward torch, relative to its norm."""
    theirs: Tensor = first["straightforward"].double()
    return float((first["ours"].double() - theirs).norm() / theirs.norm())


def coordinates(run: Run) -> Section:
    """Rules by coordinate; each call gets another matrix, because one could stay in the cache."""
    results = []
    for n, new in COORDINATES:
        x = run.normal(n)
        matrices = cycle([x, *(x.clone() for _ in range(NO_CACHE // x.nbytes))] if new else [x])
        where = f"n = {n}" if new else f"n = {n}, always the same"
        for entry in by_coordinate(n, run.only):
            group = ours_and_floor(entry, partial(next, matrices))
            seconds, _ = run.race(f"{where}, {entry.name}", group)
            ratio, goal = seconds["ours"] / seconds["floor"], floor_goal(entry) if new else None
            figure = Figure("ours / floor", ratio, goal=goal)
            results.append(Result(f"{entry.name}, {where}", seconds, [figure]))
    sizes = " and ".join(dict.fromkeys(str(n) for n, _ in COORDINATES))
    return Section("coordinates", f"Rules by coordinate at n = {sizes}, d = {run.d}", results)


def by_coordinate(n: int, only: str) -> list[Entry]:
    return [e for e in entries(n, only) if e.rule in COORDINATE and e.mixing is None]


def _explain(rule: Any, x: Tensor) -> Any:
    return rule.explain(x).aggregate


def explain(run: Run) -> Section:
    x, results = run.normal(run.n), []
    for entry in by_coordinate(run.n, run.only):
        rule = entry.ours()
        group = {
            "rule": Contestant(rule, lambda: x),
            "ours": Contestant(partial(_explain, rule), lambda: x),
        }
        seconds, _ = run.race(f"explained, {entry.name}", group)
        figure = Figure("explain / rule", seconds["ours"] / seconds["rule"], goal="explain")
        results.append(Result(entry.name, seconds, [figure]))
    return Section("explain", f"Who counted, by coordinate, {run.n} x {run.d}", results)


def weighted(n: int, only: str) -> dict[str, Any]:
    """The rules that take weights of the operator, by their text."""
    f = max(1, n // 5)
    rules = [
        bz.Mean(),
        bz.GeometricMedian(),
        bz.CenteredClipping(RADIUS),
        bz.AgnosticClipping(f=f),
        bz.NearestNeighborMixing(f=f) >> bz.GeometricMedian(),
        bz.Bucketing(s=2) >> bz.GeometricMedian(),
        bz.Median(),
        bz.TrimmedMean(f=f),
        bz.MeaMed(f=f),
    ]
    return {repr(rule): rule for rule in rules if re.search(only, repr(rule), re.IGNORECASE)}


def weights(run: Run) -> Section:
    """Rules with weights of the operator, over the same rules without; each call reads memory."""
    x, results = run.normal(run.n), []
    matrices = cycle([x, *(x.clone() for _ in range(NO_CACHE // x.nbytes))])
    generator = torch.Generator().manual_seed(0)
    sizes = torch.empty(run.n).log_normal_(0, 0.5, generator=generator)
    for name, rule in weighted(run.n, run.only).items():
        group = {
            "rule": Contestant(copy.deepcopy(rule), partial(next, matrices)),
            "ours": Contestant(partial(rule, weights=sizes), partial(next, matrices)),
        }
        seconds, _ = run.race(f"with weights, {name}", group)
        by_coordinate = rule.knows_weights == "asked"
        goal = "weights by coordinate" if by_coordinate else "weights"
        figure = Figure("with weights / without", seconds["ours"] / seconds["rule"], goal=goal)
        results.append(Result(name, seconds, [figure]))
    return Section("weights", f"With weights of the operator, {run.n} x {run.d}", results)


AFTER = (("median", None), ("krum", None), ("geometric", "bucketing"))


def after_torch(run: Run) -> Section:
    """A rule right after a backward pass, as in a training loop: torch's threads still wait."""
    x, results = run.normal(run.n), []
    weights = torch.randn(512, 512, requires_grad=True)

    def backward() -> None:
        (weights @ weights).relu().sum().backward()  # type: ignore[no-untyped-call]
        weights.grad = None

    for rule, mixing in AFTER:
        entry = Entry(rule, mixing, run.n)
        if not entry.matches(run.only):
            continue
        call = entry.ours()
        times: dict[str, list[float]] = {"alone": [], "ours": []}
        for _ in range(2 * run.repeats):
            for name, before in (("alone", partial(call, x)), ("ours", backward)):
                before()
                start = perf_counter()
                call(x)
                times[name].append(perf_counter() - start)
            run.step(f"after a backward pass, {entry.name}")
        seconds = {name: median(values) for name, values in times.items()}
        figure = Figure("after / alone", seconds["ours"] / seconds["alone"], goal="after")
        results.append(Result(entry.name, seconds, [figure]))
    return Section("after", f"Directly after a backward pass, {run.n} x {run.d}", results)


def comparators(n: int) -> int:
    """How many comparators the median's network of n inputs has."""
    from byzantium._kernels.networks import middle

    first = (n - 1) // 2
    return len(middle(n, first, n - first).parts)


def gram_flops(n: int) -> int:
    """Operations of the Gram product for each column."""
    return 2 * n * n


def sizes(run: Run) -> Section:
    x, results = None, []
    for rule, quantity, goal, work in (
        ("krum", "time per flop, to n = 25", "flop", gram_flops),
        ("median", "time per comparator, to n = 25", "comparator", comparators),
    ):
        by_size = {n: Entry(rule, None, n) for n in run.sizes}
        if not by_size[SIZES[0]].matches(run.only):
            continue
        x = run.normal(max(run.sizes)) if x is None else x
        group = {
            str(n): Contestant(entry.ours(), partial(x.narrow, 0, 0, n))
            for n, entry in by_size.items()
        }
        seconds, _ = run.race(f"sizes, {rule}", group)
        base = seconds[str(SIZES[0])] / work(SIZES[0])
        for n, entry in by_size.items():
            value = seconds[str(n)] / work(n) / base
            figure = Figure(quantity, value, goal=goal if n != SIZES[0] else None)
            results.append(Result(f"{entry.name}, n = {n}", {"ours": seconds[str(n)]}, [figure]))
    return Section("sizes", f"Growth with n at d = {run.d}", results)


def far_off(run: Run) -> Iterator[tuple[str, Tensor]]:
    """Inputs whose rows are far from the origin and close to each other.

    In two camps, no point is close to all rows: distances within the far camp need float64.
    """
    for name, scale, camps in (
        (f"rows spread by norm {SPREAD:g}", SPREAD / run.d**0.5, 1),
        (f"coordinates spread by {SPREAD:g}", SPREAD, 1),
        (f"two camps, rows spread by norm {SPREAD:g}", SPREAD / run.d**0.5, 2),
    ):
        x = run.normal(run.n).mul_(scale)
        common = torch.randn(run.d)
        common *= OFFSET_NORM / common.norm()
        x[::2] += common
        x[1::2] += common if camps == 1 else -common
        yield name, x


def offset(run: Run) -> Section:
    results = []
    for name, x in far_off(run):
        for rule in ("krum", "geometric"):
            entry = Entry(rule, None, run.n)
            if not entry.matches(run.only):
                continue
            group = ours_and_floor(entry, partial(next, cycle([x])))
            seconds, _ = run.race(f"offset, {entry.name}", group)
            figure = Figure("ours / floor", seconds["ours"] / seconds["floor"], goal="offset")
            results.append(Result(f"{entry.name}, {name}", seconds, [figure]))
    return Section("offset", f"Rows with a common offset of norm {OFFSET_NORM:g}", results)


def under_attack(run: Run) -> Section:
    """Attackers that cancel in a bucket, so that the mixed rows must be computed and measured."""
    calm, results = run.normal(run.n), []
    one, other = torch.randperm(run.n, generator=torch.Generator().manual_seed(0))[:2]
    attacked = calm.clone()
    attacked[one] *= 1e12
    attacked[other] = -attacked[one]

    def seeded(rule: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: rule(x, torch.Generator().manual_seed(0))

    for rule in ("krum", "geometric", "clipping"):
        entry = Entry(rule, "bucketing", run.n)
        if not entry.matches(run.only):
            continue
        group = {
            "calm": Contestant(seeded(entry.ours()), lambda: calm),
            "ours": Contestant(seeded(entry.ours()), lambda: attacked),
        }
        seconds, _ = run.race(f"under attack, {entry.name}", group)
        figure = Figure("under attack / calm", seconds["ours"] / seconds["calm"])
        results.append(Result(entry.name, seconds, [figure]))
    return Section("attack", "Huge vectors that cancel where they are mixed", results)


def probe(arguments: list[str], **environment: str) -> Iterator[dict[str, Any]]:
    command = [sys.executable, str(PROBE), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise RuntimeError(f"the probe for {arguments[0]} ended with code {process.returncode}")


def first_call(run: Run) -> Section:
    seconds = []
    for _ in range(FIRST_CALLS):
        run.step("first call")
        seconds += [line["seconds"] for line in probe(["first"])]
    figure = Figure("first call", min(seconds), "s", "first")
    return Section("first", "First call of a process", [Result("Median()", {}, [figure])])


def peaks(run: Run, n: int, huge: bool = False) -> Section:
    """Peak memory; large blocks go back to the system at once, so that no rule reuses them."""
    arguments = ["memory", f"--n={n}", f"--d={run.d}", f"--only={run.only}"]
    kinds = {entry.name: entry.is_weighting for entry in entries(n)}
    results = []
    for line in probe(arguments + ["--weightings"] * huge, MALLOC_MMAP_THRESHOLD_="65536"):
        name, seconds = line["name"], {"ours": line["seconds"]} if huge else {}
        run.step(f"memory, n = {n}, {name}")
        if name in kinds:
            goal = "memory weighting" if kinds[name] else "memory other"
            figure = Figure("peak extra memory", 100 * line["share"], "%", goal)
            results.append(Result(name, seconds, [figure]))
        elif huge:
            results.append(Result(name, {"ours": line["seconds"]}))
    if huge:
        return Section("huge", f"Weightings on {n} x {run.d}, once each", results)
    return Section("memory", f"Peak memory beyond the output, share of X ({n} x {run.d})", results)
