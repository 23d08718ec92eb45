"""Text to attack: the inverse of repr."""

from __future__ import annotations

import inspect

from byzantium.core import notation
from byzantium.threats.attack import Attack


def parse_attack(text: str) -> Attack:
    """Read an attack back from its repr.

    >>> parse_attack("Tuned(attack=InnerProduct(epsilon=0.5))")
    Tuned(attack=InnerProduct(epsilon=0.5))
    """
    from byzantium import threats

    exported = (getattr(threats, name) for name in threats.__all__)
    attacks = [one for one in exported if inspect.isclass(one) and issubclass(one, Attack)]
    attack = notation.read(
        text, {one.__name__: one for one in attacks if not inspect.isabstract(one)}
    )
    assert isinstance(attack, Attack)
    return attack
