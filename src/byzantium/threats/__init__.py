"""Attacks: honest vectors in, Byzantine vectors out; and attacks on labels."""

from byzantium.core.notation import read
from byzantium.threats.attack import Attack, Scene
from byzantium.threats.attacks import (
    ALittleIsEnough,
    BitFlip,
    GaussianNoise,
    InnerProduct,
    LabelFlip,
    MinMax,
    MinSum,
    NoAttack,
    NonFinite,
)
from byzantium.threats.mimic import Mimic
from byzantium.threats.tuned import Tuned

__all__ = [
    "ALittleIsEnough",
    "Attack",
    "BitFlip",
    "GaussianNoise",
    "InnerProduct",
    "LabelFlip",
    "Mimic",
    "MinMax",
    "MinSum",
    "NoAttack",
    "NonFinite",
    "Scene",
    "Tuned",
    "parse_attack",
]


def parse_attack(text: str) -> Attack:
    """Read an attack back from its repr.

    >>> parse_attack("Tuned(attack=InnerProduct(epsilon=0.5))")
    Tuned(attack=InnerProduct(epsilon=0.5))
    """
    members = {name: globals()[name] for name in __all__ if name not in ("Attack", "parse_attack")}
    attacks = {name: member for name, member in members.items() if issubclass(member, Attack)}
    attack = read(text, attacks)
    assert isinstance(attack, Attack)
    return attack
