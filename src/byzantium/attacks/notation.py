"""Attacks from text: the inverse of repr."""

from __future__ import annotations

import functools
import inspect

from byzantium.attacks.attack import Attack
from byzantium.core import Registry, notation
from byzantium.core.registry import exported

# The names of the bucketing paper, which tables and figures show.
ALIASES = {"none": "NoAttack", "BF": "BitFlip", "LF": "LabelFlip"}
ALIASES |= {"IPM": "InnerProduct", "ALIE": "ALittleIsEnough"}


@functools.cache
def members() -> Registry[type[Attack]]:
    """All attacks that `parse_attack` knows, by name: ours, and those of loaded plugins.

    >>> members()["BitFlip"]
    <class 'byzantium.attacks.stateless.BitFlip'>
    """
    from byzantium import attacks

    classes = exported(attacks, Attack).items()
    concrete = {name: one for name, one in classes if not inspect.isabstract(one)}
    return Registry("attack", concrete, ALIASES)


def parse_attack(text: str) -> Attack:
    """Read an attack from text, such as "InnerProduct(epsilon=0.5)"; the inverse of `repr`.

    The paper's names BF, LF, IPM, ALIE and none mean BitFlip, LabelFlip, InnerProduct,
    ALittleIsEnough and NoAttack.

    >>> parse_attack("Tuned(InnerProduct(epsilon=0.5))")
    Tuned(attack=InnerProduct(epsilon=0.5), both=True)
    >>> parse_attack("IPM(epsilon=0.5)")
    InnerProduct(epsilon=0.5)
    """
    attack = notation.read(text, members())
    assert isinstance(attack, Attack)
    return attack
