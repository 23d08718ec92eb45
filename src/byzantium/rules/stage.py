"""The base class of rules and mixings: both are stages of a pipeline."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from byzantium.core import ByzantiumError, Formula
from byzantium.vectors.weights import Weights

# Methods and properties that subclasses may define, by their names up to 0.2.
FORMER_HOOKS = {
    "least": "min_vectors",
    "settled": "resolved",
    "spoiled": "bad_outputs",
    "one_pass": "try_before_admission",
    "centre": "center",  # former name
}


class FormerHook:
    """A hook under its former name: it works for one release, with a `DeprecationWarning`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.new = name, FORMER_HOOKS[name]

    def __get__(self, stage: Stage | None, owner: type) -> Any:
        if stage is None:
            return self
        warnings.warn(f"{self.name} is now {self.new}", DeprecationWarning, stacklevel=2)
        # A class that defines the former name may call super()'s: skip what stands for its own.
        for cls in type(stage).__mro__:
            hook = vars(cls).get(self.new)
            if hook is not None and hook is not vars(cls).get(self.name):
                return hook.__get__(stage, owner)
        raise AttributeError(f"{type(stage).__name__!r} has no attribute {self.name!r}")


class Rejected(NamedTuple):
    """What was rejected of the vectors that would reach a stage.

    - `n`: how many would reach it if none were rejected.
    - `places`: the indices of those that are missing.
    - `bad`: how many bad vectors fewer reach it.
    """

    n: int
    places: NDArray[np.int64]
    bad: int


