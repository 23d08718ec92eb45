"""The guarantee of a hierarchy: from that of the rule within groups, and that of what follows."""

from __future__ import annotations

import functools
from collections.abc import Callable

from byzantium.guarantees.bounds import (
    Bound,
    Gap,
    Groups,
    chance_of_more_bad_groups,
    fixed_groups,
    random_dealt_groups,
)
from byzantium.rules import Hierarchy

# The chance of too many bad groups is computed if it takes no more additions: a few seconds.
LARGEST_COUNT = 2e9


def bound_of_groups(
    stage: Hierarchy,
    n: int,
    f: int,
    within: Callable[[int, int], Bound],
    following: Callable[[int], Bound],
) -> Bound:
    """The bound of a hierarchy and what follows it; raises a `Gap` where none is known.

    - `n`, `f`: how many vectors go into it, and how many of these are Byzantine.
    - `within`: the bound of the rule within groups, for a size and a number of bad vectors.
    - `following`: the bound of what follows, for a number of bad groups.

    The proof may call a group good up to any number of bad vectors that its rule tolerates: with
    fewer the result of a good group is nearer, and more groups are bad. The smallest bound counts.
    """
    inner = functools.cache(within)
    sizes = tuple(stage.sizes(n).tolist())
    best: Bound | None = None
    gap = ""
    for threshold in range(stage.group_f + 1):
        bad = f // (threshold + 1)
        if threshold and bad == f // threshold:
            continue
        groups = Groups(sizes, f, threshold, bad, lambda size, b: inner(size, b).kappa)
        try:
            rest = following(bad)
            proved = [fixed_groups(groups, rest.kappa)]
            if stage.deal == "random":
                proved.append(random_dealt_groups(groups, rest.kappa))
        except Gap as error:
            gap = str(error)
            continue
        bound = min(proved, key=lambda one: one.kappa)
        if best is None or bound.kappa < best.kappa:
            used = {*bound.propositions, *rest.propositions}
            used.update(*(inner(size, b).propositions for size, b in groups.good))
            best = Bound(bound.kappa, tuple(sorted(used)))
    if best is None:
        raise Gap(gap + _with_luck(stage, sizes, f, inner, following))
    return best


def _with_luck(
    stage: Hierarchy,
    sizes: tuple[int, ...],
    f: int,
    inner: Callable[[int, int], Bound],
    following: Callable[[int], Bound],
) -> str:
    """What holds in most draws of random groups, where too many of them may be bad; "" if nothing.

    It is the end of a sentence.
    """
    threshold = stage.group_f
    if stage.deal != "random":
        return ""
    rest, most = None, f // (threshold + 1)
    while rest is None and most > 0:
        most -= 1
        try:
            rest = following(most)
        except Gap:
            continue
    if rest is None or sum(sizes) * (f + 1) * (most + 2) > LARGEST_COUNT:
        return ""
    try:
        groups = Groups(sizes, f, threshold, most, lambda size, b: inner(size, b).kappa)
        kappa = fixed_groups(groups, rest.kappa).kappa
    except Gap:
        return ""
    chance = chance_of_more_bad_groups(sizes, f, threshold, most)
    return (
        f"; in random groups more than {most} are bad with the chance {chance:.2g} in each call, "
        f"and otherwise the squared error is <= {kappa:.3g} sigma^2 (Proposition 16)"
    )
