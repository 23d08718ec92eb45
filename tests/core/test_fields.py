"""Whatever is built from parameters refuses a value of the wrong kind, then and not later."""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import members
import numpy as np
import pytest
import torch

import byzantium as bz
from byzantium.core.fields import Positive
from byzantium.data.partition import PARTITIONS
from byzantium.learning import Settings, models
from byzantium.runs import Certification, Mimicry, Run
from byzantium.runs.builders import MODELS, OPTIMIZERS

HUGE = 10**400
# What a parameter of a kind is not. No count and no measure here may be negative.
NO_NUMBER: list[Any] = [True, np.True_, torch.tensor(True), "1", "", None, [1], 1j, torch.ones(2)]
WRONG: dict[Any, list[Any]] = {
    int: [*NO_NUMBER, 1.5, 2.0, math.nan, math.inf, -1, HUGE, -HUGE],
    float: [*NO_NUMBER, math.nan, math.inf, -math.inf, -1, -1.0, HUGE, -HUGE],
    bool: [0, 1, 1.0, "x", "", None, [], torch.tensor(True)],
    str: [True, 3, None, [], b"Mean()", "", "no such thing", "\0", "\udc80", "x" * 3000],
    Literal: ["x", "", 3, True, None, [], math.nan],
    tuple[str, ...]: ["weights", 3, None, [3], [None], ["x"], [["weights"]]],
    tuple[int, ...]: ["12", 3, None, (0,), (True,), (1.5,), ("1",), (None,), (HUGE,)],
    bz.Attack: [None, 3, True, "InnerProduct()", bz.InnerProduct, bz.NoAttack(), bz.Mean()],
    bz.Aggregator: [None, 3, True, "Mean()", bz.Mean, bz.NoAttack(), bz.Bucketing(s=2)],
}
INFINITE = {
    "CenteredClipping.radius",
    "Clipping.radius",
    "ClippedGossip.radius",
    "ByzantineSGD.t_a",
    "ByzantineSGD.t_b",
}  # it clips nothing
NEGATIVE = {"LargestCluster.similarity"}  # a cosine


def wrong(kind: Any, name: str) -> Iterator[Any]:
    options = typing.get_args(kind)
    optional = types.NoneType in options
    several = any(typing.get_origin(option) is tuple for option in options)  # one, or a list
    if typing.get_origin(kind) in (typing.Union, types.UnionType):  # a number, or else a word
        kind = options[0]
    for value in WRONG[Literal if typing.get_origin(kind) is Literal else kind]:
        if optional and value is None:
            continue
        if name in INFINITE and value is math.inf:
            continue
        if several and type(value) is list:
            continue
        if name in NEGATIVE and type(value) in (int, float) and value == -1:
            continue
        yield value


Case = tuple[str, Callable[[], Any]]


def of_fields(built: Any) -> Iterator[Case]:
    """Wrong values for each field of a dataclass, the others being right."""
    kind = type(built)
    kinds = typing.get_type_hints(kind)
    for field in dataclasses.fields(built):
        name = f"{kind.__name__}.{field.name}"
        for value in wrong(kinds[field.name], name):
            yield name, partial(dataclasses.replace, built, **{field.name: value})


def of_parameters(make: Callable[..., Any], **right: Any) -> Iterator[Case]:
    """Wrong values for each parameter of a function, the others being right."""
    kinds = typing.get_type_hints(make)
    for parameter in inspect.signature(make).parameters:
        name = f"{make.__name__}.{parameter}"
        for value in wrong(kinds[parameter], name):
            yield name, partial(make, **{**right, parameter: value})


def of_texts(field: str, known: dict[str, Callable[..., Any]], given: int) -> Iterator[Case]:
    """Wrong values written into the text of a run, as far as they can be written."""
    for word, make in known.items():
        kinds = typing.get_type_hints(make)
        for parameter in list(inspect.signature(make).parameters)[given:]:
            name = f"{word}.{parameter}"
            for value in wrong(kinds[parameter], name):
                yield name, partial(Run.of, {field: f"{word}({parameter}={value!r})"})


def formulas() -> list[Any]:
    """One of each kind; `test_architecture` holds that none is left out."""
    everything: list[Any] = [rule.rule for rule in members.RULES]
    everything += [mix.mixing for mix in members.MIXINGS]
    everything += members.ATTACKS
    return list({type(member): member for member in reversed(everything)}.values())


CASES: list[Case] = [
    *(case for formula in formulas() for case in of_fields(formula)),
    *of_fields(Settings(n=5, rounds=3)),
    *of_fields(Run()),
    *of_fields(Mimicry()),
    *of_fields(Certification()),
    *(case for make in PARTITIONS.values() for case in of_parameters(make)),
    *of_parameters(models.cnn),
    *of_parameters(models.mlp, shape=(1, 8, 8)),
    *of_parameters(models.linear, shape=(1, 8, 8)),
    *of_texts("model", MODELS, given=1),
    *of_texts("optimizer", OPTIMIZERS, given=2),
]


@pytest.mark.parametrize(("name", "attempt"), CASES, ids=lambda x: x if type(x) is str else "")
def test_a_wrong_value_is_refused_in_one_sentence(name: str, attempt: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, bz.ByzantiumError)) as caught:
        attempt()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) > 10
    # Jobs hold texts, which are quoted instead; so is the text of a clock.
    if not name.startswith(("Run.", "Mimicry.", "Certification.", "Settings.clock")):
        assert name.split(".")[1] in sentence


@dataclasses.dataclass(frozen=True, repr=False)
class Odd(bz.Mean):
    """A rule of somebody else's, whose parameters only say what they take."""

    k: Positive = 1

    def check_parameters(self) -> None:
        if self.k % 2 == 0:
            raise bz.ByzantiumError(f"Odd needs an odd k, got k={self.k}")


def test_what_a_field_says_is_checked_for_any_subclass() -> None:
    assert Odd(k=3).k == 3
    for wrong_one, sentence in ((0, "Odd needs k >= 1, got k=0"), (4, "an odd k, got k=4")):
        with pytest.raises(bz.ByzantiumError, match=sentence):
            Odd(k=wrong_one)
    with pytest.raises(bz.ArgumentTypeError, match=r"Odd needs a whole number for k, got k=2.5"):
        Odd(k=2.5)  # type: ignore[arg-type]


def test_no_subclass_can_switch_the_checks_off() -> None:
    with pytest.raises(TypeError, match="put further checks into check_parameters"):

        class Careless(bz.Mean):
            def __post_init__(self) -> None:  # type: ignore[misc]
                pass