class Stage(Formula):
    """One stage of a pipeline: a mixing or a rule.

    A *Byzantine* vector comes from a Byzantine worker: it may be anything.

    >>> from byzantium import Bucketing, Krum
    >>> (Bucketing(s=2) >> Krum(f=5)).stages
    (Bucketing(s=2), Krum(f=5))
    """

    least = FormerHook()
    settled = FormerHook()
    #: Whether it uses distances: then one reading measures and checks vectors.
    measures: ClassVar[bool] = False
    #: Whether it takes weights of the operator, `rule(updates, weights=...)`.
    takes_weights: ClassVar[bool] = False
    #: Whether it remembers what each worker sent: vector i is that of the same worker in each call.
    remembers_workers: ClassVar[bool] = False
    #: Whether neighbors in a graph count by the weights of their edges, see `on_graph`.
    uses_graph: ClassVar[bool] = False
    #: In which form it uses root data, if it does: the gradient on them, or a function of a step
    #: to their loss after it.
    root_form: ClassVar[Literal["gradient", "loss"]] = "gradient"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in FORMER_HOOKS.items():
            hook = vars(cls).get(old)
            if hook is not None and not isinstance(hook, FormerHook) and new not in vars(cls):
                message = f"{cls.__name__} defines {old}, which is now {new}"
                warnings.warn(message, DeprecationWarning, stacklevel=3)
                setattr(cls, new, hook)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a pipeline, as the user wrote them."""
        return (self,)

    @property
    def expansion(self) -> tuple[Stage, ...]:
        """The stages that this one is short for: `Bulyan`, for instance, is two; most are one."""
        return (self,)

    @property
    def needs_origin(self) -> bool:
        """Whether this stage uses the origin, as clipping does; see `Geometry.origin`."""
        return False

    @property
    def needs_root(self) -> bool:
        """Whether this stage uses root data, `rule(updates, root=...)`."""
        return False

    @property
    def redundancy(self) -> int:
        """How many workers must compute the same in a training, for votes among them; mostly 1."""
        return 1

    def trusted(self, gradient: Any, loss: Callable[[Any], float] | None) -> Any:
        """What a rule is called with as `root`: the root gradient or, by `root_form`, the loss.

        - `loss`: the loss of root data after a step, a vector that is subtracted from the model.
        """
        return loss if self.stages[-1].root_form == "loss" else gradient

    @property
    def separate(self) -> bool:
        """Whether what comes out is measured by itself, and not by what went in.

        Then no n x n numbers of the n vectors that go in are needed.
        """
        return False

    @property
    def placed(self) -> bool:
        """Whether it matters which place a vector has among the others."""
        return False

    @property
    def bad(self) -> int | None:
        """How many vectors may be Byzantine: its parameter f; None if it has no such parameter."""
        return getattr(self, "f", None)

    @property
    def max_share(self) -> float:
        """With weights: what its f vectors hold of the weight must be below this share of all."""
        return 1 / 2

    def heaviest(self, weights: Weights) -> Weights:
        """The weights of what comes out, in the case in which the f largest hold most."""
        return weights

    def rows(self, n: int) -> int:
        """How many vectors come out when n go in: 1 from a rule."""
        return 1

    def min_vectors(self) -> tuple[int, str]:
        """The smallest number of vectors it is defined for, and the formula of that number.

        By default 2f + 1, so that honest vectors are in the majority; 1 without an f.
        """
        return (1, "1") if self.bad is None else (2 * self.bad + 1, "2f + 1")

    def check(self, n: int) -> None:
        """Raise a `ByzantiumError` unless this stage is defined for n vectors."""
        fewest, formula = self.min_vectors()
        if n < fewest:
            bound = formula if formula == str(fewest) else f"{formula} = {fewest}"
            raise ByzantiumError(f"{self!r} needs at least {bound} vectors, got {n}")

    def resolved(self, n: int, following: Sequence[Stage]) -> Stage:
        """This stage with all parameters known, for n vectors and the stages that follow it.

        Most stages are returned unchanged; `Bucketing(s="auto")` gets its s here.
        """
        return self

    def resolved_for(self, weights: Weights, following: Sequence[Stage]) -> Stage:
        """The same for weights of the operator, in the case in which f vectors hold most."""
        return self.resolved(len(weights.shares), following)

    def on_graph(self, weights: NDArray[np.float64]) -> Self:
        """This stage on a graph, for gossip; other stages know no graph and are returned unchanged.

        - `weights`: (n, n), the weights of the edges.
        """
        return self

    def with_fewer_bad(self, rejected: int) -> Self:
        """This stage with f smaller by the number of vectors that were already rejected."""
        if self.bad is None:
            return self
        stage = copy.copy(self)
        object.__setattr__(stage, "f", self.bad - rejected)
        return stage

    def after_rejection(self, rejected: Rejected) -> Stage:
        """This stage for the vectors that are left; most need only know how many there are."""
        return self.with_fewer_bad(rejected.bad)

    def rejected_outputs(self, rejected: Rejected) -> Rejected:
        """What is then missing of the vectors that come out."""
        before, after = self.rows(rejected.n), self.rows(rejected.n - len(rejected.places))
        same = before - after == len(rejected.places)  # row i comes from row i, or all are random
        places = rejected.places if same else np.arange(after, before)
        return Rejected(before, places, rejected.bad)

    def bad_inputs(self, outputs: int) -> int:
        """How many vectors that go in may be bad, if so many of those that come out may be."""
        return outputs


def pipeline_repr(stages: Sequence[Stage]) -> str:
    """The notation of several stages, joined by `>>`."""
    return " >> ".join(map(repr, stages))


def stages_of_workers(stages: Sequence[Stage]) -> list[Stage]:
    """The stages whose f counts the vectors that go into a pipeline.

    Behind groups that have rules of their own, f counts groups.

    >>> from byzantium import Hierarchy, Mean, TrimmedMean
    >>> stages_of_workers((Hierarchy(5, Mean()) >> TrimmedMean(f=1)).stages)
    []
    """
    return list(itertools.takewhile(lambda stage: not stage.separate, stages))


def most_bad(stages: Sequence[Stage]) -> int | None:
    """How many vectors may be bad by the parameters f of some stages; None if they have none.

    >>> from byzantium import Bucketing, Krum, NearestNeighborMixing
    >>> most_bad([NearestNeighborMixing(f=2), Krum(f=5)]), most_bad([Bucketing(s=2)])
    (2, None)
    """
    most: int | None = None
    for stage in reversed(stages):
        bounds = [] if most is None else [stage.bad_inputs(most)]
        most = min([*bounds, *([] if stage.bad is None else [stage.bad])], default=None)
    return most


def after_rejection(stages: Sequence[Stage], rejected: Rejected) -> list[Stage]:
    """Some stages for the vectors that are left when some of those that go in are rejected."""
    left = list[Stage]()
    for stage in stages:
        left.append(stage.after_rejection(rejected))
        rejected = stage.rejected_outputs(rejected)
    return left


def min_honest(stages: Sequence[Stage], n: int) -> int:
    """How many of n vectors must be honest for a pipeline of these stages to promise anything.

    >>> from byzantium import Bucketing, CenteredClipping, GeometricMedian, Krum
    >>> pipelines = [Krum(f=5)], [Bucketing(s=2), GeometricMedian()], [CenteredClipping(radius=1)]
    >>> [min_honest(stages, 25) for stages in pipelines]
    [20, 13, 23]
    """
    largest = getattr(stages[-1], "delta_max", 1 / 2)
    most = most_bad(stages)
    bounds = [math.ceil(largest * n) - 1, *([] if most is None else [most])]
    return n - max(0, min(bounds))
