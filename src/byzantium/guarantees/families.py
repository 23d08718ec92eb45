"""Inputs that are known to cause large errors: families of honest vectors, under all attacks.

An input has a name and rows, of which the first f are Byzantine, as in `search`. The names say
"bad" for Byzantine: stored certificates have them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from byzantium import attacks as package
from byzantium.core.registry import exported
from byzantium.guarantees.search import Array

# The dimension of honest vectors.
D = 10
# How far away the attackers are, in units of the honest spread. Beyond 1e16, sums in float64 lose
# the honest vectors, and so does a rule that subtracts the attackers from a sum.
FAR = (3.0, 1e2, 1e8, 1e20)
# How far the honest vectors are from the origin where this matters.
AWAY = 1e4
# The strengths of attacks that have one.
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 100.0)
# Attacks that take no part: the first two search, as does the search that these families are for;
# a backdoor differs from no attack in the data alone; two send to nodes of a graph; the others are
# newer than the stored certificates, which the same search must find again.
OMITTED = (
    package.Tuned,
    package.Adaptive,
    package.Backdoor,
    package.ByzMean,
    package.Dissensus,
    package.Fang,
    package.RelocatedPerturbation,
    package.SpectralHeterogeneity,
)
# What whole inputs are multiplied by, for rules with a radius.
SCALES = tuple(10.0**k for k in (-12, -8, -6, -4, -3, -2, -1, 1, 2, 3, 4, 6, 8, 12))


def honest_vectors(m: int, rng: np.random.Generator) -> dict[str, Array]:
    """Honest vectors of each family, m of each, by its name."""
    gaussian = rng.normal(size=(m, D))
    # Of ten classes each is 1.7 times rarer than the one before.
    shares = 1.7 ** -np.arange(D)
    classes = rng.choice(D, m, p=shares / shares.sum())
    return {
        "Gaussian": gaussian,
        "Rademacher": np.sign(rng.normal(size=(m, D))),
        "heavy-tailed": rng.standard_t(1.5, size=(m, D)),
        "one-hot": np.eye(m)[rng.permutation(m)],
        "two clusters": (rng.random(m) < 0.3)[:, None] * rng.normal(size=D) + 0.01 * gaussian,
        "long tail": np.eye(D)[classes] + 0.01 * gaussian,
        "collinear": rng.normal(size=(m, 1)) * rng.normal(size=D),
        "common offset": gaussian + AWAY * rng.normal(size=D) / np.sqrt(D),
    }


def attacks() -> list[package.Attack]:
    """One attack of each class that is not `OMITTED`, with several strengths where it has one."""
    instances: list[package.Attack] = []
    for cls in exported(package, package.Attack).values():
        if not inspect.isabstract(cls) and cls not in OMITTED:
            instances.append(cls())
            if cls.strength:
                instances += [cls(**{cls.strength: strength}) for strength in STRENGTHS]
    return instances


def attack_inputs(
    n: int, f: int, rng: np.random.Generator, extra: Mapping[str, Array]
) -> list[tuple[str, Array]]:
    """All families of honest vectors under all attacks.

    - `extra`: more families of honest vectors, each of n or more rows.
    """
    more = {name: rows[rng.permutation(len(rows))[:n]] for name, rows in extra.items()}
    inputs = []
    for family, rows in {**honest_vectors(n, rng), **more}.items():
        own, others = torch.from_numpy(rows[:f]), torch.from_numpy(rows[f:])
        byzantine = {}
        for attack in attacks():
            generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
            byzantine[repr(attack)] = attack(others, own, epoch=1, generator=generator).numpy()
        for target in rng.permutation(n - f)[:8].tolist():
            byzantine[f"copies of one ({target})"] = np.repeat(rows[f + target][None], f, axis=0)
        byzantine |= dict(far_vectors(rows[f:], f, rng))
        inputs += [
            (f"{family}, {name}", np.concatenate([sent, rows[f:]]))
            for name, sent in byzantine.items()
        ]
    return inputs


def far_vectors(
    others: Array, f: int, rng: np.random.Generator, distances: tuple[float, ...] = FAR
) -> Iterator[tuple[str, Array]]:
    """Attackers at each distance: all at one point, on two sides, and each in its own direction."""
    mean = others.mean(axis=0)
    spread = np.sqrt(((others - mean) ** 2).sum(axis=1).mean())
    directions = rng.normal(size=(f, others.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    sides = np.where(np.arange(f) % 2, -1.0, 1.0)[:, None]
    for distance in distances:
        away = distance * spread
        yield f"{distance:g} away", mean + away * np.repeat(directions[:1], f, axis=0)
        if f > 1:
            yield f"{distance:g} away on two sides", mean + away * sides * directions[:1]
            yield f"{distance:g} away in all directions", mean + away * directions


def far_inputs(n: int, f: int) -> Iterator[tuple[str, Array]]:
    """Inputs that show whether f vectors can move a rule anywhere; in the first all are honest.

    The honest vectors are far from the origin, which reveals a rule that loses them.
    """
    rng = np.random.default_rng(0)
    rows = AWAY + rng.normal(size=(n, 2))
    yield "Gaussian, nobody bad", rows
    for name, sent in far_vectors(rows[f:], f, rng, (1e8, 1e20, 1e40)):
        yield f"Gaussian, {name}", np.concatenate([sent, rows[f:]])


def lower_bound_input(n: int, f: int) -> tuple[str, Array]:
    """The input of the lower bound (see `measure.lower_bound`).

    f honest vectors are at 1, all others, honest or Byzantine, at 0: the f at 1 might as well be
    the Byzantine ones.
    """
    rows = np.zeros((n, 1))
    rows[n - f :] = 1
    return f"{f} of {n - f} honest at 1, bad at 0", rows


def two_point_inputs(n: int, f: int) -> Iterator[tuple[str, Array]]:
    """Honest vectors at 0 and at 1 on a line, in all proportions, and attackers at some points."""
    for ones in range(1, n - f):
        others = (np.arange(n - f) < ones)[:, None] * 1.0
        for point in (0.0, 1.0, 0.5, 2.0, -1.0, 1e3, -1e3):
            for rest in dict.fromkeys((point, 0.0)):  # all of them there, or half
                sent = np.where(np.arange(f) % 2, rest, point)[:, None]
                points = f"{point:g}" if rest == point else f"{point:g} and {rest:g}"
                name = f"{ones} of {n - f} honest at 1, bad at {points}"
                yield name, np.concatenate([sent, others])


def rescaled_inputs(rows: Array, f: int) -> Iterator[tuple[str, Array]]:
    """An input in other units, and far from the origin, which affects rules with a radius."""
    size = float(np.abs(rows[f:] - rows[f:].mean(axis=0)).max())
    for scale in SCALES:
        yield f"times {scale:g}", rows * scale
    for offset in (1e1, 1e2, 1e3, 1e4):
        yield f"plus {offset:g} spreads", rows + offset * size / np.sqrt(rows.shape[1])
