"""The sections, results and figures of the bench, and the goals of the figures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Goal:
    text: str
    bound: float
    unit: str = "x"
    at_most: bool = True

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    @property
    def requirement(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:g} {self.unit}"


GOALS = {
    "weighting": Goal(
        "Krum, geometric median, centered clipping, alone or behind bucketing or "
        "nearest-neighbor mixing: time over the floor (one `X @ X.T` and one `w @ X`)",
        0.9,
    ),
    "weighting clipping": Goal("Centered clipping behind bucketing: the same", 1.0),
    "offset": Goal("The same where products need float64 (large common offset)", 0.8),
    "coordinate": Goal("Median, trimmed mean at n = 13 and 25: time over `X.mean(0)`", 1.2),
    "coordinate51": Goal("Median, trimmed mean at n = 51: time over `X.mean(0)`", 1.1),
    "bucket coordinate": Goal(
        "Median, trimmed mean behind bucketing, n = 25: time over `X.mean(0)`", 1.0
    ),
    "bucket meamed": Goal("MeaMed behind bucketing, n = 25: the same", 1.0),
    "counted": Goal(
        "Trimmed mean behind nearest-neighbor mixing, over one `X @ X.T`, one `P @ X` and one "
        "`X.mean(0)`; Bulyan, over one `X @ X.T` and one `X.mean(0)`",
        0.8,
    ),
    "meamed": Goal("MeaMed at n = 13 and 25: time over `X.mean(0)`", 1.3),
    "explain": Goal("Rules by coordinate: `explain`, which says who counted, over the rule", 1.8),
    "weights": Goal(
        "Rules from the Gram matrix and the mean: with weights of the operator, over without", 1.2
    ),
    "weights by coordinate": Goal("Rules by coordinate: the same", 4),
    "after": Goal("Directly after a backward pass, over the same call alone", 1.2),
    "plain order": Goal(
        "Median, trimmed mean: faster than straightforward torch", 70, at_most=False
    ),
    "plain geometric": Goal(
        "Geometric median (exact): faster than 8 steps in straightforward torch", 30, at_most=False
    ),
    "byzfl order": Goal(
        "Median, trimmed mean, MeaMed, nearest-neighbor mixing: faster than byzfl",
        60,
        at_most=False,
    ),
    "byzfl mean": Goal("Mean, with rejection of rows: as fast as byzfl's", 1.2, at_most=False),
    "byzfl distance": Goal("Krum, geometric median: faster than byzfl", 15, at_most=False),
    "flop": Goal("Krum at n = 50, 100, 300: time per flop of the Gram product, to n = 25", 0.9),
    "comparator": Goal(
        "Median at n = 50, 100, 300: time per comparator and column, to n = 25", 1.7
    ),
    "first": Goal("First median call of a process, compiling included", 0.2, "s"),
    "start": Goal("`byzantium run --rounds 1`, over importing torch", 1.35),
    "recording": Goal(
        "A digits round of `byzantium run` with its default records, over a bare round", 1.2
    ),
    "without llvmlite": Goal(
        "Median, trimmed mean in plain torch, without llvmlite, over straightforward torch", 0.2
    ),
    "clients": Goal(
        "5,000 clients: time over one `X @ X.T` (with nearest neighbors also one `P @ X` and one "
        "sort of X by columns)",
        1.0,
    ),
    "memory clients": Goal("5,000 clients: memory beside X", 2.5, "n x n"),
    "round": Goal(
        "One round with the paper's CNN, aggregation and attack included, over its plain passes "
        "in torch's default layout",
        1.05,
    ),
    "batched": Goal("MLP: gradients batched over workers, over a loop", 2.5, at_most=False),
    "rounds": Goal("MLP on digits, 25 workers", 500, "/s", at_most=False),
    "rounds of both": Goal(
        "MLP on digits, 25 workers: a round of `Bucketing(s=2) >> GeometricMedian()` over Krum's",
        1.1,
    ),
    "linear": Goal("CNN, n = 25, 50, 100: time per worker, to n = 10", 1.1),
    "memory training": Goal(
        "Peak extra memory of training with the CNN, less one worker's activations, over the "
        "n x d gradients",
        1.4,
    ),
    "reduce weighting": Goal("Krum, geometric median on 4 ranks: time over `all_reduce`", 2),
    "reduce coordinate": Goal("Median on 4 ranks: time over `all_reduce`", 2),
    "reduce gathered 4": Goal(
        "On 4 ranks: faster than gathering everything on each", 1.8, at_most=False
    ),
    "reduce gathered 8": Goal(
        "On 8 ranks: faster than gathering everything on each", 6, at_most=False
    ),
    "adapter weights": Goal(
        "LoRA adapters: weights from factors, faster than forming the products", 20, at_most=False
    ),
    "adapter merge": Goal(
        "LoRA adapters: a whole merge with its cut, faster than forming the products",
        5,
        at_most=False,
    ),
    "memory weighting": Goal("Peak extra memory of weightings, of the size of X", 5, "%"),
    "memory other": Goal("Peak extra memory of all other rules, of the size of X", 5, "%"),
}


@dataclass(frozen=True)
class Figure:
    """One number computed from measurements, and the key of its goal if it has one."""

    quantity: str
    value: float
    unit: str = "x"
    goal: str | None = None

    @property
    def text(self) -> str:
        digits = 1 if self.unit == "%" or self.value >= 10 else 2
        return f"{self.value:.{digits}f} {self.unit}"

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else GOALS[self.goal].met(self.value)


@dataclass(frozen=True)
class Result:
    """One row of a section: median seconds by contestant, and the figures computed from them."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    figures: list[Figure] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    results: list[Result]


class GoalRow(NamedTuple):
    """A goal: its text, its bound, the best and the worst figure, and whether all meet it."""

    text: str
    requirement: str
    measured: str
    met: bool


def goal_rows(sections: Iterable[Section], goals: Mapping[str, Goal]) -> list[GoalRow]:
    """The goals for which there are figures."""
    sections, rows = list(sections), []
    for key, goal in goals.items():
        figures = sorted(
            (
                (figure.value, figure.text, result.name)
                for section in sections
                for result in section.results
                for figure in result.figures
                if figure.goal == key and section.key != "huge"
            ),
            reverse=not goal.at_most,
        )
        if figures:
            (_, best, _), (value, worst, name) = figures[0], figures[-1]
            measured = worst if len(figures) == 1 else f"{best} to {worst} (`{name}`)"
            rows.append(GoalRow(goal.text, goal.requirement, measured, goal.met(value)))
    return rows
